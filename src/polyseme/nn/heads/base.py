"""What all heads share: which states they read, and what their predictions cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.heads.crf import CRF
from polyseme.nn.packing import PackedLayout

# every state; what the trunk's pooler gives; the first token's own; what the pooler gives, the greatest and the mean
HeadPooling = Literal["tokens", "pooled", "first", "concat"]
PoolFn = Callable[[Tensor, PackedLayout], Tensor]


class Head(nn.Module):
    """Hidden states to predictions; `forward` takes the states it reads and the trunk's table of token vectors."""

    pooling: HeadPooling = "tokens"
    needs_host_sync: bool = (
        False  # whether the host has to look at values on the way, so that no recording of its kernels serves
    )

    def __init__(self) -> None:
        super().__init__()
        self.crf: CRF | None = None  # what binds the predictions of a sequence together, if they do not stand alone

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Any:
        """What it reads of the trunk's last states: of every token or sequence, or of the `rows` asked for.

        The states of several columns, [n, columns], are added.
        """
        states = pool(hidden, layout) if self.pooling == "pooled" else hidden
        if self.pooling == "first":
            states = hidden.index_select(0, layout.first_indices)
        if self.pooling == "concat":  # Howard and Ruder 2018, §3.3
            states = torch.cat([pool(hidden, layout), layout.max_pool(hidden), layout.mean_pool(hidden)], dim=1)
        if rows is None:
            return states
        selected_states: Tensor = states.index_select(0, rows.flatten())
        return selected_states if rows.ndim == 1 else selected_states.unflatten(0, rows.shape).sum(1)

    def loss(
        self, states: Any, token_embeddings: Any, labels: Tensor, ignore_index: int, label_smoothing: float = 0.0
    ) -> Tensor:
        """The summed cross entropy; `label_smoothing` moves that share of the truth evenly over all (Szegedy et al.
        2016)."""
        logits = self(states, token_embeddings).float()
        return F.cross_entropy(
            logits, labels, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing
        )
