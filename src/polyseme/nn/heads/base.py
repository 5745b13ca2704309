"""What all heads share: which states they read, and what their predictions cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.crf import Crf
from polyseme.nn.packing import Layout

# every state; what the trunk's pooler gives; the first token's own; what the pooler gives, the greatest and the mean
Reads = Literal["tokens", "pooled", "first", "concat"]
Pool = Callable[[Tensor, Layout], Tensor]


class Head(nn.Module):
    """Hidden states to predictions; `forward` takes the states it reads and the trunk's table of token vectors."""

    reads: Reads = "tokens"
    asks: bool = False  # whether the host has to look at values on the way, so that no recording of its kernels serves

    def __init__(self) -> None:
        super().__init__()
        self.crf: Crf | None = None  # what binds the predictions of a sequence together, if they do not stand alone

    def states(self, last: Tensor, layout: Layout, rows: Tensor | None, pool: Pool) -> Any:
        """What it reads of the trunk's last states: of every token or sequence, or of the `rows` asked for.

        The states of several columns, [n, columns], are added.
        """
        states = pool(last, layout) if self.reads == "pooled" else last
        if self.reads == "first":
            states = last.index_select(0, layout.first)
        if self.reads == "concat":  # Howard and Ruder 2018, §3.3
            states = torch.cat([pool(last, layout), layout.max(last), layout.mean(last)], dim=1)
        if rows is None:
            return states
        found: Tensor = states.index_select(0, rows.flatten())
        return found if rows.ndim == 1 else found.unflatten(0, rows.shape).sum(1)

    def loss(self, states: Any, table: Any, values: Tensor, ignored: int, smoothing: float = 0.0) -> Tensor:
        """The summed cross entropy; `smoothing` moves that share of the truth evenly over all (Szegedy et al. 2016)."""
        scores = self(states, table).float()
        return F.cross_entropy(scores, values, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)
