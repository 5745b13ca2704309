"""Learning rate schedules."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from polyseme.config import Config
from polyseme.errors import ConfigError


@dataclass(frozen=True)
class ScheduleConfig(Config):
    """Linear warm-up, then a shape. `warmup` below 1 is a fraction of the run, otherwise a number of steps.

    `linear` and `cosine` decay to `min_lr_ratio`; `inverse_sqrt` decays with √step (Vaswani et al. 2017, §5.3), and so
    does `constant_inverse_sqrt`, which has a constant rate instead of the warm-up (T5; Raffel et al. 2020, §3.1.2);
    `slanted` is ULMFiT's slanted triangle (Howard and Ruder 2018, §3.2): its cut_frac is `warmup`, and `slanted_ratio`
    is the ratio of the highest to the lowest rate.
    """

    name_field: ClassVar[str] = "shape"
    shape: Literal["constant", "linear", "cosine", "inverse_sqrt", "constant_inverse_sqrt", "slanted"] = "linear"
    warmup: float = 0.1
    min_lr_ratio: float = 0.0
    slanted_ratio: float = 32.0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "slanted_ratio")
        self.check_range(0, math.inf, "warmup", "min_lr_ratio")
        if self.min_lr_ratio > 1:
            raise ConfigError(f"min_lr_ratio is {self.min_lr_ratio}, expected a value from 0 to 1")

    @property
    def depends_on_length(self) -> bool:
        """Whether the rate after the warm-up depends on the length of the run."""
        return self.shape not in ("constant", "inverse_sqrt", "constant_inverse_sqrt")

    def warmup_steps(self, total_steps: int) -> int:
        """Return the number of warm-up steps of a run."""
        return max(int(self.warmup * total_steps if self.warmup < 1 else self.warmup), 1)

    def lr_factor(self, step: int, total_steps: int) -> float:
        """Return the factor on the peak learning rate at a step, counted from 0."""
        warmup = self.warmup_steps(total_steps)
        if self.shape == "slanted":
            fraction = step / warmup if step < warmup else 1 - (step - warmup) / max(total_steps - warmup, 1)
            return (1 + fraction * (self.slanted_ratio - 1)) / self.slanted_ratio
        if step < warmup:
            return 1.0 if self.shape == "constant_inverse_sqrt" else (step + 1) / warmup
        if self.shape == "constant":
            return 1.0
        if self.shape in ("inverse_sqrt", "constant_inverse_sqrt"):
            return math.sqrt(warmup / (step + 1))
        progress = min((step - warmup) / max(total_steps - warmup, 1), 1.0)
        fraction = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * fraction


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of each parameter group to `lr` times its `lr_scale`."""
    for group in optimizer.param_groups:
        group_lr = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group_lr)
        else:
            group["lr"] = group_lr
