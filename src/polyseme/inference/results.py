"""What language models answer: how likely a text is, a guess, the likeliest of several."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """How likely a text is. For a masked model each token is predicted from all others (pseudo-perplexity)."""

    log_probability: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / max(self.tokens, 1))


@dataclass(frozen=True)
class Guess:
    """One way to fill a mask."""

    piece: str
    probability: float


@dataclass(frozen=True)
class LastWord:
    """How likely a text's last word is, and whether each token of it was the likeliest (what greedy decoding says).

    `cut` tokens of the context were left out, from its beginning, because the model reads no more.
    """

    score: Score
    right: bool
    cut: int


@dataclass(frozen=True)
class Choice:
    """The likeliest of several answers: its number, what each is worth as compared, and what that rests on."""

    best: int
    values: tuple[float, ...]
    scores: tuple[Score, ...]
