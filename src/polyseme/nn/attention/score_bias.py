"""What is added to attention scores because of the distance between two tokens: a part that a whole stack shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.attention.relative import Queries
from polyseme.nn.memory import Cache
from polyseme.nn.packing import Layout


@dataclass(frozen=True)
class BucketBiasSpec(Spec):
    """One number for each head and bucket of distances (Raffel et al. 2020, §2.1).

    Half of the buckets hold one distance each, the others grow with its logarithm up to `max_distance`; all that is
    further shares the last. Where a query sees both sides, each side has half of the buckets.
    """

    num_heads: int
    causal: bool = False
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        self.within(4, math.inf, "num_buckets")
        self.within(self.num_buckets // 2 + 1, math.inf, "max_distance")

    def build(self, dim: int) -> BucketBias:
        return BucketBias(self)


class BucketBias(nn.Module):
    def __init__(self, spec: BucketBiasSpec):
        super().__init__()
        self.spec, self.causal = spec, spec.causal
        self.positions = nn.Embedding(spec.num_buckets, spec.num_heads)

    def forward(
        self, x: Tensor, layout: Layout, segments: Tensor | None, queries: Queries | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """The states as they are, and what attention adds to scores."""
        if queries is not None:
            raise UserError("this model has no query stream, so it cannot predict in an order of its own")
        return x, self.by_distance((layout if cache is None else cache.joined).longest)

    def by_distance(self, longest: int) -> Tensor:
        """By distance of key and query, [heads, 2 · longest − 1], distance 0 in the middle."""
        return F.embedding(self.buckets(longest), self.positions.weight).t()

    def buckets(self, longest: int) -> Tensor:
        ahead = torch.arange(1 - longest, longest, device=self.positions.weight.device)
        size = self.spec.num_buckets if self.causal else self.spec.num_buckets // 2
        far = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        exact = size // 2
        # in float32, as the published models were trained: on the borders of buckets its rounding decides
        growth = torch.log(far.clamp(min=1).float() / exact) / math.log(self.spec.max_distance / exact)
        wide = (exact + (growth * (size - exact)).long()).clamp(max=size - 1)
        found = torch.where(far < exact, far, wide)
        return found if self.causal else found + size * (ahead > 0)
