"""Multi-head attention: the projections around `attend`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.errors import ConfigError
from polyseme.nn.attention.attend import AttentionOptions, attend, attend_self, attention_weights
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

    def _options(self, position_info: PositionInfo) -> AttentionOptions:
        config = self.config
        assert not isinstance(position_info, RelativePositionContext), "relative positions need RelativeAttention"
        return AttentionOptions(config.causal, config.window, self._dropout, config.scale or None, position_info)

    @property
    def _dropout(self) -> float:
        return self.config.dropout if self.training else 0.0

    def _project(self, x: Tensor) -> Tensor:
        """Return fused queries, keys and values [T, 3, heads, head_dim], before rotary positions."""
        return self.qkv(x).view(x.shape[0], 3, self.config.num_heads, -1)

    def _project_rotary(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        qkv = self._project(x)
        return (apply_rotary(qkv, positions, self.config.rope_theta) if self.config.rope_theta else qkv).unbind(1)

    def forward(
        self, x: Tensor, layout: PackedLayout, positions: Tensor, cache: LayerCache | None, position_info: PositionInfo
    ) -> Tensor:
        """Attend from x [T, dim] to itself and, with a cache, to earlier tokens."""
        options = self._options(position_info)
        if cache is None:
            attended = attend_self(self._project(x), layout, options, self.config.rope_theta)  # [T, heads, head_dim]
        else:
            q, k, v = self._project_rotary(x, positions)
            k, v, k_layout = cache.extend(k, v)
            attended = attend(q, k, v, layout, k_layout, options)
        return self.out(attended.flatten(1))

    def weights(self, x: Tensor, layout: PackedLayout, position_info: PositionInfo = None) -> list[Tensor]:
        """Return the probabilities of self-attention, [heads, queries, keys] for each sequence."""
        q, k, _ = self._project_rotary(x, layout.positions)
        return attention_weights(q, k, layout, layout, self._options(position_info))

    def _project_slice(self, x: Tensor, start: int, end: int) -> tuple[Tensor, ...]:
        """Return some of queries (0), keys (1) and values (2) of x, each [rows, heads, head_dim]."""
        rows, bias = slice(start * self.inner_dim, end * self.inner_dim), self.qkv.bias
        projected = F.linear(x, self.qkv.weight[rows], None if bias is None else bias[rows])
        return projected.view(len(x), end - start, self.config.num_heads, -1).unbind(1)

    def project_kv(self, source: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of a source, each [rows, heads, head_dim]."""
        return self._project_slice(source, 1, 3)

    def cross_attend(
        self, x: Tensor, layout: PackedLayout, source: EncoderInput | None, cache: LayerCache | None = None
    ) -> Tensor:
        """Attend from x to its source; the keys and values of the source may come from the cache."""
        (q,) = self._project_slice(x, 0, 1)
        if cache is not None and cache.cross_kv is not None:
            k, v, layout, k_layout = cache.cross_kv
        else:
            assert source is not None, "cross attention needs a source"
            k, v, k_layout = *self.project_kv(source.values), source.layout
        options = AttentionOptions(dropout=self._dropout, scale=self.config.scale or None)
        return self.out(attend(q, k, v, layout, k_layout, options).flatten(1))

    def cross_weights(self, x: Tensor, layout: PackedLayout, source: EncoderInput) -> list[Tensor]:
        """Return the probabilities of `cross_attend`, [heads, queries, keys] for each sequence."""
        (q,), (k, _) = self._project_slice(x, 0, 1), self.project_kv(source.values)
        return attention_weights(q, k, layout, source.layout, AttentionOptions(scale=self.config.scale or None))
