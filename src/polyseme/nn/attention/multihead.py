"""Multi-head attention: the projections around `attend`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.errors import ConfigError
from polyseme.nn.attention.attend import DEFAULT_SCORE_MODIFIER, ScoreModifier, attend, attend_self, attention_weights
from polyseme.nn.attention.relative import PositionInfo, RelativePositionContext
from polyseme.nn.layers.positions import apply_rotary
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import EncoderInput, PackedLayout


@dataclass(frozen=True)
class AttentionConfig(Config):
    """Multi-head attention (Vaswani et al. 2017, §3.2)."""

    num_heads: int
    dropout: float = 0.0  # of the probabilities
    bias: bool = True
    causal: bool = False
    window: int = 0  # largest distance that is attended to, on each side; 0 means no limit
    rope_theta: float = 0.0  # base of the wavelengths of rotary positions; 0 means none
    head_dim: int = 0  # 0 means dim / num_heads
    scale: float = 0.0  # factor on the scores; 0 means 1 / √head_dim

    def __post_init__(self) -> None:
        check_in_range("attention dropout", self.dropout, 0, 1)
        self.check_range(0, math.inf, "window", "rope_theta", "head_dim", "scale")

    def build(self, dim: int) -> Attention:
        """Build the module."""
        if self.num_heads < 1 or (dim % self.num_heads and not self.head_dim):
            raise ConfigError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        if self.rope_theta and (head_dim := self.inner_dim(dim) // self.num_heads) % 2:
            raise ConfigError(f"the head dimension is {head_dim}; rotary positions need an even one")
        return Attention(self, dim)

    def inner_dim(self, dim: int) -> int:
        """Return the size of all heads together."""
        return self.num_heads * self.head_dim or dim


class Attention(nn.Module):
    """Multi-head self- or cross-attention; the query, key and value projections are one matrix `qkv`."""

    fused_count: ClassVar = {"qkv": 3}  # number of matrices fused into one

    def __init__(self, config: AttentionConfig, dim: int):
        super().__init__()
        self.config, self.dim, self.inner_dim = config, dim, config.inner_dim(dim)
        self.qkv = nn.Linear(dim, 3 * self.inner_dim, bias=config.bias)
        self.out = nn.Linear(self.inner_dim, dim, bias=config.bias)

    def project(self, x: Tensor) -> Tensor:
        """Return fused queries, keys and values [T, 3, heads, head_dim], before rotary positions."""
        return self.qkv(x).view(x.shape[0], 3, self.config.num_heads, -1)

    def _project_rotary(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        qkv = self.project(x)
        return (apply_rotary(qkv, positions, self.config.rope_theta) if self.config.rope_theta else qkv).unbind(1)

    def project_cross(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of x, keys and values of the source, each [rows, heads, head_dim]."""
        q = F.linear(x, *self._weight_slice(0, self.inner_dim)).view(len(x), self.config.num_heads, -1)
        return q, *self.project_kv(source)

    def project_kv(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of a source, each [rows, heads, head_dim]."""
        k, v = (
            F.linear(source, *self._weight_slice(self.inner_dim, 3 * self.inner_dim))
            .view(len(source), 2, self.config.num_heads, -1)
            .unbind(1)
        )
        return k, v

    def _weight_slice(self, start: int, end: int) -> tuple[Tensor, Tensor | None]:
        """Return rows of the fused matrix and of its bias."""
        bias = self.qkv.bias
        return self.qkv.weight[start:end], None if bias is None else bias[start:end]

    def forward(
        self,
        x: Tensor,
        layout: PackedLayout,
        positions: Tensor,
        cache: LayerCache | None = None,
        position_info: PositionInfo | None = None,
    ) -> Tensor:
        """Attend from x [T, dim] to itself and, with a cache, to earlier tokens."""
        config, dropout, score_modifier = self.config, self.dropout, self.score_modifier(position_info)
        if cache is None:
            attended = attend_self(
                self.project(x), layout, config.causal, dropout, config.window, score_modifier, config.rope_theta
            )
            return self.out(attended.flatten(1))
        q, k, v = self._project_rotary(x, positions)
        k, v, k_layout = cache.extend(k, v)
        return self.out(
            attend(q, k, v, layout, k_layout, config.causal, dropout, config.window, score_modifier).flatten(1)
        )

    def cross_attend(
        self, x: Tensor, layout: PackedLayout, source: EncoderInput | None, cache: LayerCache | None = None
    ) -> Tensor:
        """Attend from x to its source; the keys and values of the source may come from the cache."""
        if cache is not None and cache.cross_kv is not None:
            q = F.linear(x, *self._weight_slice(0, self.inner_dim)).view(len(x), self.config.num_heads, -1)
            k, v, q_layout, cache_layout = cache.cross_kv
            attended = attend(q, k, v, q_layout, cache_layout, score_modifier=self.score_modifier())
        else:
            assert source is not None, "cross attention needs a source"
            q, k, v = self.project_cross(x, source.values)
            attended = attend(
                q, k, v, layout, source.layout, dropout=self.dropout, score_modifier=self.score_modifier()
            )
        return self.out(attended.flatten(1))

    def cross_weights(self, x: Tensor, layout: PackedLayout, source: EncoderInput) -> list[Tensor]:
        """Return the probabilities of `cross_attend`, [heads, queries, keys] for each sequence."""
        q, k, _ = self.project_cross(x, source.values)
        return attention_weights(q, k, layout, source.layout, score_modifier=self.score_modifier())

    @property
    def dropout(self) -> float:
        """Dropout probability in the current mode: 0 outside training."""
        return self.config.dropout if self.training else 0.0

    def score_modifier(self, position_info: PositionInfo | None = None) -> ScoreModifier:
        """Return the modifier for this layer's scale and the stack's score bias."""
        if position_info is None and not self.config.scale:
            return DEFAULT_SCORE_MODIFIER
        assert not isinstance(position_info, RelativePositionContext), (
            "a stack with relative positions needs RelativeAttention"
        )
        return ScoreModifier(self.config.scale or None, position_info)

    def weights(self, x: Tensor, layout: PackedLayout, position_info: PositionInfo | None = None) -> list[Tensor]:
        """Return the probabilities of self-attention, [heads, queries, keys] for each sequence."""
        q, k, _ = self._project_rotary(x, layout.positions)
        return attention_weights(
            q, k, layout, layout, self.config.causal, self.config.window, self.score_modifier(position_info)
        )
