"""Multi-head attention: projections around `attend`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec, in_range
from polyseme.errors import UserError
from polyseme.nn.attention.attend import PLAIN, Scoring, attend, attend_self, attention_weights
from polyseme.nn.attention.relative import Relations, Shared
from polyseme.nn.layers.positions import rotate
from polyseme.nn.memory import Cache
from polyseme.nn.packing import Layout, Source


@dataclass(frozen=True)
class AttentionSpec(Spec):
    num_heads: int
    dropout: float = 0.0  # on the probabilities
    bias: bool = True
    causal: bool = False
    window: int = 0  # how far a query sees, on each side or back; 0 is all
    rotary: float = 0.0  # the base of the wave lengths of rotary positions; 0 is none
    head_dim: int = 0  # 0 is dim / num_heads
    scale: float = 0.0  # on the scores; 0 is 1 / √head_dim

    def __post_init__(self) -> None:
        in_range("attention dropout", self.dropout, 0, 1)
        self.within(0, math.inf, "window", "rotary", "head_dim", "scale")

    def build(self, dim: int) -> Attention:
        if self.num_heads < 1 or (dim % self.num_heads and not self.head_dim):
            raise UserError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        if self.rotary and self.width(dim) // self.num_heads % 2:
            raise UserError(f"rotary positions turn pairs, and a head has {dim // self.num_heads} dimensions")
        return Attention(self, dim)

    def width(self, dim: int) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim or dim


class Attention(nn.Module):
    """Attention of x to itself or to a source; query, key and value are one matrix `qkv`."""

    stacked: ClassVar = {"qkv": 3}  # how many matrices are one

    def __init__(self, spec: AttentionSpec, dim: int):
        super().__init__()
        self.spec, self.dim, self.width = spec, dim, spec.width(dim)
        self.qkv = nn.Linear(dim, 3 * self.width, bias=spec.bias)
        self.out = nn.Linear(self.width, dim, bias=spec.bias)

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values, [T, 3, heads, head_dim]; not turned yet."""
        return self.qkv(x).view(x.shape[0], 3, self.spec.num_heads, -1)

    def _turned(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        qkv = self.project(x)
        return (rotate(qkv, positions, self.spec.rotary) if self.spec.rotary else qkv).unbind(1)

    def project_apart(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x; keys and values of the source."""
        q = F.linear(x, *self._rows(0, self.width)).view(len(x), self.spec.num_heads, -1)
        return q, *self.keys(source)

    def keys(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source."""
        k, v = (
            F.linear(source, *self._rows(self.width, 3 * self.width))
            .view(len(source), 2, self.spec.num_heads, -1)
            .unbind(1)
        )
        return k, v

    def _rows(self, begin: int, end: int) -> tuple[Tensor, Tensor | None]:
        """A part of the one matrix of queries, keys and values."""
        bias = self.qkv.bias
        return self.qkv.weight[begin:end], None if bias is None else bias[begin:end]

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        positions: Tensor,
        cache: Cache | None = None,
        relations: Shared | None = None,
    ) -> Tensor:
        """Of x to itself, and to what is remembered."""
        spec, dropout, scoring = self.spec, self.dropout, self.scoring(relations)
        if cache is None:
            found = attend_self(self.project(x), layout, spec.causal, dropout, spec.window, scoring, spec.rotary)
            return self.out(found.flatten(1))
        q, k, v = self._turned(x, positions)
        k, v, k_layout = cache.extend(k, v)
        return self.out(attend(q, k, v, layout, k_layout, spec.causal, dropout, spec.window, scoring).flatten(1))

    def across(self, x: Tensor, layout: Layout, source: Source | None, cache: Cache | None = None) -> Tensor:
        """Of x to all of its source, whose keys and values a cache may have kept."""
        if cache is not None and cache.crossed is not None:
            q = F.linear(x, *self._rows(0, self.width)).view(len(x), self.spec.num_heads, -1)
            k, v, q_layout, room = cache.crossed
            found = attend(q, k, v, q_layout, room, scoring=self.scoring())
        else:
            assert source is not None, "cross attention needs a source"
            q, k, v = self.project_apart(x, source.values)
            found = attend(q, k, v, layout, source.layout, dropout=self.dropout, scoring=self.scoring())
        return self.out(found.flatten(1))

    def across_weights(self, x: Tensor, layout: Layout, source: Source) -> list[Tensor]:
        q, k, _ = self.project_apart(x, source.values)
        return attention_weights(q, k, layout, source.layout, scoring=self.scoring())

    @property
    def dropout(self) -> float:
        return self.spec.dropout if self.training else 0.0

    def scoring(self, bias: Shared | None = None) -> Scoring:
        if bias is None and not self.spec.scale:
            return PLAIN
        assert not isinstance(bias, Relations), "a stack with relations needs relative attention"
        return Scoring(self.spec.scale or None, bias)

    def weights(self, x: Tensor, layout: Layout, relations: Shared | None = None) -> list[Tensor]:
        q, k, _ = self._turned(x, layout.positions)
        return attention_weights(q, k, layout, layout, self.spec.causal, self.spec.window, self.scoring(relations))
