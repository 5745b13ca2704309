"""A recurrent decoder: cells that begin with what a source came to, and look back at it at every step, or do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.attention.rnn_attention import EncoderAttentionState, RNNAttention, RNNAttentionConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.trunks.recurrent import NUM_STATES, RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import PoolerConfig, TrunkOutput


@dataclass(frozen=True)
class RecurrentDecoderConfig(Config):
    """The layers of `stack` over a target; `source_dim` is the size of the states of its source.

    All cells start from the source as `init_pooler` pools it, through a dense layer and tanh. With a `attention`, the
    context found in the source comes before the recurrence or after it. If the stack has a `context`, the first layer
    asks with its last state and reads the answer with the next token (Bahdanau et al. 2015, §3.1); if not, the states
    of the last layer ask, all at once. Either way a state s and its context c leave as tanh(W [c; s]) (Luong et al.
    2015, §3).
    """

    stack: RecurrentTrunkConfig
    source_dim: int
    attention: RNNAttentionConfig | None = None
    init_pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("final_states"))
    dropout: float = 0.0  # on what leaves it

    supports_static_cache: ClassVar[bool] = False
    has_cross_attention: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_range(0, 1, "dropout")
        if self.stack.context_dim and (self.attention is None or self.stack.context_dim != self.source_dim):
            raise ConfigError(
                f"context_dim is {self.stack.context_dim}, which needs attention to states of that size: "
                f"0, or {self.source_dim} with attention"
            )

    @property
    def embeddings(self) -> EmbeddingsConfig:
        assert isinstance(self.stack.embeddings, EmbeddingsConfig)
        return self.stack.embeddings

    @property
    def dim(self) -> int:
        return self.stack.dim

    @property
    def num_layers(self) -> int:
        return self.stack.num_layers

    @property
    def num_blocks(self) -> int:
        return self.stack.num_blocks

    @property
    def depends_on_lengths(self) -> bool:
        return self.stack.depends_on_lengths

    @property
    def causal(self) -> bool:
        return self.stack.causal

    @property
    def matmul_params(self) -> tuple[int, int]:
        """How many weights of matrices a token meets, and how many a token of its source."""
        dim, attention = self.dim, self.attention
        if attention is None:
            return self.stack.matmul_params, 0
        key_dim = (attention.hidden_dim or dim) if attention.score == "additive" else dim
        query_params = dim * key_dim if attention.score == "additive" else 0
        return self.stack.matmul_params + query_params + dim * (
            dim + self.source_dim
        ), attention.projects_source * self.source_dim * key_dim

    def build(self) -> RecurrentDecoder:
        return RecurrentDecoder(self)


class RecurrentDecoder(nn.Module):
    def __init__(self, config: RecurrentDecoderConfig):
        super().__init__()
        self.config = config
        self.stack = config.stack.build()
        self.init_pooler = config.init_pooler.build(config.source_dim)
        num_states = NUM_STATES[config.stack.cell]
        self.state_dims = [
            pair[:num_states] for pair in zip(config.stack.output_dims, config.stack.hidden_dims)
        ]  # of each layer's states
        self.bridge = nn.Linear(config.source_dim, sum(map(sum, self.state_dims)))
        query_dim = config.stack.output_dims[0] if config.stack.context_dim else config.dim
        self.attention = config.attention.build(query_dim, config.source_dim) if config.attention else None
        self.combine = nn.Linear(config.source_dim + config.dim, config.dim, bias=False) if config.attention else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Tensor,
        layout: PackedLayout,
        segments: Tensor | None = None,
        *,
        layers: Iterable[int] = (),
        memory: Memory | None = None,
        return_memory: bool = False,
        source: EncoderInput | None = None,
        token_embeddings: Tensor | None = None,
    ) -> TrunkOutput:
        """Read a chunk of targets, whose sources are as `prepare_source` has them. Memory is the state of the cells."""
        return self._forward(tokens, layout, layers, memory, return_memory, source, token_embeddings)[0]

    def _forward(
        self,
        tokens: Tensor,
        layout: PackedLayout,
        layers: Iterable[int],
        memory: Memory | None,
        return_memory: bool,
        source: EncoderInput | None,
        token_embeddings: Tensor | None,
    ) -> tuple[TrunkOutput, EncoderAttentionState | None]:
        assert source is not None, "a decoder needs a source"
        attention_state = self.attention.begin(source) if self.attention is not None else None
        output = self.stack(
            tokens,
            layout,
            layers=layers,
            memory=self._initial_memory(source, layout) if memory is None else memory,
            return_memory=return_memory,
            token_embeddings=token_embeddings,
            step_context=attention_state if self.config.stack.context_dim else None,
        )
        hidden = output.hidden
        if attention_state is not None and self.combine is not None:
            if not self.config.stack.context_dim:
                attention_state.attend_all(hidden, layout)
            hidden = self.combine(torch.cat([attention_state.contexts, hidden], dim=-1)).tanh()
        return dataclasses.replace(output, hidden=self.dropout(hidden)), attention_state

    def _initial_memory(self, source: EncoderInput, layout: PackedLayout) -> Memory:
        """The states before a target."""
        num_sequences = len(layout.lengths)
        pooled = self.init_pooler(source.values[:, : self.config.source_dim], source.layout)[:num_sequences]
        parts = self.bridge(pooled).tanh().split([dim for layer_dims in self.state_dims for dim in layer_dims], dim=-1)
        remaining_parts = iter(parts)
        states = tuple(tuple(next(remaining_parts) for _ in layer_dims) for layer_dims in self.state_dims)
        return Memory(
            PackedLayout.from_lengths([1] * num_sequences, device=layout.cu_seqlens.device),
            states,
            (0,) * num_sequences,
        )

    def prepare_source(self, states: Tensor) -> Tensor:
        """What is kept of a source's states to look at."""
        return states if self.attention is None else self.attention.precompute_keys(states)

    def cross_weights(
        self, tokens: Tensor, layout: PackedLayout, source: EncoderInput, token_embeddings: Tensor | None
    ) -> list[list[Tensor]]:
        """Which states of the source a target looks at, [1, queries, keys] for each sequence; none if it does not."""
        attention_state = self._forward(tokens, layout, (), None, False, source, token_embeddings)[1]
        if attention_state is None:
            return []
        weights = attention_state.weights.split(list(layout.lengths))
        return [[part[None, :, :length] for part, length in zip(weights, source.layout.lengths)]]

    @property
    def token_embeddings(self) -> Any:
        return self.stack.token_embeddings

    @property
    def gradient_checkpointing(self) -> bool:
        return self.stack.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.stack.gradient_checkpointing = value

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """The start of all cells stands with their input, what joins behind them at the end."""
        first, *rest = self.stack.layer_groups()
        last = [p for part in (self.attention, self.combine) if part is not None for p in part.parameters()]
        return [[*first, *self.bridge.parameters()], *rest, *([last] if last else [])]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        attention_layers = [] if self.attention is None else [self.attention.key_proj, self.attention.query_proj]
        linear_weights = [part.weight for part in (self.bridge, self.combine, *attention_layers) if part is not None]
        return [*self.stack.hidden_matrices(), *((weight, 1) for weight in linear_weights)]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.config.stack.init.apply(self, self.config.num_layers, generator)
        self.stack.initialize_cells(generator)
        if isinstance(self.attention, RNNAttention):
            self.attention.initialize()
