"""Recurrent decoder: cells whose initial state comes from a source, optionally with attention to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError
from polyseme.nn.attention.rnn_attention import EncoderAttentionState, RNNAttentionConfig
from polyseme.nn.inputs import Inputs
from polyseme.nn.layers.rnn import NUM_STATES
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, delegate
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig


@dataclass(frozen=True)
class RecurrentDecoderConfig(TrunkConfig):
    """Recurrent layers (`stack`) over a target; `source_dim` is the size of the encoder states.

    All cells start from the source as `init_pooler` pools it, through a dense layer and tanh. With `attention`, if the
    stack has a `context_dim`, the query is the previous state of the first layer, which reads the context with the
    next token (Bahdanau et al. 2015, §3.1); otherwise the queries are the states of the last layer, all at once. In
    both cases a state s and its context c are output as tanh(W [c; s]) (Luong et al. 2015, §3).
    """

    stack: RecurrentTrunkConfig
    source_dim: int
    attention: RNNAttentionConfig | None = None
    init_pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("final_states"))
    dropout: float = 0.0  # on the output

    def __post_init__(self) -> None:
        self.check_range(0, 1, "dropout")
        if self.stack.context_dim and (self.attention is None or self.stack.context_dim != self.source_dim):
            raise ConfigError(
                f"stack.context_dim is {self.stack.context_dim}: expected 0, or {self.source_dim} with attention"
            )

    embeddings = delegate("stack.embeddings")
    pooler = delegate("stack.pooler")
    init = delegate("stack.init")
    dim = delegate("stack.dim")
    num_layers = delegate("stack.num_layers")
    num_blocks = delegate("stack.num_blocks")
    causal = delegate("stack.causal")
    has_memory = delegate("stack.has_memory")
    shares_token_embeddings = delegate("stack.shares_token_embeddings")
    has_source = True

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        if self.attention is None:
            return self.stack.count_flops(lengths)
        dim, score, is_additive = self.dim, self.attention, self.attention.score == "additive"
        key_dim = (score.hidden_dim or dim) if is_additive else dim
        target_params = self.stack.matmul_params + (dim * key_dim if is_additive else 0) + dim * (dim + self.source_dim)
        source_params = score.projects_source * self.source_dim * key_dim
        num_scores = sum(n * m for n, m in zip(lengths, source_lengths))
        return 6 * (target_params * sum(lengths) + source_params * sum(source_lengths)) + 12 * dim * num_scores

    def build(self) -> Trunk:
        return RecurrentDecoder(self)


class RecurrentDecoder(Trunk):
    """Recurrent layers over a target; `source` are encoder states as `prepare_source` returns them."""

    config: RecurrentDecoderConfig

    def __init__(self, config: RecurrentDecoderConfig):
        super().__init__()
        self.config = config
        self.stack: Any = config.stack.build()
        self.init_pooler = config.init_pooler.build(config.source_dim)
        num_states = NUM_STATES[config.stack.cell]
        self.state_dims = [pair[:num_states] for pair in zip(config.stack.output_dims, config.stack.hidden_dims)]
        self.bridge = nn.Linear(config.source_dim, sum(map(sum, self.state_dims)))
        query_dim = config.stack.output_dims[0] if config.stack.context_dim else config.dim
        self.attention = config.attention.build(query_dim, config.source_dim) if config.attention else None
        self.combine = nn.Linear(config.source_dim + config.dim, config.dim, bias=False) if config.attention else None
        self.dropout = nn.Dropout(config.dropout)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        return self._attend(inputs, memory, layers, return_memory)[0]

    def _attend(
        self, inputs: Inputs, memory: Memory | None, layers: frozenset[int], return_memory: bool
    ) -> tuple[TrunkOutput, EncoderAttentionState | None]:
        source, layout = inputs.source, inputs.layout
        assert source is not None, "a decoder needs a source"
        attention_state = self.attention.begin(source) if self.attention is not None else None
        memory = self._initial_memory(source, layout) if memory is None else memory
        step_context = attention_state if self.config.stack.context_dim else None
        output = self.stack.run(replace(inputs, source=None), memory, layers, return_memory, step_context)
        hidden = output.hidden  # [T, dim]
        if attention_state is not None and self.combine is not None:
            if not self.config.stack.context_dim:
                attention_state.attend_all(hidden, layout)
            hidden = self.combine(torch.cat([attention_state.contexts, hidden], dim=-1)).tanh()
        return replace(output, hidden=self.dropout(hidden)), attention_state

    def _initial_memory(self, source: EncoderInput, layout: PackedLayout) -> Memory:
        """Compute the initial states of the cells from the source."""
        num_sequences = len(layout.lengths)
        pooled = self.init_pooler(source.values[:, : self.config.source_dim], source.layout)[:num_sequences]
        per_layer = self.bridge(pooled).tanh().split([sum(dims) for dims in self.state_dims], dim=-1)
        states = tuple(x.split(list(dims), dim=-1) for x, dims in zip(per_layer, self.state_dims))
        state_layout = PackedLayout.cached((1,) * num_sequences, layout.cu_seqlens.device)
        return Memory(state_layout, states, (0,) * num_sequences)

    def prepare_source(self, states: Tensor) -> Tensor:
        """Return encoder states with the keys that attention computes from them."""
        return states if self.attention is None else self.attention.precompute_keys(states)

    def cross_weights(self, inputs: Inputs) -> list[list[Tensor]]:
        """Return the attention weights of each sequence, [1, queries, keys]; empty without attention."""
        attention_state = self._attend(inputs, None, frozenset(), False)[1]
        if attention_state is None:
            return []
        assert inputs.source is not None
        weights = attention_state.weights.split(list(inputs.layout.lengths))
        return [[part[None, :, :length] for part, length in zip(weights, inputs.source.layout.lengths)]]

    @property
    def embeddings(self) -> Any:
        """The embeddings of the target."""
        return self.stack.embeddings

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output: the bridge with the embeddings, attention at the end."""
        first, *rest = self.stack.layer_groups()
        last = [p for part in (self.attention, self.combine) if part is not None for p in part.parameters()]
        return [[*first, *self.bridge.parameters()], *rest, *([last] if last else [])]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        attention_layers = [] if self.attention is None else [self.attention.key_proj, self.attention.query_proj]
        linear_weights = [part.weight for part in (self.bridge, self.combine, *attention_layers) if part is not None]
        return [*self.stack.hidden_matrices(), *((weight, 1) for weight in linear_weights)]
