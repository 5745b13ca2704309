"""Prompts and the answers that may follow them: how likely is each? (Brown et al. 2020, §2.4)

What prompts have in common is read once: the examples that stand before all of them, then each prompt, then its
answers, each step with the memory of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from polyseme.errors import UserError
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout, bins
from polyseme.progress import progress

TEXT, ANSWER = "{text}", "{answer}"


@dataclass(frozen=True, eq=False)
class Answers:
    """A prompt with each of its answers, as ids; and where in each sequence the answer begins."""

    sequences: list[np.ndarray]
    begins: list[int]

    @cached_property
    def shared(self) -> int:
        """How many tokens are read once for all: those before the last one that the sequences have in common."""
        first = self.sequences[0]
        return min(min(_common(first, other) for other in self.sequences), *self.begins, len(first)) - 1


def written(text: str, template: str, shots: Sequence[tuple[str, str]], separator: str = "\n\n") -> str:
    """A prompt: examples as the template has them, then its part before the answer, with the text in its place."""
    head, answer, tail = template.partition(ANSWER)
    if not answer or tail.strip() or TEXT not in head:
        raise UserError(f"the template {template!r} has to hold {TEXT} and end in {ANSWER}")
    shown = (joined(head.replace(TEXT, shot), given) for shot, given in shots)
    return separator.join([*shown, head.replace(TEXT, text)])


def joined(prompt: str, answer: str) -> str:
    """One text, with no more than one space where the two meet."""
    return prompt.rstrip(" ") + " " + answer.lstrip(" ") if prompt.endswith(" ") else prompt + answer


@torch.inference_mode()
def answer_scores(model: Model, asked: Sequence[Answers], bin_tokens: int) -> list[list[tuple[float, int]]]:
    """The summed log-probability of each answer's tokens after its prompt, and how many tokens these are."""
    found: list[list[tuple[float, int]]] = [[] for _ in asked]
    with progress("read", len(asked), "questions", show=len(asked) > 200) as bar:
        for prompted in (True, False):  # an answer that follows nothing but an opening mark has nothing to share
            chosen = [i for i, a in enumerate(asked) if (a.shared > 0) == prompted]
            begin = _common_to_all([asked[i] for i in chosen]) if prompted else 0
            before = None
            if begin:
                before = _read(model, [asked[chosen[0]].sequences[0][:begin]], None)[1]
            costs = [sum(len(s) for s in asked[i].sequences) for i in chosen]
            for index in bins(costs, bin_tokens):
                group = [asked[chosen[i]] for i in index]
                for i, scores in zip(index, _group_scores(model, group, before, begin)):
                    found[chosen[i]] = scores
                bar.advance(len(index))
    return found


def _group_scores(
    model: Model, group: list[Answers], before: Memory | None, begin: int
) -> Iterator[list[tuple[float, int]]]:
    memory = before.take([0] * len(group)) if before else None
    if group[0].shared:
        memory = _read(model, [a.sequences[0][begin : a.shared] for a in group], memory)[1]
    owners = [i for i, a in enumerate(group) for _ in a.sequences]
    rests = [s[a.shared : -1] for a in group for s in a.sequences]
    last, _, layout = _read(model, rests, memory.take(owners) if memory else None)
    firsts = [b - 1 - a.shared for a in group for b in a.begins]
    starts = layout.starts.tolist()
    rows = np.concatenate([np.arange(starts[i] + f, starts[i + 1]) for i, f in enumerate(firsts)])
    truth = np.concatenate([s[b:] for a in group for s, b in zip(a.sequences, a.begins)])
    chances = []
    for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 1024)):
        where, what = (torch.from_numpy(x[part]).to(last.device) for x in (rows, truth))
        scores = model.predict("next", last, layout, where).float().log_softmax(-1)
        chances.append(scores.gather(1, what[:, None])[:, 0].double())
    sizes = [len(s) - b for a in group for s, b in zip(a.sequences, a.begins)]
    sums = iter(zip((float(part.sum()) for part in torch.cat(chances).split(sizes)), sizes))
    for answers in group:
        yield [next(sums) for _ in answers.sequences]


def _read(
    model: Model, sequences: list[np.ndarray], memory: Memory | None
) -> tuple[torch.Tensor, Memory | None, Layout]:
    device = next(model.parameters()).device
    tokens = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(device)
    layout = Layout.of([len(s) for s in sequences], device=device)
    reading = model.trunk(tokens, layout, memory=memory, remember=True)
    return reading.last, reading.memory, layout


def _common_to_all(asked: list[Answers]) -> int:
    """How many tokens open every prompt; at least one of each is left to read."""
    if len(asked) < 2:
        return 0
    first = asked[0].sequences[0]
    return min(min(_common(first, a.sequences[0]), a.shared - 1) for a in asked)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size
