"""Multi-head attention: the projections around `attend`, and a score bias by relative position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.errors import ConfigError
from polyseme.nn.attention.attend import AttentionOptions, attend, attend_self
from polyseme.nn.attention.terms import AttentionTerms, attention_terms
from polyseme.nn.layers.positions import apply_rotary
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout

if TYPE_CHECKING:
    from polyseme.nn.attention.relative import PositionInfo


@dataclass(frozen=True)
class BaseAttentionConfig(Config):
    """Fields that all kinds of multi-head attention share."""

    num_heads: int
    dropout: float = 0.0  # of the probabilities
    causal: bool = False
    window: int = 0  # largest distance that is attended to, on each side; 0 means no limit
    head_dim: int = 0  # 0 means dim / num_heads

    def __post_init__(self) -> None:
        check_in_range("attention dropout", self.dropout, 0, 1)
        self.check_range(0, math.inf, "window", "head_dim")

    def inner_dim(self, dim: int) -> int:
        """Return the size of all heads together."""
        if self.num_heads < 1 or (dim % self.num_heads and not self.head_dim):
            raise ConfigError(f"num_heads is {self.num_heads}, which does not divide dim {dim}")
        return self.num_heads * self.head_dim or dim


class BaseAttention(nn.Module):
    """Fused projection `qkv` to queries, keys and values, and the output projection."""

    fused_count: ClassVar = {"qkv": 3}  # number of matrices fused into one

    def __init__(self, config: Any, dim: int, bias: bool):
        super().__init__()
        self.config, self.inner_dim = config, config.inner_dim(dim)
        self.qkv = nn.Linear(dim, 3 * self.inner_dim, bias=bias)
        self.out = nn.Linear(self.inner_dim, dim, bias=bias)

    @property
    def _dropout(self) -> float:
        return self.config.dropout if self.training else 0.0

    def _project(self, x: Tensor, start: int = 0, end: int = 3) -> Tensor:
        """Return queries (0), keys (1) and values (2) from `start` to `end`, [rows, end − start, heads, head_dim]."""
        if end - start == 3:
            projected = self.qkv(x)
        else:
            rows, bias = slice(start * self.inner_dim, end * self.inner_dim), self.qkv.bias
            projected = F.linear(x, self.qkv.weight[rows], None if bias is None else bias[rows])
        return projected.view(x.shape[0], end - start, self.config.num_heads, -1)


@dataclass(frozen=True)
class AttentionConfig(BaseAttentionConfig):
    """Multi-head attention (Vaswani et al. 2017, §3.2)."""

    bias: bool = True
    rope_theta: float = 0.0  # base of the wavelengths of rotary positions; 0 means none
    scale: float = 0.0  # factor on the scores; 0 means 1 / √head_dim

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(0, math.inf, "rope_theta", "scale")

    def build(self, dim: int) -> MultiHeadAttention:
        if self.rope_theta and (head_dim := self.inner_dim(dim) // self.num_heads) % 2:
            raise ConfigError(f"the head dimension is {head_dim}; rotary positions need an even one")
        return MultiHeadAttention(self, dim, self.bias)


class MultiHeadAttention(BaseAttention):
    """Multi-head self- or cross-attention."""

    @property
    def query_scale(self) -> float:
        """The size of queries relative to those of attention that divides its scores by √head_dim."""
        return (self.inner_dim // self.config.num_heads) ** -0.5 / self.config.scale if self.config.scale else 1.0

    def _options(self, layout: PackedLayout, position_info: PositionInfo) -> AttentionOptions:
        assert position_info is None or isinstance(position_info, Tensor), "relative positions need RelativeAttention"
        config, causal = self.config, self.config.causal or layout.causal
        return AttentionOptions(causal, config.window, self._dropout, config.scale or None, position_info)

    def _project_rotary(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        qkv = self._project(x)
        return (apply_rotary(qkv, positions, self.config.rope_theta) if self.config.rope_theta else qkv).unbind(1)

    def forward(
        self, x: Tensor, layout: PackedLayout, positions: Tensor, cache: LayerCache | None, position_info: PositionInfo
    ) -> Tensor:
        """Attend from x [T, dim] to itself and, with a cache, to earlier tokens."""
        options = self._options(layout, position_info)
        if cache is None:
            attended = attend_self(self._project(x), layout, options, self.config.rope_theta)  # [T, heads, head_dim]
        else:
            q, k, v = self._project_rotary(x, positions)
            k, v, k_layout = cache.extend(k, v)
            attended = attend(q, k, v, layout, k_layout, options)
        return self.out(attended.flatten(1))

    def terms(
        self, x: Tensor, layout: PackedLayout, positions: Tensor, cache: LayerCache | None, position_info: PositionInfo
    ) -> AttentionTerms:
        """Return what `forward` computes for one sequence."""
        q, k, v = self._project_rotary(x, positions)
        k, v = (k, v) if cache is None else cache.extend(k, v)[:2]
        terms = attention_terms(q, k, v, self._options(layout, position_info))
        return replace(terms, is_rotary=bool(self.config.rope_theta))

    def project_kv(self, source: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of a source, each [rows, heads, head_dim]."""
        return self._project(source, 1, 3).unbind(1)

    def cross_attend(
        self, x: Tensor, layout: PackedLayout, source: EncoderInput | None, cache: LayerCache | None = None
    ) -> Tensor:
        """Attend from x to its source; the keys and values of the source may come from the cache."""
        q = self._project(x, 0, 1)[:, 0]
        if cache is not None and cache.cross_kv is not None:
            k, v, layout, k_layout = cache.cross_kv
        else:
            assert source is not None, "cross attention needs a source"
            k, v, k_layout = *self.project_kv(source.values), source.layout
        options = AttentionOptions(dropout=self._dropout, scale=self.config.scale or None)
        return self.out(attend(q, k, v, layout, k_layout, options).flatten(1))

    def cross_terms(self, x: Tensor, source: EncoderInput) -> AttentionTerms:
        """Return what `cross_attend` computes for one sequence."""
        q, (k, v) = self._project(x, 0, 1)[:, 0], self.project_kv(source.values)
        return attention_terms(q, k, v, AttentionOptions(scale=self.config.scale or None))


@dataclass(frozen=True)
class NoPositionBiasConfig(Config):
    """No relative positions and no score bias."""

    def build(self, dim: int) -> NoPositionBias:
        return NoPositionBias()


class NoPositionBias(nn.Module):
    """Identity in place of a stack's relative positions."""

    def forward(self, x: Tensor, inputs: Inputs, cache: LayerCache | None) -> tuple[Tensor, None]:
        """Return x unchanged and no position information."""
        return x, None


@dataclass(frozen=True)
class BucketedRelativeBiasConfig(Config):
    """One learned bias for each head and bucket of distances (Raffel et al. 2020, §2.1).

    Half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`, and all larger
    distances share the last one. Without `causal`, each direction has half of the buckets.
    """

    num_heads: int
    causal: bool = False
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        self.check_range(4, math.inf, "num_buckets")
        self.check_range(self.num_buckets // 2 + 1, math.inf, "max_distance")

    def build(self, dim: int) -> BucketedRelativeBias:
        return BucketedRelativeBias(self)


class BucketedRelativeBias(nn.Module):
    """Table of biases, [buckets, heads]."""

    def __init__(self, config: BucketedRelativeBiasConfig):
        super().__init__()
        self.config = config
        self.positions = nn.Embedding(config.num_buckets, config.num_heads)

    def forward(self, x: Tensor, inputs: Inputs, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Return x unchanged, and the score bias by relative position."""
        return x, self.bias_by_distance((inputs.layout if cache is None else cache.full_layout).max_seqlen)

    def bias_by_distance(self, max_seqlen: int) -> Tensor:
        """Return the bias by relative position of the key, [heads, 2 · max_seqlen − 1], position 0 in the middle."""
        return F.embedding(self.bucket_indices(max_seqlen), self.positions.weight).t()

    def bucket_indices(self, max_seqlen: int) -> Tensor:
        """Return the bucket of each relative position, int64 [2 · max_seqlen − 1]."""
        relative_positions = torch.arange(1 - max_seqlen, max_seqlen, device=self.positions.weight.device)
        causal, max_distance = self.config.causal, self.config.max_distance
        num_buckets = self.config.num_buckets // (1 if causal else 2)
        distances = (-relative_positions).clamp(min=0) if causal else relative_positions.abs()
        max_exact = num_buckets // 2
        # in float32, like the published models: rounding decides which bucket a boundary distance belongs to
        log_ratio = torch.log(distances.clamp(min=1).float() / max_exact) / math.log(max_distance / max_exact)
        log_buckets = (max_exact + (log_ratio * (num_buckets - max_exact)).long()).clamp(max=num_buckets - 1)
        buckets = torch.where(distances < max_exact, distances, log_buckets)
        return buckets if causal else buckets + num_buckets * (relative_positions > 0)
