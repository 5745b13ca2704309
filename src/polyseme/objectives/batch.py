"""What an objective hands to the trunk: a packed batch, and what is to be predicted where."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyseme.parts.layout import Layout, Source

IGNORED = -100  # a target value that fills a fixed shape and never counts


@dataclass(frozen=True, eq=False)
class Targets:
    """The rows a term predicts and their true values.

    `rows` index tokens (or sequences, for a term about whole sequences). `count` is the number of values that
    count, known before the forward pass: the law of sums needs it. `smoothing` is the share of each truth that goes
    to all values evenly, in training.
    """

    rows: Tensor  # int64 [n]
    values: Tensor  # int64 [n], IGNORED where it fills; float for regression
    count: int
    smoothing: float = 0.0

    def to(self, device: str | torch.device) -> Targets:
        rows, values = (t.to(device, non_blocking=True) for t in (self.rows, self.values))
        return Targets(rows, values, self.count, self.smoothing)


@dataclass(frozen=True, eq=False)
class Batch:
    """One micro-batch. `num_tokens` leaves filler out, and counts the tokens of a source too."""

    tokens: Tensor  # int64 [T]
    layout: Layout
    segments: Tensor | None = None  # int64 [T]
    targets: dict[str, Targets] = field(default_factory=dict)
    num_tokens: int = 0
    source: Source | None = None  # what the tokens are a target of: ids, one sequence for each

    def to(self, device: str | torch.device) -> Batch:
        return Batch(
            self.tokens.to(device, non_blocking=True),
            self.layout.to(device),
            None if self.segments is None else self.segments.to(device, non_blocking=True),
            {name: target.to(device) for name, target in self.targets.items()},
            self.num_tokens,
            None if self.source is None else self.source.to(device),
        )
