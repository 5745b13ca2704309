"""Multi-head attention: projections around `attend`."""

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
    num_heads: int
    dropout: float = 0.0  # on the probabilities
    bias: bool = True
    causal: bool = False
    window: int = 0  # how far a query sees, on each side or back; 0 is all
    rope_theta: float = 0.0  # the base of the wave lengths of rotary positions; 0 is none
    head_dim: int = 0  # 0 is dim / num_heads
    scale: float = 0.0  # on the scores; 0 is 1 / √head_dim

    def __post_init__(self) -> None:
        check_in_range("attention dropout", self.dropout, 0, 1)
        self.check_range(0, math.inf, "window", "rope_theta", "head_dim", "scale")

    def build(self, dim: int) -> Attention:
        if self.num_heads < 1 or (dim % self.num_heads and not self.head_dim):
            raise ConfigError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        if self.rope_theta and self.inner_dim(dim) // self.num_heads % 2:
            raise ConfigError(f"rotary positions turn pairs, and a head has {dim // self.num_heads} dimensions")
        return Attention(self, dim)

    def inner_dim(self, dim: int) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim or dim


class Attention(nn.Module):
    """Attention of x to itself or to a source; query, key and value are one matrix `qkv`."""

    fused_count: ClassVar = {"qkv": 3}  # how many matrices are one

    def __init__(self, config: AttentionConfig, dim: int):
        super().__init__()
        self.config, self.dim, self.inner_dim = config, dim, config.inner_dim(dim)
        self.qkv = nn.Linear(dim, 3 * self.inner_dim, bias=config.bias)
        self.out = nn.Linear(self.inner_dim, dim, bias=config.bias)

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values, [T, 3, heads, head_dim]; not turned yet."""
        return self.qkv(x).view(x.shape[0], 3, self.config.num_heads, -1)

    def _project_rotary(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        qkv = self.project(x)
        return (apply_rotary(qkv, positions, self.config.rope_theta) if self.config.rope_theta else qkv).unbind(1)

    def project_cross(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x; keys and values of the source."""
        q = F.linear(x, *self._weight_slice(0, self.inner_dim)).view(len(x), self.config.num_heads, -1)
        return q, *self.project_kv(source)

    def project_kv(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source."""
        k, v = (
            F.linear(source, *self._weight_slice(self.inner_dim, 3 * self.inner_dim))
            .view(len(source), 2, self.config.num_heads, -1)
            .unbind(1)
        )
        return k, v

    def _weight_slice(self, start: int, end: int) -> tuple[Tensor, Tensor | None]:
        """A part of the one matrix of queries, keys and values."""
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
        """Of x to itself, and to what is remembered."""
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
        """Of x to all of its source, whose keys and values a cache may have kept."""
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
        q, k, _ = self.project_cross(x, source.values)
        return attention_weights(q, k, layout, source.layout, score_modifier=self.score_modifier())

    @property
    def dropout(self) -> float:
        return self.config.dropout if self.training else 0.0

    def score_modifier(self, position_info: PositionInfo | None = None) -> ScoreModifier:
        if position_info is None and not self.config.scale:
            return DEFAULT_SCORE_MODIFIER
        assert not isinstance(position_info, RelativePositionContext), (
            "a stack with relative positions needs relative attention"
        )
        return ScoreModifier(self.config.scale or None, position_info)

    def weights(self, x: Tensor, layout: PackedLayout, position_info: PositionInfo | None = None) -> list[Tensor]:
        q, k, _ = self._project_rotary(x, layout.positions)
        return attention_weights(
            q, k, layout, layout, self.config.causal, self.config.window, self.score_modifier(position_info)
        )
