"""What an objective hands to the trunk: a packed batch, and what is to be predicted where."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyseme.parts.layout import Layout

IGNORED = -100  # a target value that fills a fixed shape and never counts


@dataclass(frozen=True, eq=False)
class Targets:
    """The rows a term predicts and their true values.

    `rows` index tokens (or sequences, for a term about whole sequences); in two dimensions, the states of a line's
    rows are added. `count` is the number of values that count, known before the forward pass: the law of sums needs
    it. `weight` is the term's factor in the loss.
    """

    rows: Tensor  # int64 [n] or [n, k]
    values: Tensor  # int64 [n], IGNORED where it fills; float32 for numbers, there NaN fills
    count: int
    weight: float = 1.0

    def to(self, device: str | torch.device) -> Targets:
        rows, values = (t.to(device, non_blocking=True) for t in (self.rows, self.values))
        return Targets(rows, values, self.count, self.weight)


@dataclass(frozen=True, eq=False)
class Batch:
    """One micro-batch. `num_tokens` leaves filler out."""

    tokens: Tensor  # int64 [T]
    layout: Layout
    segments: Tensor | None = None  # int64 [T]
    targets: dict[str, Targets] = field(default_factory=dict)
    num_tokens: int = 0

    def to(self, device: str | torch.device) -> Batch:
        return Batch(
            self.tokens.to(device, non_blocking=True),
            self.layout.to(device),
            None if self.segments is None else self.segments.to(device, non_blocking=True),
            {name: target.to(device) for name, target in self.targets.items()},
            self.num_tokens,
        )
