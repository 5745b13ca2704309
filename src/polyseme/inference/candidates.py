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

from polyseme.errors import ConfigError
from polyseme.nn.inputs import Inputs
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout, token_budget_batches
from polyseme.progress import progress

TEXT_FIELD, ANSWER_FIELD = "{text}", "{answer}"


@dataclass(frozen=True, eq=False)
class CandidateBatch:
    """A prompt with each of its answers, as ids; and where in each sequence the answer begins."""

    sequences: list[np.ndarray]
    answer_starts: list[int]

    @cached_property
    def shared_prefix_len(self) -> int:
        """How many tokens are read once for all: those before the last one that the sequences have in common."""
        first = self.sequences[0]
        return (
            min(min(_common_prefix_len(first, other) for other in self.sequences), *self.answer_starts, len(first)) - 1
        )


def format_prompt(text: str, template: str, shots: Sequence[tuple[str, str]], separator: str = "\n\n") -> str:
    """A prompt: examples as the template has them, then its part before the answer, with the text in its place."""
    head, answer, tail = template.partition(ANSWER_FIELD)
    if not answer or tail.strip() or TEXT_FIELD not in head:
        raise ConfigError(f"the template {template!r} has to hold {TEXT_FIELD} and end in {ANSWER_FIELD}")
    formatted_shots = (join_prompt_answer(head.replace(TEXT_FIELD, shot), shot_answer) for shot, shot_answer in shots)
    return separator.join([*formatted_shots, head.replace(TEXT_FIELD, text)])


def join_prompt_answer(prompt: str, answer: str) -> str:
    """One text, with no more than one space where the two meet."""
    return prompt.rstrip(" ") + " " + answer.lstrip(" ") if prompt.endswith(" ") else prompt + answer


@torch.inference_mode()
def score_candidates(
    model: Model, candidates: Sequence[CandidateBatch], max_batch_tokens: int
) -> list[list[tuple[float, int]]]:
    """The summed log-probability of each answer's tokens after its prompt, and how many tokens these are."""
    scores_by_prompt: list[list[tuple[float, int]]] = [[] for _ in candidates]
    with progress("read", len(candidates), "questions", show=len(candidates) > 200) as bar:
        for has_prefix in (True, False):  # an answer that follows nothing but an opening mark has nothing to share
            indices = [i for i, a in enumerate(candidates) if (a.shared_prefix_len > 0) == has_prefix]
            prefix_len = _shared_by_all([candidates[i] for i in indices]) if has_prefix else 0
            prefix_memory = None
            if prefix_len:
                prefix_memory = _forward(model, [candidates[indices[0]].sequences[0][:prefix_len]], None)[1]
            token_counts = [sum(len(s) for s in candidates[i].sequences) for i in indices]
            for index in token_budget_batches(token_counts, max_batch_tokens):
                group = [candidates[indices[i]] for i in index]
                for i, scores in zip(index, _score_group(model, group, prefix_memory, prefix_len)):
                    scores_by_prompt[indices[i]] = scores
                bar.advance(len(index))
    return scores_by_prompt


def _score_group(
    model: Model, group: list[CandidateBatch], prefix_memory: Memory | None, prefix_len: int
) -> Iterator[list[tuple[float, int]]]:
    memory = prefix_memory.select([0] * len(group)) if prefix_memory else None
    if group[0].shared_prefix_len:
        memory = _forward(model, [a.sequences[0][prefix_len : a.shared_prefix_len] for a in group], memory)[1]
    prompt_rows = [i for i, a in enumerate(group) for _ in a.sequences]
    suffixes = [s[a.shared_prefix_len : -1] for a in group for s in a.sequences]
    hidden, _, layout = _forward(model, suffixes, memory.select(prompt_rows) if memory else None)
    first_rows = [b - 1 - a.shared_prefix_len for a in group for b in a.answer_starts]
    starts = layout.cu_seqlens.tolist()
    rows = np.concatenate([np.arange(starts[i] + f, starts[i + 1]) for i, f in enumerate(first_rows)])
    targets = np.concatenate([s[b:] for a in group for s, b in zip(a.sequences, a.answer_starts)])
    log_probs = []
    for chunk in np.array_split(np.arange(len(rows)), -(-len(rows) // 1024)):
        chunk_rows, chunk_targets = (torch.from_numpy(x[chunk]).to(hidden.device) for x in (rows, targets))
        scores = model.predict("next", hidden, layout, chunk_rows).float().log_softmax(-1)
        log_probs.append(scores.gather(1, chunk_targets[:, None])[:, 0].double())
    answer_lengths = [len(s) - b for a in group for s, b in zip(a.sequences, a.answer_starts)]
    sums = iter(zip((float(chunk.sum()) for chunk in torch.cat(log_probs).split(answer_lengths)), answer_lengths))
    for candidate_batch in group:
        yield [next(sums) for _ in candidate_batch.sequences]


def _forward(
    model: Model, sequences: list[np.ndarray], memory: Memory | None
) -> tuple[torch.Tensor, Memory | None, PackedLayout]:
    device = next(model.parameters()).device
    tokens = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(device)
    layout = PackedLayout.from_lengths([len(s) for s in sequences], device=device)
    trunk_output = model.trunk(Inputs(tokens, layout), memory=memory, return_memory=True)
    return trunk_output.hidden, trunk_output.memory, layout


def _shared_by_all(candidates: list[CandidateBatch]) -> int:
    """How many tokens open every prompt; at least one of each is left to read."""
    if len(candidates) < 2:
        return 0
    first = candidates[0].sequences[0]
    return min(min(_common_prefix_len(first, a.sequences[0]), a.shared_prefix_len - 1) for a in candidates)


def _common_prefix_len(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differences = np.flatnonzero(a[:size] != b[:size])
    return int(differences[0]) if len(differences) else size
