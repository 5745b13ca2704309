"""A trunk that looks each token up and nothing else: the context-free row of every table of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.subwords import SubwordEmbeddingsSpec
from polyseme.nn.packing import Layout
from polyseme.nn.sparse import RowGradient
from polyseme.nn.trunks.transformer import PoolerSpec, Reading, SimpleTrunkSpec, Trunk


@dataclass(frozen=True)
class LookupSpec(SimpleTrunkSpec):
    """A vector for each token, the same in every context; the vector of a sequence is their mean.

    No token changes the state of another, so it is causal, and there is nothing to remember.
    """

    embeddings: EmbeddingsSpec | SubwordEmbeddingsSpec
    pooler: PoolerSpec = field(default_factory=lambda: PoolerSpec("mean"))
    init: InitSpec = field(default_factory=InitSpec)

    num_layers: ClassVar[int] = 0
    weights: ClassVar[int] = 0

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    @property
    def by_lengths(self) -> bool:
        """Words that are made of n-grams are as many rows as they have: nothing that could be recorded."""
        return isinstance(self.embeddings, SubwordEmbeddingsSpec)

    @property
    def num_segments(self) -> int:
        return self.embeddings.num_segments

    def build(self) -> Lookup:
        return Lookup(self)


class Lookup(Trunk):
    def __init__(self, spec: LookupSpec):
        super().__init__()
        self.spec = spec
        self.embeddings = spec.embeddings.build()
        self.pooler = spec.pooler.build(spec.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Any = None,
        remember: bool = False,
        queries: Any = None,
        source: Any = None,
    ) -> Reading:
        x = self.embeddings(tokens, layout.positions, segments, layout.longest)
        return Reading(x, {0: x} if 0 in set(keep) else {})

    def look_up(self, ids: Tensor) -> Tensor:
        """The vectors of some tokens, [n, dim], without dropout."""
        return self.embeddings.look_up(ids)

    def spread(self, ids: Tensor, gradient: Tensor, terms: Tensor) -> list[RowGradient]:
        """A gradient of those vectors as one of the rows they are made of."""
        return self.embeddings.spread(ids, gradient, terms)

    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output: the table is the one layer there is."""
        return [list(self.parameters())]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, 1, generator)
