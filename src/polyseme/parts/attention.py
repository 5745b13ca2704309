"""Multi-head attention: projections around `attend`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from polyseme.errors import UserError
from polyseme.parts.attend import attend, attend_self, attention_weights
from polyseme.parts.layout import Layout
from polyseme.parts.memory import Cache
from polyseme.parts.positions import rotate
from polyseme.parts.spec import Spec, in_range


@dataclass(frozen=True)
class AttentionSpec(Spec):
    num_heads: int
    dropout: float = 0.0  # on the probabilities
    bias: bool = True
    causal: bool = False
    window: int = 0  # how far a query sees, on each side or back; 0 is all
    rotary: float = 0.0  # the base of the wave lengths of rotary positions; 0 is none

    def __post_init__(self) -> None:
        in_range("attention dropout", self.dropout, 0, 1)
        in_range("window", self.window, 0, math.inf)
        in_range("rotary", self.rotary, 0, math.inf)

    def build(self, dim: int) -> Attention:
        if self.num_heads < 1 or dim % self.num_heads:
            raise UserError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        if self.rotary and dim // self.num_heads % 2:
            raise UserError(f"rotary positions turn pairs, and a head has {dim // self.num_heads} dimensions")
        return Attention(self, dim)


class Attention(nn.Module):
    """Self-attention; query, key and value are one matrix `qkv`."""

    stacked: ClassVar = {"qkv": 3}  # how many matrices are one

    def __init__(self, spec: AttentionSpec, dim: int):
        super().__init__()
        self.spec, self.dim = spec, dim
        self.qkv = nn.Linear(dim, 3 * dim, bias=spec.bias)
        self.out = nn.Linear(dim, dim, bias=spec.bias)

    def project(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries, keys and values, [T, 3, heads, head_dim]."""
        qkv: Tensor = self.qkv(x).view(x.shape[0], 3, self.spec.num_heads, -1)
        return rotate(qkv, positions, self.spec.rotary) if self.spec.rotary else qkv

    def forward(self, x: Tensor, layout: Layout, positions: Tensor, cache: Cache | None = None) -> Tensor:
        spec, dropout = self.spec, self.spec.dropout if self.training else 0.0
        qkv = self.project(x, positions)
        if cache is None:
            return self.out(attend_self(qkv, layout, spec.causal, dropout, spec.window).flatten(1))
        q, k, v = qkv.unbind(1)
        k, v, k_layout = cache.extend(k, v)
        return self.out(attend(q, k, v, layout, k_layout, spec.causal, dropout, spec.window).flatten(1))

    def weights(self, x: Tensor, layout: Layout) -> list[Tensor]:
        q, k, _ = self.project(x, layout.positions).unbind(1)
        return attention_weights(q, k, layout, layout, self.spec.causal, self.spec.window)
