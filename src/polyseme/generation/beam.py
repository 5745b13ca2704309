"""Beam search: the likeliest whole texts, found by keeping the best few beginnings at every step.

At each step the candidates of a sentence are ranked. Of the first `width`, those that end are set aside for good; the
best `width` that do not end go on. Compared are log-probabilities by length to the power of `penalty`
(Wu et al. 2016, §7, without its constant): 0 compares them as they are, above 0 favours long texts.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polyseme.config import in_range
from polyseme.errors import UserError
from polyseme.generation.sample import Written, limits
from polyseme.generation.session import Ids, Speaker, Writing, begin
from polyseme.generation.topk import highest
from polyseme.nn.model import Model


class Node(NamedTuple):
    """A token in the tree of a search: which node it follows (-1 is the prompt), and the score up to it."""

    parent: int
    token: int
    score: float


@dataclass(eq=False)
class Found:
    """The best texts of one sentence, best first, and the tree they were found in."""

    texts: list[Written]
    nodes: list[Node]


@dataclass(eq=False)
class _Sentence:
    """One sentence of a search: its tree, the nodes that go on, and what has ended, best first."""

    number: int
    nodes: list[Node] = field(default_factory=list)
    running: list[int] = field(default_factory=lambda: [-1])
    ended: list[tuple[float, int, bool]] = field(default_factory=list)  # (− value, node, by the end mark)

    def add(self, parent: int, token: int, score: float) -> int:
        self.nodes.append(Node(self.running[parent], token, score))
        return len(self.nodes) - 1

    def texts(self, best: int) -> list[Written]:
        found = []
        for negative, node, finished in self.ended[:best]:
            tokens, at = [], node
            while at >= 0:
                tokens.append(self.nodes[at].token)
                at = self.nodes[at].parent
            text = tuple(tokens[:0:-1] if finished else tokens[::-1])
            found.append(Written(text, self.nodes[node].score, finished, -negative))
        return found


@torch.inference_mode()
def beam(
    model: Model | Speaker,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    width: int = 4,
    penalty: float = 1.0,
    best: int = 1,
    sources: Sequence[Ids] | None = None,
    eos: Collection[int] = (),
    banned: Collection[int] = (),
    early: bool = True,
    cached: bool = True,
    patience: float = 0.0,
) -> list[Found]:
    """The `best` texts of at most `most` tokens (or each its own) behind each prompt, of the beams of a given width.

    A sentence is done as soon as no beginning that is left can come among its best: a score only falls, so none gets
    above what it has, over the length that is kindest to it. With `early` off it goes on to `most`, to the same result.
    With a `patience` it is done too when width × patience texts have ended (Kasai et al. 2022, §2): many tools stop so,
    with 1; it takes fewer steps and may miss a better text.
    """
    if width < 1 or not 1 <= best <= width:
        raise UserError(
            f"width is {width} and best is {best}: a beam has 1 text or more, and gives at most all of them"
        )
    mosts = limits(most, len(prompts))
    if not math.isfinite(penalty):
        raise UserError(f"the length penalty is {penalty}, expected a number")
    in_range("patience", patience, 0, math.inf)
    if not prompts:
        return []
    sentences = [_Sentence(i) for i in range(len(prompts))]
    longest = max(map(len, prompts)) + max(mosts)
    writing = begin(model, prompts, sources, len(prompts) * width, longest, cached)
    alive: list[_Sentence | None] = list(sentences)
    running = torch.zeros(len(prompts), 1, dtype=torch.float64, device=writing.scores.device)
    never = torch.tensor(list(banned), dtype=torch.int64, device=running.device)
    for step in range(max(mosts)):
        ranked = _ranked(writing, running, (1 + max(len(eos), 1)) * width, never)
        rows: list[list[tuple[int, int, float]]] = []  # of each sentence: parent, token, score
        for i, sentence in enumerate(alive):
            rows.append([])
            if sentence is not None:
                end = mosts[sentence.number]
                rows[i] = _step(sentence, ranked[i], width, eos, step + 1, end, penalty)
                enough = max(best, round(width * patience)) if patience else math.inf
                if len(sentence.ended) >= enough or _done(
                    sentence, rows[i], best, width, step + 1, end, penalty, early
                ):
                    alive[i] = None
        left = [i for i, sentence in enumerate(alive) if sentence is not None]
        if not left:
            break
        kept = left if writing.spares(len(alive), len(left)) else list(range(len(alive)))
        parents, tokens, scores = [], [], []
        each = running.shape[1]
        for i in kept:
            filled = [*rows[i], *[(0, 0, -math.inf)] * (width - len(rows[i]))]
            parents += [i * each + parent for parent, _, _ in filled]
            tokens += [token for _, token, _ in filled]
            scores += [score for _, _, score in filled]
        alive = [alive[i] for i in kept]
        running = torch.tensor(scores, dtype=torch.float64, device=running.device).view(len(kept), width)
        same = parents == list(range(writing.scores.shape[0]))
        writing.go(torch.tensor(tokens, device=running.device), None if same else parents)
    return [Found(sentence.texts(best), sentence.nodes) for sentence in sentences]


def _ranked(writing: Writing, running: Tensor, number: int, banned: Tensor) -> list[list[tuple[int, int, float]]]:
    """The best candidates of each sentence, best first: which of its rows, which token, and the score with it."""
    chances, (sentences, each) = writing.scores.log_softmax(-1), running.shape
    values, tokens = highest(chances.index_fill_(1, banned, -math.inf), number)
    reached = running.unsqueeze(-1) + values.double().view(sentences, each, -1)
    best = reached.flatten(1).topk(min(number, reached[0].numel()))
    tokens = tokens.view(sentences, -1).gather(1, best.indices)
    rows = best.indices // values.shape[-1]
    return [list(zip(*parts)) for parts in zip(rows.tolist(), tokens.tolist(), best.values.tolist())]


def _step(
    sentence: _Sentence,
    ranked: list[tuple[int, int, float]],
    width: int,
    eos: Collection[int],
    length: int,
    most: int,
    penalty: float,
) -> list[tuple[int, int, float]]:
    """Set aside what ends, and say what goes on."""
    chosen: list[tuple[int, int, float]] = []
    nodes = []
    for rank, (parent, token, score) in enumerate(ranked):
        if score == -math.inf:
            break
        ends = token in eos
        if ends or length == most:
            if rank < width:
                insort(sentence.ended, (-score / length**penalty, sentence.add(parent, token, score), ends))
        elif len(chosen) < width:
            nodes.append(sentence.add(parent, token, score))
            chosen.append((parent, token, score))
    sentence.running = nodes
    return chosen


def _done(
    sentence: _Sentence,
    chosen: list[tuple[int, int, float]],
    best: int,
    width: int,
    length: int,
    most: int,
    penalty: float,
    early: bool,
) -> bool:
    """Whether nothing that goes on can come among the best; a beam of one is done with its first text: greedy."""
    if not chosen or (width == 1 and sentence.ended):
        return True
    if not early or len(sentence.ended) < best:
        return False
    kindest = most if penalty > 0 else length + 1
    return -sentence.ended[best - 1][0] >= chosen[0][2] / kindest**penalty
