"""Trunk that only looks up token embeddings: the context-free baseline."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig, SparseRowGrad
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, delegate


@dataclass(frozen=True)
class StaticEmbeddingTrunkConfig(TrunkConfig):
    """One vector per token, the same in every context; a sequence is pooled to their mean.

    Tokens do not influence each other, so the trunk is causal and its memory is empty (None).
    """

    embeddings: EmbeddingsConfig | SubwordEmbeddingsConfig
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("mean"))
    init: InitConfig = field(default_factory=InitConfig)

    num_layers = 0
    causal = True
    has_memory = True

    dim = delegate("embeddings.dim")
    num_segments = delegate("embeddings.num_segments")

    @property
    def depends_on_lengths(self) -> bool:
        """Whether words are sums of n-gram vectors, whose number varies."""
        return isinstance(self.embeddings, SubwordEmbeddingsConfig)

    def build(self) -> Trunk:
        return StaticEmbeddingTrunk(self)


class StaticEmbeddingTrunk(Trunk):
    """A table of token embeddings."""

    config: StaticEmbeddingTrunkConfig

    def __init__(self, config: StaticEmbeddingTrunkConfig):
        super().__init__()
        self.config = config
        self.embeddings = config.embeddings.build()
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        x = self.embeddings(inputs)  # [T, dim]
        return TrunkOutput(x, {0: x} if layers else {})

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids, [n, dim], without dropout."""
        return self.embeddings.look_up(ids)

    def scatter_grad(self, ids: Tensor, grad: Tensor, counts: Tensor) -> list[SparseRowGrad]:
        """Turn the gradient of looked-up vectors into gradients of table rows."""
        return self.embeddings.scatter_grad(ids, grad, counts)
