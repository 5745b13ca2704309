"""Score bias by relative position, shared by all layers of a stack, and its absence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.inputs import Inputs
from polyseme.nn.memory import LayerCache


@dataclass(frozen=True)
class NoPositionBiasConfig(Config):
    """No relative positions and no score bias."""

    def build(self, dim: int) -> NoPositionBias:
        """Create the module."""
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
        """Create the module."""
        return BucketedRelativeBias(self)


class BucketedRelativeBias(nn.Module):
    """Table of biases, [buckets, heads]."""

    def __init__(self, config: BucketedRelativeBiasConfig):
        super().__init__()
        self.config, self.causal = config, config.causal
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
        num_buckets, max_distance = self.config.num_buckets // (1 if self.causal else 2), self.config.max_distance
        distances = (-relative_positions).clamp(min=0) if self.causal else relative_positions.abs()
        max_exact = num_buckets // 2
        # in float32, like the published models: rounding decides which bucket a boundary distance belongs to
        log_ratio = torch.log(distances.clamp(min=1).float() / max_exact) / math.log(max_distance / max_exact)
        log_buckets = (max_exact + (log_ratio * (num_buckets - max_exact)).long()).clamp(max=num_buckets - 1)
        buckets = torch.where(distances < max_exact, distances, log_buckets)
        return buckets if self.causal else buckets + num_buckets * (relative_positions > 0)
