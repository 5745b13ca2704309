"""Answers that are known beforehand: how likely is each, and which stretch of a text is written if nothing else may be.

Free writing may end in what is no answer at all. Where the answers are few, the probability of each of them, whole and
with its end mark, is exact, costs few steps, and gives all of them in order; the stretches of a text are too many for
that, so there every token is the likeliest of those that a stretch can go on with (greedy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from polyseme.generation.session import Ids, Writing, begin
from polyseme.nn.model import Model

Beginning = tuple[int, ...]


@torch.inference_mode()
def answer_chances(
    model: Model,
    prompts: Sequence[Ids],
    answers: Sequence[Sequence[Ids]],
    sources: Sequence[Ids] | None = None,
    cached: bool = True,
) -> list[np.ndarray]:
    """The log-probability of each answer behind its prompt, float64; what answers begin with alike is read once."""
    given = [[tuple(int(token) for token in answer) for answer in each] for each in answers]
    if not all(answer for each in given for answer in each) or not all(given):
        raise ValueError("every prompt has answers, and an answer has tokens")
    levels = [[_beginnings(each, depth) for each in given] for depth in range(max(map(len, _flat(given))))]
    most = max(len(each) for level in levels for each in level)
    longest = max(map(len, prompts)) + len(levels) - 1
    writing = begin(model, prompts, sources, len(prompts) * most, longest, cached)
    sums = [np.zeros(len(each)) for each in given]
    for depth, level in enumerate(levels):
        each = len(writing.scores) // len(prompts)
        rows = [{beginning: i * each + k for k, beginning in enumerate(own)} for i, own in enumerate(level)]
        asked = [(i, k, a) for i, own in enumerate(given) for k, a in enumerate(own) if len(a) > depth]
        chances = _chances(writing, [rows[i][a[:depth]] for i, _, a in asked], [a[depth] for _, _, a in asked])
        for (i, k, _), chance in zip(asked, chances):
            sums[i][k] += chance
        if depth + 1 < len(levels):
            _go_on(writing, rows, levels[depth + 1])
    return sums


def _beginnings(answers: Sequence[Beginning], depth: int) -> list[Beginning]:
    """The first `depth` tokens of those that go on behind them."""
    return list(dict.fromkeys(answer[:depth] for answer in answers if len(answer) > depth))


def _go_on(writing: Writing, rows: Sequence[dict[Beginning, int]], level: Sequence[list[Beginning]]) -> None:
    """Read the last token of each beginning; a prompt with fewer than others, or none, gets rows nobody asks."""
    most, each = max(map(len, level)), len(writing.scores) // len(rows)
    chosen, tokens = [], []
    for i, (before, own) in enumerate(zip(rows, level)):
        found = [(before[beginning[:-1]], beginning[-1]) for beginning in own]
        found += [(i * each, 0)] * (most - len(own))
        chosen += [row for row, _ in found]
        tokens += [token for _, token in found]
    same = chosen == list(range(len(writing.scores)))
    writing.go(torch.tensor(tokens, device=writing.scores.device), None if same else chosen)


class Stretch(NamedTuple):
    """Tokens of a text from the first to the last of them, how likely they are, and how likely it is to write none."""

    first: int
    last: int
    score: float
    none: float


@torch.inference_mode()
def stretches(
    model: Model,
    prompts: Sequence[Ids],
    texts: Sequence[Ids],
    most: int,
    end: int,
    sources: Sequence[Ids] | None = None,
    cached: bool = True,
) -> list[Stretch]:
    """Of each text, which is not empty, a stretch of at most `most` tokens: token by token the likeliest that occurs
    there behind those before it, or the end mark. One that occurs several times is the first."""
    held = [np.asarray(text, dtype=np.int64) for text in texts]
    writing = begin(model, prompts, sources, len(prompts), max(map(len, prompts)) + most, cached)
    none = _chances(writing, list(range(len(prompts))), [end] * len(prompts))
    scores, sizes = np.zeros(len(prompts)), [0] * len(prompts)
    places = [np.arange(len(text)) for text in held]  # where the stretch so far occurs: behind its last token
    alive = list(range(len(prompts)))
    for step in range(most + 1):
        options = []
        for i in alive:
            inside = places[i][places[i] < len(held[i])]
            options.append([*dict.fromkeys(held[i][inside].tolist() if step < most else []), *([end] if step else [])])
        rows = [row for row, found in enumerate(options) for _ in found]
        chances = iter(_chances(writing, rows, [token for found in options for token in found]))
        left, tokens = [], []
        for row, (i, found) in enumerate(zip(alive, options)):
            chance, token = max(((next(chances), token) for token in found), key=lambda pair: pair[0])
            scores[i] += chance
            if token != end or not step:
                inside = places[i][places[i] < len(held[i])]
                places[i], sizes[i] = inside[held[i][inside] == token] + 1, sizes[i] + 1
                left.append(row)
                tokens.append(token)
        if not left:
            break
        same = len(left) == len(alive)
        alive = [alive[row] for row in left]
        writing.go(torch.tensor(tokens, device=writing.scores.device), None if same else left)
    ends = [int(found[0]) for found in places]
    return [Stretch(e - n, e - 1, float(s), float(z)) for e, n, s, z in zip(ends, sizes, scores, none)]


def _chances(writing: Writing, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Log-probabilities of tokens behind rows; one wait for a GPU."""
    scores = writing.scores.double()
    where = torch.tensor([list(rows), list(tokens)], device=scores.device)
    return (scores[where[0], where[1]] - scores.logsumexp(-1).index_select(0, where[0])).tolist()


def _flat(groups: Sequence[Sequence[Beginning]]) -> list[Beginning]:
    return [answer for group in groups for answer in group]
