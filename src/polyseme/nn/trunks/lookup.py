"""A trunk that looks each token up and nothing else: the context-free row of every table of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig
from polyseme.nn.packing import PackedLayout
from polyseme.nn.sparse import SparseRowGrad
from polyseme.nn.trunks.transformer import PoolerConfig, Trunk, TrunkConfig, TrunkOutput


@dataclass(frozen=True)
class StaticEmbeddingTrunkConfig(TrunkConfig):
    """A vector for each token, the same in every context; the vector of a sequence is their mean.

    No token changes the state of another, so it is causal, and there is nothing to remember.
    """

    embeddings: EmbeddingsConfig | SubwordEmbeddingsConfig
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("mean"))
    init: InitConfig = field(default_factory=InitConfig)

    num_layers: ClassVar[int] = 0
    matmul_params: ClassVar[int] = 0

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    @property
    def depends_on_lengths(self) -> bool:
        """Words that are made of n-grams are as many rows as they have: nothing that could be recorded."""
        return isinstance(self.embeddings, SubwordEmbeddingsConfig)

    @property
    def num_segments(self) -> int:
        return self.embeddings.num_segments

    def build(self) -> StaticEmbeddingTrunk:
        return StaticEmbeddingTrunk(self)


class StaticEmbeddingTrunk(Trunk):
    def __init__(self, config: StaticEmbeddingTrunkConfig):
        super().__init__()
        self.config = config
        self.embeddings = config.embeddings.build()
        self.pooler = config.pooler.build(config.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: PackedLayout,
        segments: Tensor | None = None,
        *,
        layers: Iterable[int] = (),
        memory: Any = None,
        return_memory: bool = False,
        query_stream: Any = None,
        source: Any = None,
    ) -> TrunkOutput:
        x = self.embeddings(tokens, layout.positions, segments, layout.max_seqlen)
        return TrunkOutput(x, {0: x} if 0 in set(layers) else {})

    def look_up(self, ids: Tensor) -> Tensor:
        """The vectors of some tokens, [n, dim], without dropout."""
        return self.embeddings.look_up(ids)

    def scatter_grad(self, ids: Tensor, grad: Tensor, counts: Tensor) -> list[SparseRowGrad]:
        """A gradient of those vectors as one of the rows they are made of."""
        return self.embeddings.scatter_grad(ids, grad, counts)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output: the table is the one layer there is."""
        return [list(self.parameters())]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.config.init.apply(self, 1, generator)
