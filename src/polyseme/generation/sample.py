"""One token after another: the likeliest (greedy), or drawn from what the model thinks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.generation.session import Ids, Speaker, begin
from polyseme.nn.model import Model
from polyseme.rng import CONTINUE, draw, uniform
from polyseme.rng import keys as keys_of


@dataclass(frozen=True)
class Sampling(Spec):
    """How a token is chosen. Scores go through these in turn; at temperature 0 the likeliest is taken.

    `repetition` above 1 makes what stands in the text already less likely (Keskar et al. 2019, §4.1); `top_k` leaves
    the k likeliest, 0 is all; `top_p` the fewest that have this share together (Holtzman et al. 2020, §3.1).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.within(0, math.inf, "temperature", "top_k")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}, expected a share above 0 and up to 1")
        if not 0 < self.repetition < math.inf:
            raise UserError(f"repetition is {self.repetition}, expected a number above 0")


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Written:
    """What was written behind a prompt, without the end mark; `score` is its log-probability, the end mark's too.

    `finished` says whether the model ended it. `value` is what a search compares, the score by length.
    """

    tokens: tuple[int, ...]
    score: float
    finished: bool
    value: float = 0.0


class Token(NamedTuple):
    """One step of one sequence: its number, the token, and its log-probability."""

    sequence: int
    token: int
    score: float


def limits(most: int | Sequence[int], number: int) -> list[int]:
    """How many tokens each of a number of sequences may get."""
    found = [most] * max(number, 1) if isinstance(most, int) else list(most)
    if min(found, default=1) < 1:
        raise UserError(f"the number of tokens to write is {min(found)}, which is less than 1")
    return found


@torch.inference_mode()
def stream(
    model: Model | Speaker,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    how: Sampling = GREEDY,
    sources: Sequence[Ids] | None = None,
    eos: Collection[int] = (),
    banned: Collection[int] = (),
    copies: Sequence[int] | None = None,
    cached: bool = True,
) -> Iterator[list[Token]]:
    """Each step's tokens as they come, at most `most` for each prompt, or each its own; the end mark is one of them.

    What is drawn for a sequence depends on the seed, its source and prompt, its number among `copies` of them, and the
    step: not on the batch.
    """
    mosts = limits(most, len(prompts))
    if not prompts:
        return
    longest = max(map(len, prompts)) + max(mosts)
    writing = begin(model, prompts, sources, len(prompts), longest, cached)
    size = writing.scores.shape[-1]
    alive: list[int | None] = list(range(len(prompts)))  # which sequence is in which row; None if it has ended
    choose = _Choice(how, prompts, sources, copies or [0] * len(prompts), size, writing.scores.device)
    never = _ids(banned, writing.scores)
    for step in range(max(mosts)):
        scores = writing.scores
        total = scores.log_softmax(-1)
        tokens = choose(scores.index_fill_(1, never, -math.inf), alive, step)
        chances = total.gather(1, tokens[:, None])[:, 0]
        numbers, values = torch.stack([tokens.double(), chances.double()]).tolist()  # one wait for a GPU
        found = [(n, int(token), score) for n, token, score in zip(alive, numbers, values)]
        yield [Token(n, t, s) for n, t, s in found if n is not None]
        alive = [None if n is None or token in eos or step + 1 == mosts[n] else n for n, token, _ in found]
        left = sum(n is not None for n in alive)
        if not left:
            return
        kept = None
        if writing.spares(len(alive), left):
            kept = _closed_up([n is not None for n in alive])
            alive, tokens = [alive[row] for row in kept], tokens[kept]
        writing.go(tokens, kept)


def sample(
    model: Model | Speaker,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    how: Sampling = GREEDY,
    sources: Sequence[Ids] | None = None,
    eos: Collection[int] = (),
    banned: Collection[int] = (),
    copies: Sequence[int] | None = None,
    cached: bool = True,
) -> list[Written]:
    """What `stream` gives, whole."""
    tokens: list[list[int]] = [[] for _ in prompts]
    scores = [0.0] * len(prompts)
    ended = [False] * len(prompts)
    for step in stream(model, prompts, most, how, sources, eos, banned, copies, cached):
        for n, token, score in step:
            scores[n] += score
            ended[n] = token in eos
            tokens[n] += [] if ended[n] else [token]
    return [Written(tuple(t), s, e, s) for t, s, e in zip(tokens, scores, ended)]


class _Choice:
    """Draws the tokens of a step; has in mind what each sequence holds, where that counts."""

    def __init__(
        self,
        how: Sampling,
        prompts: Sequence[Ids],
        sources: Sequence[Ids] | None,
        copies: Sequence[int],
        size: int,
        device: torch.device,
    ):
        self.how = how
        self.seen: Tensor | None = None
        if how.repetition != 1:
            self.seen = torch.zeros(len(prompts) + 1, size, dtype=torch.bool, device=device)  # the last: of those ended
            for row, ids in enumerate(prompts):
                self.seen[row, _ids(ids, self.seen)] = True
        texts = [(*(sources[i] if sources else ()), -1, *ids) for i, ids in enumerate(prompts)]
        self.keys = np.array([*(_key(how.seed, ids, copy) for ids, copy in zip(texts, copies)), 0], dtype=np.uint64)

    def __call__(self, scores: Tensor, alive: Sequence[int | None], step: int) -> Tensor:
        how = self.how
        numbers = [len(self.keys) - 1 if n is None else n for n in alive]
        adjusted = scores
        if self.seen is not None:
            seen = self.seen[_ids(numbers, scores)]
            lower = torch.where(scores > 0, scores / how.repetition, scores * how.repetition)
            adjusted = torch.where(seen, lower, scores)
        if not how.temperature:
            tokens = adjusted.argmax(-1)
        else:
            bits = draw(self.keys[numbers], np.full(len(numbers), step), CONTINUE)
            tokens = drawn(adjusted, how, torch.from_numpy(uniform(bits)).to(scores.device))
        if self.seen is not None:
            self.seen[_ids(numbers, scores), tokens] = True
        return tokens


def drawn(scores: Tensor, how: Sampling, chances: Tensor) -> Tensor:
    """A token for each row of scores, by a number from [0, 1) for each: where the sum of probabilities passes it."""
    shares = (scores.double() / how.temperature).softmax(-1)
    if 0 < how.top_k < shares.shape[-1]:
        least = shares.topk(how.top_k).values[:, -1:]
        shares = shares.where(shares >= least, 0)
    if how.top_p < 1:
        ranked = (shares / shares.sum(-1, keepdim=True)).sort(-1, descending=True).values
        kept = (ranked.cumsum(-1) - ranked < how.top_p).sum(-1, keepdim=True).clamp(min=1)
        least = ranked.gather(-1, kept - 1) * shares.sum(-1, keepdim=True)
        shares = shares.where(shares >= least * (1 - 1e-12), 0)
    sums = shares.cumsum(-1)
    found = torch.searchsorted(sums, (chances[:, None] * sums[:, -1:]), right=True)[:, 0]
    last = (shares > 0).long().mul_(torch.arange(shares.shape[-1], device=shares.device)).amax(-1)  # if rounding passes
    return torch.minimum(found, last)


def _key(seed: int, ids: Sequence[int], copy: int) -> np.uint64:
    """One 64-bit key of a text and its copy."""
    content = hashlib.blake2b(np.array(ids, dtype="<i8").tobytes(), digest_size=8).digest()
    return np.uint64(keys_of(seed, copy, np.frombuffer(content, dtype="<u8"))[0])


def _closed_up(alive: Sequence[bool]) -> list[int]:
    """Which row goes to each place when the dead ones fall away: those that can stay do, the last fill the gaps."""
    left = sum(alive)
    behind = [row for row in range(left, len(alive)) if alive[row]]
    return [row if alive[row] else behind.pop() for row in range(left)]


def _ids(ids: Collection[int], like: Tensor) -> Tensor:
    return torch.tensor(
        sorted(ids) if isinstance(ids, set | frozenset) else list(ids), dtype=torch.int64, device=like.device
    )
