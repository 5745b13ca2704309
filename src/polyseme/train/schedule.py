"""How the learning rate moves over a run: plain functions of (step, total)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from polyseme.config import Spec


@dataclass(frozen=True)
class ScheduleSpec(Spec):
    """Warm-up, then a shape. `warmup` below 1 is a share of the run, else a number of steps.

    `linear` and `cosine` fall to `floor`; `inverse_sqrt` falls with √step (Vaswani et al. 2017, §5.3);
    `slanted` is ULMFiT's triangle (Howard and Ruder 2018, §3.2): its cut_frac is `warmup`, and `ratio` is how much
    smaller than its peak the lowest rate is.
    """

    shape: Literal["constant", "linear", "cosine", "inverse_sqrt", "slanted"] = "linear"
    warmup: float = 0.1
    floor: float = 0.0
    ratio: float = 32.0

    def __post_init__(self) -> None:
        self.within(1, math.inf, "ratio")

    def scale(self, step: int, total: int) -> float:
        """The factor on the peak rate at a step counted from 0."""
        warmup = max(int(self.warmup * total if self.warmup < 1 else self.warmup), 1)
        if self.shape == "slanted":
            part = step / warmup if step < warmup else 1 - (step - warmup) / max(total - warmup, 1)
            return (1 + part * (self.ratio - 1)) / self.ratio
        if step < warmup:
            return (step + 1) / warmup
        if self.shape == "constant":
            return 1.0
        if self.shape == "inverse_sqrt":
            return math.sqrt(warmup / (step + 1))
        done = min((step - warmup) / max(total - warmup, 1), 1.0)
        part = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.floor + (1 - self.floor) * part
