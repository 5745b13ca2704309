"""Head of the span boundary objective."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from polyseme.nn.heads.base import HeadConfig, PoolFn
from polyseme.nn.heads.lm import VocabHead
from polyseme.nn.layers.feedforward import ACTIVATIONS, ActivationName
from polyseme.nn.layers.norms import AnyNormConfig, NoNormConfig
from polyseme.nn.packing import PackedLayout


@dataclass(frozen=True)
class SpanBoundaryHeadConfig(HeadConfig):
    """Logits over the vocabulary for a token inside a span, from the states around the span and its offset in it.

    Two layers with activation and norm, then the token embeddings (Joshi et al. 2020, §3.2; `position_dim` as in their
    code).
    """

    vocab_size: int
    activation: ActivationName = "gelu"
    norm: AnyNormConfig = field(default_factory=NoNormConfig)
    max_span_offset: int = 20  # tokens deeper inside a span are not predicted
    position_dim: int = 200

    def matmul_params(self, dim: int) -> int:
        return (2 * dim + self.position_dim) * dim + dim * dim + dim * self.vocab_size

    def build(self, dim: int) -> SpanBoundaryHead:
        return SpanBoundaryHead(self, dim)


class SpanBoundaryHead(VocabHead):
    """Head of the span boundary objective."""

    def __init__(self, config: SpanBoundaryHeadConfig, dim: int):
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.position_embeddings = nn.Embedding(config.max_span_offset, config.position_dim)
        self.linear1, self.norm1 = nn.Linear(2 * dim + config.position_dim, dim), config.norm.build(dim)
        self.linear2, self.norm2 = nn.Linear(dim, dim), config.norm.build(dim)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def select_states(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None, pool: PoolFn) -> Tensor:
        """Concatenate boundary states and offsets; `rows` [n, 3] are the rows around the span and the offset."""
        if rows is None:
            raise ValueError("a span boundary head needs rows")
        *boundary_rows, offsets = rows.unbind(1)
        boundaries = [hidden.index_select(0, index) for index in boundary_rows]
        return torch.cat([*boundaries, self.position_embeddings(offsets)], dim=1)

    def transform(self, states: Tensor) -> Tensor:
        states = self.norm1(self.activation(self.linear1(states)))
        return self.norm2(self.activation(self.linear2(states)))
