"""The interface of all heads: the states they read, their predictions, their loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.heads.crf import CRF
from polyseme.nn.packing import PackedLayout

IGNORE_INDEX = -100  # label of rows without a loss, which only fill up a fixed shape; as in torch
# every state; the trunk's pooled vector; the first token's state; the mean state; pooled vector, maximum and mean
HeadPooling = Literal["tokens", "pooled", "first", "mean", "concat"]
PoolFn = Callable[[Tensor, PackedLayout], Tensor]


class RowSelection(NamedTuple):
    """The rows of the hidden states that a head reads, and the layout and rows to call it with on these alone."""

    state_rows: Tensor  # int64 [n]
    layout: PackedLayout
    rows: Tensor


class HeadConfig(Config, ABC):
    """Base of the configs of all heads."""

    pooling: HeadPooling = "tokens"  # the states that the head reads

    @property
    def is_published(self) -> bool:
        """Whether `transformers` has heads of this kind."""
        return True

    def token_params(self, dim: int) -> int:
        """Number of matrix weights that every token is multiplied with, whichever rows are predicted."""
        return 0

    @abstractmethod
    def matmul_params(self, dim: int) -> int:
        """Number of matrix weights that a row is multiplied with, on a trunk of this size."""

    @abstractmethod
    def build(self, dim: int) -> Head:
        """Create the module for a trunk of this size."""


class Head(nn.Module):
    """Predictions from hidden states; `forward` takes the states it selects and the trunk's token embeddings."""

    needs_host_sync: bool = False  # whether it reads tensors on the host, so that CUDA graphs cannot capture it

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.crf: CRF | None = None  # decodes the labels of a sequence together

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Any:
        """Select the states the head reads, of every token or sequence or of `rows`.

        Rows of several columns, [n, columns], give the sum of their states.
        """
        pooling = self.config.pooling
        states = pool(hidden, layout) if pooling in ("pooled", "concat") else hidden
        if pooling == "first":
            states = hidden.index_select(0, layout.first_indices)
        if pooling == "mean":
            states = layout.mean_pool(hidden)
        if pooling == "concat":  # Howard and Ruder 2018, §3.3
            states = torch.cat([states, layout.max_pool(hidden), layout.mean_pool(hidden)], dim=1)
        if rows is None:
            return states
        states = states.index_select(0, rows.flatten())
        return states if rows.ndim == 1 else states.unflatten(0, rows.shape).sum(1)

    def select_rows(self, layout: PackedLayout, rows: Tensor, pooling: str) -> RowSelection | None:
        """Return the rows of the states that it reads to predict `rows`, given the trunk's pooling; None if any."""
        return None

    def loss(self, states: Any, token_embeddings: Any, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Return the summed cross entropy, with label smoothing (Szegedy et al. 2016), without `IGNORE_INDEX`."""
        logits = self(states, token_embeddings).float()
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
