"""Recurrent trunks (vanilla RNN, GRU, LSTM), whose memory is their state, and a decoder with attention to a source."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.config import check_in_range
from polyseme.errors import ConfigError
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.char_cnn import CharCNN, CharCNNConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.rnn import (
    NUM_GATES,
    NUM_STATES,
    Cell,
    RecurrentLayer,
    RNNAttentionConfig,
    RNNCellLayer,
    TimeMajor,
    time_major_of,
)
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, derived


@dataclass(frozen=True)
class RecurrentTrunkConfig(TrunkConfig):
    """Layers of one cell over token embeddings; `hidden_dims` are the sizes of their states.

    An LSTM with a `projection_dim` outputs and feeds back a projection of that size (Sak et al. 2014). `gru_reset`
    applies the GRU's reset gate before the product, as in its paper (Cho et al. 2014), or after it, as torch does.

    With `direction` "both", two independent stacks, one per direction, run side by side; with "bidirectional", each
    layer reads both directions of the layer below. `skip` combines the output y of a layer with its input x: residual
    x + y; highway t·y + (1 − t)·x with a gate t computed from x (Srivastava et al. 2015); dense: a layer reads the
    embeddings and the outputs of all layers below. Layers below `skip_from_layer` have no skip connection.

    Dropout applies to the input of the first layer (`input_dropout`), between layers (`dropout`) and to the output
    (`output_dropout`); with `variational_dropout` all steps of a sequence share a mask (Gal and Ghahramani 2016).
    `weight_dropout` applies to the state-to-state matrices, with one mask per forward pass (Merity et al. 2018, §2).

    With a `context_dim`, the first layer also reads a context vector at each step (`SourceAttention`).
    """

    embeddings: EmbeddingsConfig | CharCNNConfig
    hidden_dims: tuple[int, ...]
    cell: Cell = "lstm"
    projection_dim: int = 0
    gru_reset: Literal["before", "after"] = "after"
    direction: Literal["forward", "backward", "both", "bidirectional"] = "forward"
    skip: Literal["none", "residual", "dense", "highway"] = "none"
    input_dropout: float = 0.0
    dropout: float = 0.0
    output_dropout: float = 0.0
    weight_dropout: float = 0.0
    variational_dropout: bool = False
    forget_bias: float = 0.0  # initial bias of the LSTM's forget gates
    # if set, cells have one bias vector, and a constant one with this value on the forget gates
    fixed_forget_bias: float | None = None
    cell_clip: float = 0.0  # limit of an LSTM's cell state, 0 for none; clipping uses the reference implementation
    projection_clip: float = 0.0
    skip_from_layer: int = 1
    context_dim: int = 0
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("last"))
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        self.check_range(0, 1, "input_dropout", "dropout", "output_dropout", "weight_dropout")
        self.check_range(0, math.inf, "projection_dim", "cell_clip", "projection_clip", "context_dim")
        self.check_range(1, math.inf, "skip_from_layer")
        for hidden_dim in self.hidden_dims:
            check_in_range("a value of hidden_dims", hidden_dim, 1, math.inf)
        if self.projection_dim and self.cell != "lstm":
            raise ConfigError(f"projection_dim is {self.projection_dim}, but cell is {self.cell!r}: use 0, or 'lstm'")
        layer_dims = self._layer_dims[self.skip_from_layer - 1 :]
        if self.skip in ("residual", "highway") and len(set(layer_dims)) > 1:
            raise ConfigError(f"skip {self.skip!r} needs layers of one size, not {layer_dims}")

    @property
    def output_dims(self) -> tuple[int, ...]:
        """Output size of each layer in one direction."""
        return tuple(self.projection_dim or hidden_dim for hidden_dim in self.hidden_dims)

    # size of the embeddings and of the output of each layer of a stack
    _layer_dims = derived(lambda self: (self.embeddings.dim, *(self.num_directions * n for n in self.output_dims)))

    @property
    def stack_directions(self) -> tuple[tuple[str, ...], ...]:
        """The directions in each stack."""
        directions = {"both": (("forward",), ("backward",)), "bidirectional": (("forward", "backward"),)}
        return directions.get(self.direction, ((self.direction,),))

    num_directions = derived(lambda self: len(self.stack_directions[0]), doc="Number of directions in a layer.")

    @property
    def input_dims(self) -> tuple[int, ...]:
        """Input size of each layer of a stack."""
        input_dims = self._layer_dims[:-1]
        return tuple(accumulate(input_dims)) if self.skip == "dense" else input_dims

    num_layers = derived(lambda self: len(self.hidden_dims))
    num_blocks = num_layers
    dim = derived(lambda self: self.output_dims[-1] * len(self.stack_directions) * self.num_directions)
    causal = derived(lambda self: self.direction == "forward")
    has_memory = derived(lambda self: self.num_directions == 1)
    has_bounded_memory = derived(lambda self: self.direction in ("forward", "backward"))

    @derived
    def matmul_params(self) -> int:
        num_gates, has_highway, num_stacks = NUM_GATES[self.cell], self.skip == "highway", len(self.stack_directions)
        total = self.embeddings.embedding_dim * self.embeddings.dim
        total += num_gates * self.context_dim * sum(self.hidden_dims[:1])
        for input_dim, hidden_dim, output_dim in zip(self.input_dims, self.hidden_dims, self.output_dims):
            cell_params = num_gates * hidden_dim * (input_dim + output_dim)
            cell_params += hidden_dim * output_dim if self.projection_dim else 0
            total += num_stacks * (self.num_directions * cell_params + has_highway * input_dim * input_dim)
        return total

    def build(self) -> Trunk:
        if not self.hidden_dims:
            raise ConfigError("hidden_dims is empty: a trunk needs at least one layer")
        return RecurrentTrunk(self)


class RecurrentTrunk(Trunk):
    """One or two stacks of recurrent layers; `use_reference` selects the reference implementation of the cells.

    The chunk that follows in memory is the next one for a forward trunk and the one before for a backward trunk. Two
    stacks of opposite directions each continue from their own states, as ELMo's published program does from batch to
    batch. Returned layers are before the dropout that follows them; layer 0 has the embeddings once per stack.
    """

    def __init__(self, config: RecurrentTrunkConfig):
        super().__init__(config)
        self.use_reference = False
        self.embeddings = config.embeddings.build()
        depths = range(1, config.num_layers + 1)
        stacks = [[RecurrentLayer(config, names, depth) for depth in depths] for names in config.stack_directions]
        self.stacks = nn.ModuleList(map(nn.ModuleList, stacks))
        self.pooler = config.pooler.build(config.dim)

    def _forward(
        self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool, context: Any = None
    ) -> TrunkOutput:
        """Compute the hidden states; the first layer reads the `SourceAttention` of a `context`, if any."""
        config, layout = self.config, inputs.layout
        order, x = time_major_of(layout), self.embeddings(inputs)  # [T, embedding_dim]
        outputs_per_layer = {depth: [] if depth else [x] * len(self.stacks) for depth in layers}  # of each stack
        final_states: list[tuple[Tensor, ...]] = []
        stack_outputs = []
        stack_input = self._dropout(order.to_time_major(x), order, config.input_dropout)
        for stack in self.stacks:
            layer_input, layer_output = stack_input, stack_input
            for depth, layer in enumerate(cast(Iterable[RecurrentLayer], stack), start=1):
                memory_states = [list(memory.states[len(final_states)])] if memory else None
                states = memory_states or layer.initial_states(order.num_sequences, x)
                arguments = layer_input, order, states, self.use_reference, context
                if self.gradient_checkpointing and self.training:
                    y, layer_states = checkpoint(layer, *arguments, use_reentrant=False)
                else:
                    y, layer_states = layer(*arguments)
                final_states.append(tuple(t for cell_states in layer_states for t in cell_states))
                if depth in layers:
                    outputs_per_layer[depth].append(order.from_time_major(y))
                is_top = depth == config.num_layers
                layer_output = self._dropout(y, order, config.output_dropout if is_top else config.dropout)
                layer_input = torch.cat([layer_input, layer_output], dim=-1) if config.skip == "dense" else layer_output
            stack_outputs.append(order.from_time_major(layer_output))
        layer_outputs = {depth: torch.cat(outputs, dim=-1) for depth, outputs in outputs_per_layer.items()}
        hidden = torch.cat(stack_outputs, dim=-1) if len(stack_outputs) > 1 else stack_outputs[0]
        if not return_memory:
            return TrunkOutput(hidden, layer_outputs)
        memory = memory or Memory.empty(layout)
        num_seen = tuple(a + b for a, b in zip(memory.num_seen, layout.lengths))
        return TrunkOutput(hidden, layer_outputs, Memory(layout.single_rows(), tuple(final_states), num_seen))

    def _dropout(self, x: Tensor, order: TimeMajor, p: float) -> Tensor:
        if not p or not self.training:
            return x
        return order.variational_dropout(x, p) if self.config.variational_dropout else F.dropout(x, p)

    def layer_modules(self) -> list[nn.Module]:
        layers = [nn.ModuleList(layer_per_stack) for layer_per_stack in zip(*self.stacks)]
        return [self.embeddings, *layers, self.pooler]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        cells = [part for part in self.modules() if isinstance(part, RNNCellLayer)]
        weights = [w for cell in cells for w in (cell.weight_ih, cell.weight_hh, cell.weight_ch) if w is not None]
        projections: list[Tensor] = [cell.weight_hr for cell in cells if cell.weight_hr is not None]
        projections += self.embeddings.hidden_matrices() if isinstance(self.embeddings, CharCNN) else []
        return [*((weight, NUM_GATES[self.config.cell]) for weight in weights), *((w, 1) for w in projections)]


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
            expected = f"0, or {self.source_dim} with attention"
            raise ConfigError(f"stack.context_dim is {self.stack.context_dim}: expected {expected}")

    embeddings = derived(lambda self: self.stack.embeddings, doc="The embeddings of the target.")
    pooler = derived(lambda self: self.stack.pooler, doc="The pooler of the stack.")
    init = derived(lambda self: self.stack.init, doc="The initialization of the stack.")
    dim = derived(lambda self: self.stack.dim)
    num_layers = derived(lambda self: self.stack.num_layers)
    num_blocks = derived(lambda self: self.stack.num_blocks)
    causal = derived(lambda self: self.stack.causal)
    has_memory = derived(lambda self: self.stack.has_memory)
    has_attention = derived(lambda self: self.attention is not None)
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

    def __init__(self, config: RecurrentDecoderConfig):
        super().__init__(config)
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
        output, attention_state = self._attend(inputs, memory, layers, return_memory)
        return replace(output, source_attention=getattr(attention_state, "weights", None))

    def _attend(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> tuple[Any, Any]:
        """Return the output of the trunk and the `SourceAttention`, if any."""
        assert inputs.source is not None, "a decoder needs a source"
        attention_state = self.attention.begin(inputs.source) if self.attention is not None else None
        memory = self.initial_memory(inputs.source, inputs.layout) if memory is None else memory
        step_context = attention_state if self.config.stack.context_dim else None
        output = self.stack._forward(replace(inputs, source=None), memory, layers, return_memory, step_context)
        hidden = output.hidden  # [T, dim]
        if attention_state is not None and self.combine is not None:
            if not self.config.stack.context_dim:
                attention_state.attend_all(hidden, inputs.layout)
            hidden = self.combine(torch.cat([attention_state.contexts, hidden], dim=-1)).tanh()
        return replace(output, hidden=self.dropout(hidden)), attention_state

    def initial_memory(self, source: EncoderInput, layout: PackedLayout) -> Memory:
        """Compute the initial states of the cells from the source, for targets of this layout."""
        pooled = self.init_pooler(source.values[:, : self.config.source_dim], source.layout)
        pooled = pooled if layout.is_padded else pooled[: len(layout.lengths)]
        per_layer = self.bridge(pooled).tanh().split([sum(dims) for dims in self.state_dims], dim=-1)
        states = tuple(x.split(list(dims), dim=-1) for x, dims in zip(per_layer, self.state_dims))
        return Memory(layout.single_rows(), states, (0,) * len(layout.lengths))

    def prepare_source(self, states: Tensor) -> Tensor:
        """Return encoder states with the keys that attention computes from them."""
        return states if self.attention is None else self.attention.precompute_keys(states)

    def attention_terms(self, inputs: Inputs, memory: Any = None) -> Iterator[tuple[str, AttentionTerms]]:
        attention_state = self._attend(inputs, memory, frozenset(), False)[1]
        if attention_state is not None:
            yield "cross", attention_state.terms

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        return self.stack.pool(hidden, layout)

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
