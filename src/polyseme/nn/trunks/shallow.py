"""Trunks of at most one layer: token embeddings alone, and a feed-forward language model over a window of them."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.regions import RegionEmbeddingsConfig
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, derived


@dataclass(frozen=True)
class StaticEmbeddingTrunkConfig(TrunkConfig):
    """One vector per token, the same in every context; a sequence is pooled to their mean.

    Tokens do not influence each other, so the trunk is causal and its memory is empty (None).
    """

    embeddings: EmbeddingsConfig | SubwordEmbeddingsConfig | RegionEmbeddingsConfig
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("mean"))
    init: InitConfig = field(default_factory=InitConfig)

    num_layers = 0
    causal = True
    has_memory = True
    dim = derived(lambda self: self.embeddings.dim)
    num_segments = derived(lambda self: self.embeddings.num_segments)
    # the number of n-grams of a word varies
    depends_on_lengths = derived(lambda self: isinstance(self.embeddings, SubwordEmbeddingsConfig))

    def build(self) -> Trunk:
        return StaticEmbeddingTrunk(self)


class StaticEmbeddingTrunk(Trunk):
    """A table of token embeddings."""

    def __init__(self, config: StaticEmbeddingTrunkConfig):
        super().__init__(config)
        self.embeddings = config.embeddings.build()
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        x = self.embeddings(inputs)  # [T, dim]
        return TrunkOutput(x, {0: x} if layers else {})


@dataclass(frozen=True)
class FeedForwardLMConfig(TrunkConfig):
    """The embeddings of the last `window` tokens, concatenated, through one layer with tanh (Bengio et al. 2003).

    With `direct_connections`, these embeddings are concatenated to the output, so that a linear head has direct
    connections from words to words. Positions before the first token of a sequence are zeros.
    """

    embeddings: EmbeddingsConfig
    window: int
    hidden_dim: int
    direct_connections: bool = False
    dropout: float = 0.0  # on the state
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("mean"))
    init: InitConfig = field(default_factory=InitConfig)

    num_layers = 1
    num_blocks = 1
    causal = True
    depends_on_lengths = False
    supports_static_shape = True
    has_memory = True
    has_bounded_memory = True
    input_dim = derived(lambda self: self.window * self.embeddings.dim, doc="Size of the concatenated embeddings.")
    dim = derived(lambda self: self.hidden_dim + self.input_dim * self.direct_connections)

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "window", "hidden_dim")
        self.check_range(0, 1, "dropout")

    @derived
    def matmul_params(self) -> int:
        return self.input_dim * self.hidden_dim + self.embeddings.embedding_dim * self.embeddings.dim

    def build(self) -> Trunk:
        return FeedForwardLM(self)


class FeedForwardLM(Trunk):
    """One hidden layer over a window of embeddings; its memory is the embeddings that the next window reaches."""

    def __init__(self, config: FeedForwardLMConfig):
        super().__init__(config)
        self.embeddings = config.embeddings.build()
        self.hidden = nn.Linear(config.input_dim, config.hidden_dim)
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        layout, x = inputs.layout, self.embeddings(inputs)  # [T, embedding_dim]
        has_memory, memory = return_memory or memory is not None, memory or Memory.empty(layout)
        caches = memory.create_caches(layout, 1) if has_memory else None
        rows, full_layout, row_index = x, layout, torch.arange(layout.num_tokens, device=x.device)
        if caches:
            rows, full_layout = caches[0].extend(x)
            # the rows of the chunk are the last ones of each sequence
            shifts = full_layout.cu_seqlens[1:].long() - layout.cu_seqlens[1:].long()
            row_index = row_index + shifts.repeat_interleave(layout.cu_seqlens.diff(), output_size=layout.num_tokens)
        positions = full_layout.positions.index_select(0, row_index)
        window_vectors = [
            rows.index_select(0, (row_index - offset).clamp(min=0)).masked_fill((positions < offset)[:, None], 0.0)
            for offset in range(self.config.window - 1, -1, -1)
        ]
        window_input = torch.cat(window_vectors, dim=-1)  # [T, window · embedding_dim]
        state = torch.tanh(self.hidden(window_input))
        state = torch.cat([state, window_input], dim=-1) if self.config.direct_connections else state
        layer_outputs = {depth: output for depth, output in enumerate((x, state)) if depth in layers}
        hidden = F.dropout(state, self.config.dropout, self.training)  # [T, dim]
        memory = memory.update(caches, layout).truncate(self.config.window - 1) if return_memory else None
        return TrunkOutput(hidden, layer_outputs, memory)

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        return [(self.hidden.weight, 1)]
