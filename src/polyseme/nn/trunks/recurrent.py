"""Recurrent trunks: vanilla RNN, GRU and LSTM, whose memory is their state.

Each cell has two bodies that agree: the fused one of torch (cuDNN on a GPU), and a plain one to be read.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.config import Config, check_in_range
from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.char_cnn import CharCNNConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.trunks.transformer import PoolerConfig, TrunkOutput

Cell = Literal["rnn", "gru", "lstm"]
NUM_GATES: dict[str, int] = {"rnn": 1, "gru": 3, "lstm": 4}  # products of a step, stacked as torch stacks them
NUM_STATES: dict[str, int] = {"rnn": 1, "gru": 1, "lstm": 2}

# torch's kernels copy weights that do not lie side by side, and leave out one of their libraries: both cost little
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


@dataclass(frozen=True)
class RecurrentTrunkConfig(Config):
    """Layers of one cell over token vectors; `hidden_dims` are those of the layers' states.

    An LSTM with a `projection_dim` hands on, and back to itself, a vector of that size (Sak et al. 2014). `gru_reset`
    is the GRU's: before the product, as in its paper (Cho et al. 2014), or after it, as torch's fused kernel has it.

    `direction` both is two stacks side by side that know nothing of each other, one for each way; bidirectional has
    layers that read both ways of the one below. A layer's output y stands for itself, or joins what the layer read, x:
    residual x + y, highway t·y + (1 − t)·x with a gate t of x (Srivastava et al. 2015), dense: a layer reads the token
    vectors and the outputs of all layers below. The layers below `skip_from_layer` have no link.

    Dropout is on what enters the first layer (`input_dropout`), on what passes between layers (`dropout`), on what
    leaves the last (`output_dropout`); `variational_dropout`, its mask is the same at every time step of a sequence
    (Gal and Ghahramani 2016). `weight_dropout` is on the matrices from state to state, one mask for a whole reading
    (Merity et al. 2018, §2).

    With a `context_dim`, whoever reads answers the first layer at every step: its state so far is the question, a
    vector of that size the answer, which joins what the layer reads (`StepContext`).
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
    forget_bias: float = 0.0  # added to the LSTM's forget gates at the start
    fixed_forget_bias: float | None = None  # with a number, cells have one bias, and this is added to the forget gates
    cell_clip: float = 0.0  # an LSTM's cell stays within ± this; 0 is anywhere. What is clipped runs the plain body
    projection_clip: float = 0.0
    skip_from_layer: int = 1
    context_dim: int = 0
    pooler: PoolerConfig = field(default_factory=lambda: PoolerConfig("last"))
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        for name in ("input_dropout", "dropout", "output_dropout", "weight_dropout"):
            check_in_range(name, getattr(self, name), 0, 1)
        check_in_range("projection_dim", self.projection_dim, 0, math.inf)
        for hidden_dim in self.hidden_dims:
            check_in_range("a value of hidden_dims", hidden_dim, 1, math.inf)
        if self.projection_dim and self.cell != "lstm":
            raise ConfigError(
                f"projection_dim is {self.projection_dim}, which the cell {self.cell!r} does not have: 0 or 'lstm'"
            )
        check_in_range("cell_clip", self.cell_clip, 0, math.inf)
        check_in_range("projection_clip", self.projection_clip, 0, math.inf)
        check_in_range("skip_from_layer", self.skip_from_layer, 1, math.inf)
        check_in_range("context_dim", self.context_dim, 0, math.inf)
        layer_dims = (self.embeddings.dim, *(self.num_directions * hidden_dim for hidden_dim in self.output_dims))[
            self.skip_from_layer - 1 :
        ]
        if self.skip in ("residual", "highway") and len(set(layer_dims)) > 1:
            raise ConfigError(
                f"skip {self.skip!r} needs what each layer reads and writes to be of one size, not {layer_dims}"
            )

    @property
    def output_dims(self) -> tuple[int, ...]:
        """The size of what each layer hands on, in one direction."""
        return tuple(self.projection_dim or hidden_dim for hidden_dim in self.hidden_dims)

    @property
    def stack_directions(self) -> tuple[tuple[str, ...], ...]:
        """The ways that the layers of each stack read."""
        return {"both": (("forward",), ("backward",)), "bidirectional": (("forward", "backward"),)}.get(
            self.direction, ((self.direction,),)
        )

    @property
    def num_directions(self) -> int:
        """How many directions stand side by side in what a layer of a stack reads."""
        return len(self.stack_directions[0])

    @property
    def input_dims(self) -> tuple[int, ...]:
        """What each layer of a stack reads."""
        layer_dims = (self.embeddings.dim, *(self.num_directions * size for size in self.output_dims))
        return tuple(
            sum(layer_dims[: i + 1]) if self.skip == "dense" else layer_dims[i] for i in range(len(self.hidden_dims))
        )

    @property
    def dim(self) -> int:
        return self.output_dims[-1] * len(self.stack_directions) * self.num_directions

    @property
    def num_layers(self) -> int:
        return len(self.hidden_dims)

    @property
    def num_blocks(self) -> int:
        return len(self.hidden_dims)

    @property
    def causal(self) -> bool:
        return self.direction == "forward"

    @property
    def matmul_params(self) -> int:
        """How many weights of matrices a token meets."""
        num_gates, has_highway = NUM_GATES[self.cell], self.skip == "highway"
        total = self.embeddings.embedding_dim * self.embeddings.dim + num_gates * self.context_dim * sum(
            self.hidden_dims[:1]
        )
        for input_dim, hidden_dim, output_dim in zip(self.input_dims, self.hidden_dims, self.output_dims):
            cell_params = num_gates * hidden_dim * (input_dim + output_dim) + (
                hidden_dim * output_dim if self.projection_dim else 0
            )
            total += len(self.stack_directions) * (
                self.num_directions * cell_params + has_highway * input_dim * input_dim
            )
        return total

    num_segments: ClassVar[int] = 0
    num_heads: ClassVar[int] = 0
    depends_on_lengths: ClassVar[bool] = True
    supports_static_shape: ClassVar[bool] = False
    has_query_stream: ClassVar[bool] = False

    @property
    def has_bounded_memory(self) -> bool:
        return self.direction in ("forward", "backward")

    def build(self) -> RecurrentTrunk:
        if not self.hidden_dims:
            raise ConfigError("a trunk needs one layer or more")
        return RecurrentTrunk(self)


class TimeMajor:
    """The Layout as recurrence wants it: time step by time step.

    Where all sequences have one length, [length, sequences, …]; else one flat list as in a PackedSequence: the
    sequences sorted from long to short, `batch_sizes` how many are left at each step.
    """

    def __init__(self, layout: PackedLayout):
        lengths, device = np.array(layout.lengths, dtype=np.int64), layout.cu_seqlens.device
        self.num_sequences, self.max_seqlen = len(lengths), int(lengths.max(initial=0))
        self.is_uniform = self.num_sequences > 0 and bool((lengths == self.max_seqlen).all())
        self.sequence_order: Tensor | None = None  # those with a token, from long to short
        if self.is_uniform:
            self.batch_sizes = np.full(self.max_seqlen, self.num_sequences)
            return
        order = np.argsort(-lengths, kind="stable")[: int((lengths > 0).sum())]
        sizes, starts = lengths[order], (np.cumsum(lengths) - lengths)[order]
        self.batch_sizes = len(sizes) - np.searchsorted(sizes[::-1], np.arange(self.max_seqlen), side="right")
        time_steps = np.repeat(np.arange(self.max_seqlen), self.batch_sizes)
        ranks = np.arange(len(time_steps)) - np.repeat(np.cumsum(self.batch_sizes) - self.batch_sizes, self.batch_sizes)
        index = starts[ranks] + time_steps
        inverse = np.empty_like(index)
        inverse[index] = np.arange(len(index))
        reverse = inverse[starts[ranks] + sizes[ranks] - 1 - time_steps]
        self.sequence_order, self.time_major_index, self.inverse_index, self.reverse_index, self.sequence_ranks = (
            torch.from_numpy(array).to(device, non_blocking=True) for array in (order, index, inverse, reverse, ranks)
        )

    def to_time_major(self, x: Tensor) -> Tensor:
        if self.is_uniform:
            return x.view(self.num_sequences, self.max_seqlen, x.shape[-1]).transpose(0, 1)
        return x.index_select(0, self.time_major_index)

    def from_time_major(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(0, 1) if self.is_uniform else x.index_select(0, self.inverse_index)

    def reverse(self, x: Tensor) -> Tensor:
        """Each sequence from its end to its start, and the other way round."""
        return x.flip(0) if self.is_uniform else x.index_select(0, self.reverse_index)

    def variational_dropout(self, x: Tensor, p: float) -> Tensor:
        """Dropout whose mask is one for a sequence."""
        mask = F.dropout(x.new_ones(len(self.batch_sizes) and int(self.batch_sizes[0]), x.shape[-1]), p)
        return x * (mask if self.is_uniform else mask.index_select(0, self.sequence_ranks))

    def sort_states(self, states: Sequence[Tensor]) -> list[Tensor]:
        """The states of sequences as the body wants them."""
        return [s if self.sequence_order is None else s.index_select(0, self.sequence_order) for s in states]

    def unsort_states(self, states: Sequence[Tensor], previous: Sequence[Tensor]) -> list[Tensor]:
        """The inverse of `sort_states`; a sequence without a token keeps its state."""
        if self.sequence_order is None:
            return list(states)
        return [old.to(new.dtype).index_copy(0, self.sequence_order, new) for old, new in zip(previous, states)]


class StepContext(Protocol):
    """What answers a layer at every step, with a vector for each state."""

    def make_step_fn(self, sequence_order: Tensor | None) -> Callable[[Tensor], Tensor]:
        """For sequences in this order, the answers to the states [n, size] of the first n of them, [n, context]."""

    def finalize(self, pack: Callable[[Tensor], Tensor]) -> None:
        """All steps were asked for; the function turns rows, step after step, into a packed batch."""


class RNNCellLayer(nn.Module):
    """One cell, run over sequences in one direction; its weights are laid out as those of torch's own modules."""

    def __init__(self, config: RecurrentTrunkConfig, input_dim: int, hidden_dim: int, context_dim: int = 0):
        super().__init__()
        self.config, self.hidden_dim, self.output_dim = config, hidden_dim, config.projection_dim or hidden_dim
        rows = NUM_GATES[config.cell] * hidden_dim
        self.weight_ih = nn.Parameter(torch.empty(rows, input_dim))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_dim))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows)) if config.fixed_forget_bias is None else None
        self.weight_hr = nn.Parameter(torch.empty(self.output_dim, hidden_dim)) if config.projection_dim else None
        self.weight_ch = nn.Parameter(torch.empty(rows, context_dim)) if context_dim else None

    @torch.no_grad()
    def initialize(self, generator: torch.Generator | None) -> None:
        """Uniform in ± 1 / √size, as torch's modules begin."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.hidden_dim**-0.5), self.hidden_dim**-0.5, generator=generator)
        if self.config.cell == "lstm":
            self.bias_ih[self.hidden_dim : 2 * self.hidden_dim] += self.config.forget_bias

    def initial_states(self, num_sequences: int, like: Tensor) -> list[Tensor]:
        return [
            like.new_zeros(num_sequences, size)
            for size in (self.output_dim, self.hidden_dim)[: NUM_STATES[self.config.cell]]
        ]

    def forward(
        self,
        x: Tensor,
        time_major: TimeMajor,
        states: list[Tensor],
        use_reference: bool,
        step_context: StepContext | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """What it says at each step, and its states after the last; `x` and the outcome are as `time_major` has
        them."""
        states = [s.to(x.dtype) for s in states]  # under autocast a layer says less than it was told
        hidden_weight = F.dropout(self.weight_hh, self.config.weight_dropout, self.training)
        weights = [self.weight_ih, hidden_weight, self.bias_ih, self._hidden_bias()]
        if self.weight_hr is not None:
            weights.append(self.weight_hr)
        if not time_major.max_seqlen:
            return x.new_zeros(*x.shape[:-1], self.output_dim), states
        use_reference = use_reference or (self.config.cell == "gru" and self.config.gru_reset == "before")
        use_reference = use_reference or self.config.cell_clip > 0 or self.config.projection_clip > 0
        if use_reference or self.weight_ch is not None:
            y, final_states = self._forward_reference(
                x, time_major, weights, time_major.sort_states(states), step_context
            )
        else:
            y, final_states = self._forward_fused(x, time_major, weights, time_major.sort_states(states))
        return y, time_major.unsort_states(final_states, states)

    def _hidden_bias(self) -> Tensor:
        if self.bias_hh is not None:
            return self.bias_hh
        bias = torch.zeros_like(self.bias_ih)
        if self.config.cell == "lstm" and self.config.fixed_forget_bias:
            bias[self.hidden_dim : 2 * self.hidden_dim] = self.config.fixed_forget_bias
        return bias

    def _forward_fused(
        self, x: Tensor, time_major: TimeMajor, weights: list[Tensor], states: list[Tensor]
    ) -> tuple[Tensor, list]:
        kernel: Any = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}[self.config.cell]
        initial_states: Any = [s[None].contiguous() for s in states]
        initial_states = initial_states if self.config.cell == "lstm" else initial_states[0]
        if time_major.is_uniform:  # biases, one layer, no dropout, training, one direction, time first
            y, *final_states = kernel(
                x.contiguous(), initial_states, weights, True, 1, 0.0, self.training, False, False
            )
        else:
            batch_sizes = torch.from_numpy(time_major.batch_sizes)
            y, *final_states = kernel(x, batch_sizes, initial_states, weights, True, 1, 0.0, self.training, False)
        return y, [s[0] for s in final_states]

    def _forward_reference(
        self,
        x: Tensor,
        time_major: TimeMajor,
        weights: list[Tensor],
        states: list[Tensor],
        step_context: StepContext | None,
    ) -> tuple[Tensor, list]:
        """Step by step, as the papers write it; the products with the input are made for all steps at once."""
        from_input = F.linear(x, weights[0], weights[2]).flatten(0, -2)
        outputs = []
        context_fn = (
            step_context.make_step_fn(time_major.sequence_order)
            if step_context and self.weight_ch is not None
            else None
        )
        for gates in from_input.split(time_major.batch_sizes.tolist()):
            active, finished = [s[: len(gates)] for s in states], [s[len(gates) :] for s in states]
            if context_fn is not None and self.weight_ch is not None:
                gates = gates + F.linear(context_fn(active[0]), self.weight_ch)
            active = self._cell_step(gates, weights, *active)
            outputs.append(active[0])
            states = [torch.cat(pair) for pair in zip(active, finished)] if len(finished[0]) else active
        if context_fn is not None and step_context is not None:
            step_context.finalize(lambda rows: time_major.from_time_major(rows.view(*x.shape[:-1], -1)))
        return torch.cat(outputs).view(*x.shape[:-1], self.output_dim), states

    def _cell_step(self, input_gates: Tensor, weights: list[Tensor], hidden: Tensor, *cell: Tensor) -> list[Tensor]:
        """The next states of some sequences, from what their input gives and their states."""
        matrix, bias = weights[1], weights[3]
        if self.config.cell == "rnn":
            return [torch.tanh(input_gates + F.linear(hidden, matrix, bias))]
        if self.config.cell == "lstm":
            input_gate, forget_gate, candidate, output_gate = (input_gates + F.linear(hidden, matrix, bias)).chunk(
                4, dim=-1
            )
            cell_state = _clip(
                forget_gate.sigmoid() * cell[0] + input_gate.sigmoid() * candidate.tanh(), self.config.cell_clip
            )
            output = output_gate.sigmoid() * cell_state.tanh()
            if self.weight_hr is not None:
                output = _clip(F.linear(output, self.weight_hr), self.config.projection_clip)
            return [output, cell_state]
        size = self.hidden_dim
        reset_gate, update_gate = (
            input_gates[:, : 2 * size] + F.linear(hidden, matrix[: 2 * size], bias[: 2 * size])
        ).chunk(2, dim=-1)
        reset_gate, update_gate = reset_gate.sigmoid(), update_gate.sigmoid()
        if self.config.gru_reset == "before":
            candidate = F.linear(reset_gate * hidden, matrix[2 * size :], bias[2 * size :])
        else:
            candidate = reset_gate * F.linear(hidden, matrix[2 * size :], bias[2 * size :])
        return [(1 - update_gate) * torch.tanh(input_gates[:, 2 * size :] + candidate) + update_gate * hidden]


def _clip(x: Tensor, limit: float) -> Tensor:
    return x.clamp(-limit, limit) if limit else x


class RecurrentLayer(nn.Module):
    """The cells of one depth of a stack, one for each way it reads, and how their output joins what they read."""

    def __init__(self, config: RecurrentTrunkConfig, directions: tuple[str, ...], depth: int):
        super().__init__()
        input_dim, hidden_dim = config.input_dims[depth - 1], config.hidden_dims[depth - 1]
        self.skip, self.directions = config.skip if depth >= config.skip_from_layer else "none", directions
        self.cells = nn.ModuleList(
            RNNCellLayer(config, input_dim, hidden_dim, config.context_dim * (depth == 1)) for _ in directions
        )
        self.gate = nn.Linear(input_dim, input_dim) if self.skip == "highway" else None

    def initial_states(self, num_sequences: int, like: Tensor) -> list[list[Tensor]]:
        """The states before a text, of each of its cells."""
        return [cell.initial_states(num_sequences, like) for cell in cast(Iterable[RNNCellLayer], self.cells)]

    def forward(
        self,
        x: Tensor,
        time_major: TimeMajor,
        states: list[list[Tensor]],
        use_reference: bool,
        step_context: StepContext | None = None,
    ) -> tuple[Tensor, list[list[Tensor]]]:
        outputs, final_states = [], []
        for direction, cell, cell_states in zip(self.directions, self.cells, states):
            is_backward = direction == "backward"
            y, cell_final_states = cell(
                time_major.reverse(x) if is_backward else x, time_major, cell_states, use_reference, step_context
            )
            outputs.append(time_major.reverse(y) if is_backward else y)
            final_states.append(cell_final_states)
        y = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
        if self.skip == "residual":
            y = x + y
        if self.gate is not None:
            gate = self.gate(x).sigmoid()
            y = gate * y + (1 - gate) * x
        return y, final_states


class RecurrentTrunk(nn.Module):
    """With `use_reference`, the plain body serves; with `gradient_checkpointing`, training keeps what layers read and
    runs them again."""

    def __init__(self, config: RecurrentTrunkConfig):
        super().__init__()
        self.config = config
        self.use_reference = self.gradient_checkpointing = False
        self.embeddings = config.embeddings.build()
        self.stacks = nn.ModuleList(
            nn.ModuleList(RecurrentLayer(config, directions, depth) for depth in range(1, config.num_layers + 1))
            for directions in config.stack_directions
        )
        self.pooler = config.pooler.build(config.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: PackedLayout,
        segments: Tensor | None = None,
        *,
        layers: Iterable[int] = (),
        memory: Memory | None = None,
        return_memory: bool = False,
        query_stream: QueryStream | None = None,
        source: EncoderInput | None = None,
        token_embeddings: Tensor | None = None,
        step_context: StepContext | None = None,
    ) -> TrunkOutput:
        """Read a chunk. With `return_memory`, the reading carries the states with which the next chunk is read.

        The next chunk of a trunk that reads backwards stands before this one. Two stacks that read both ways each go on
        from their own states, as ELMo's published program does from batch to batch. Layers are kept as they are before
        the dropout that follows them; the vectors of tokens once for each stack. `token_embeddings` are the token
        vectors where they are another trunk's, `step_context` what the first layer is told at each step.
        """
        config = self.config
        if (return_memory or memory) and config.num_directions > 1:
            raise UnsupportedError("a trunk whose layers read both directions of those below has no memory")
        time_major, layer_indices = TimeMajor(layout), set(layers)
        x = self.embeddings(tokens, layout.positions, segments, layout.max_seqlen, token_embeddings)
        outputs_per_layer: list[list[Tensor]] = [[] for _ in config.hidden_dims]  # of each depth, what each stack says
        final_states: list[tuple[Tensor, ...]] = []
        stack_outputs = []
        stack_input = self._dropout(time_major.to_time_major(x), time_major, config.input_dropout)
        for stack_index, stack in enumerate(self.stacks):
            layer_input, layer_output = stack_input, stack_input
            for depth, layer in enumerate(cast(Iterable[RecurrentLayer], stack)):
                states = (
                    [list(memory.states[stack_index * config.num_layers + depth])]
                    if memory
                    else layer.initial_states(time_major.num_sequences, x)
                )
                if self.gradient_checkpointing and self.training:
                    y, layer_states = checkpoint(
                        layer, layer_input, time_major, states, self.use_reference, step_context, use_reentrant=False
                    )
                else:
                    y, layer_states = layer(layer_input, time_major, states, self.use_reference, step_context)
                final_states.append(tuple(t for cell_states in layer_states for t in cell_states))
                if depth + 1 in layer_indices:
                    outputs_per_layer[depth].append(time_major.from_time_major(y))
                is_top = depth + 1 == config.num_layers
                layer_output = self._dropout(y, time_major, config.output_dropout if is_top else config.dropout)
                layer_input = torch.cat([layer_input, layer_output], dim=-1) if config.skip == "dense" else layer_output
            stack_outputs.append(time_major.from_time_major(layer_output))
        layer_outputs = {depth: torch.cat(outputs_per_layer[depth - 1], dim=-1) for depth in layer_indices if depth}
        layer_outputs |= {0: torch.cat([x] * len(self.stacks), dim=-1)} if 0 in layer_indices else {}
        hidden = torch.cat(stack_outputs, dim=-1) if len(stack_outputs) > 1 else stack_outputs[0]
        return TrunkOutput(
            hidden, layer_outputs, self._make_memory(final_states, layout, memory) if return_memory else None
        )

    def _dropout(self, x: Tensor, time_major: TimeMajor, p: float) -> Tensor:
        if not p or not self.training:
            return x
        return time_major.variational_dropout(x, p) if self.config.variational_dropout else F.dropout(x, p)

    def _make_memory(
        self, final_states: list[tuple[Tensor, ...]], layout: PackedLayout, memory: Memory | None
    ) -> Memory:
        """One row for each sequence."""
        num_seen = memory.num_seen if memory else (0,) * len(layout.lengths)
        state_layout = PackedLayout.cached((1,) * len(layout.lengths), layout.cu_seqlens.device)
        return Memory(state_layout, tuple(final_states), tuple(a + b for a, b in zip(num_seen, layout.lengths)))

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        """One vector a sequence, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def token_embeddings(self) -> Any:
        """The token vectors, which tied language-model heads share."""
        return self.embeddings.token_embeddings

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group a layer."""
        layers = [nn.ModuleList(layer_per_stack) for layer_per_stack in zip(*self.stacks)]
        groups = [list(part.parameters()) for part in (self.embeddings, *layers, self.pooler)]
        return [group for group in groups if group]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        """The matrices of the cells, and how many are stacked in each: what Muon makes orthogonal."""
        cells = [part for part in self.modules() if isinstance(part, RNNCellLayer)]
        weights = [w for cell in cells for w in (cell.weight_ih, cell.weight_hh, cell.weight_ch) if w is not None]
        return [(weight, NUM_GATES[self.config.cell]) for weight in weights]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.config.init.apply(self, self.config.num_layers, generator)
        self.initialize_cells(generator)

    def initialize_cells(self, generator: torch.Generator | None) -> None:
        for part in self.modules():
            if isinstance(part, RNNCellLayer):
                part.initialize(generator)
