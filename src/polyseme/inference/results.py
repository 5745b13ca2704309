"""What language models answer: how likely a text is, a guess, the likeliest of several."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TextScore:
    """How likely a text is. For a masked model each token is predicted from all others (pseudo-perplexity)."""

    log_prob: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_prob / max(self.num_tokens, 1))


@dataclass(frozen=True)
class MaskPrediction:
    """One way to fill a mask."""

    token: str
    probability: float


@dataclass(frozen=True)
class LastWordScore:
    """How likely a text's last word is, and whether each token of it was the likeliest (what greedy decoding says).

    `num_truncated` tokens of the context were left out, from its beginning, because the model reads no more.
    """

    score: TextScore
    is_correct: bool
    num_truncated: int


@dataclass(frozen=True)
class ChoiceResult:
    """The likeliest of several answers: its number, what each is worth as compared, and what that rests on."""

    best_index: int
    normalized_scores: tuple[float, ...]
    scores: tuple[TextScore, ...]
