"""How likely a text is: what every kind of language model answers."""

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
