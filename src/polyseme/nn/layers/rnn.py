"""Recurrent layers over packed sequences, vanilla RNN, GRU and LSTM, and attention of a decoder over encoder states.

Each cell has two implementations that agree: torch's fused kernels (cuDNN on a GPU) and a readable reference. The first
layer of a decoder may also read a context at each step, which attention computes from the state before it. Attention
(Bahdanau, Luong) has one head here, and states are projected only where the score function requires it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.packing import EncoderInput, PackedLayout, time_major_order
from polyseme.nn.padding import PaddedLayout

if TYPE_CHECKING:
    from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig

Cell = Literal["rnn", "gru", "lstm"]
NUM_GATES: dict[str, int] = {"rnn": 1, "gru": 3, "lstm": 4}  # in the order in which torch stacks them
NUM_STATES: dict[str, int] = {"rnn": 1, "gru": 1, "lstm": 2}

# torch copies weights that are not contiguous, and LSTMs with projections do without oneDNN: both cost little
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


class TimeMajor:
    """Conversion of a packed layout to time-major order.

    If all sequences have one length, that is [length, sequences, …]; otherwise a flat list as in torch's
    PackedSequence: sequences sorted from long to short, `batch_sizes` the number of them that reach each step.
    """

    def __init__(self, layout: PackedLayout):
        lengths, device = np.array(layout.lengths, dtype=np.int64), layout.cu_seqlens.device
        self.num_sequences, self.max_seqlen = len(lengths), int(lengths.max(initial=0))
        self.is_uniform = self.num_sequences > 0 and bool((lengths == self.max_seqlen).all())
        self.sequence_order: Tensor | None = None  # the non-empty ones, from long to short
        if self.is_uniform:
            self.batch_sizes = np.full(self.max_seqlen, self.num_sequences)
            return
        self.batch_sizes, *arrays = time_major_order(lengths)
        self.sequence_order, self.time_major_index, self.inverse_index, self.reverse_index, self.sequence_ranks = (
            torch.from_numpy(array).to(device, non_blocking=True) for array in arrays
        )

    def to_time_major(self, x: Tensor) -> Tensor:
        """Reorder packed rows [T, …] by time step."""
        if self.is_uniform:
            return x.view(self.num_sequences, self.max_seqlen, x.shape[-1]).transpose(0, 1)
        return x.index_select(0, self.time_major_index)

    def from_time_major(self, x: Tensor) -> Tensor:
        """Invert `to_time_major`."""
        return x.transpose(0, 1).flatten(0, 1) if self.is_uniform else x.index_select(0, self.inverse_index)

    def reverse(self, x: Tensor) -> Tensor:
        """Reverse each sequence."""
        return x.flip(0) if self.is_uniform else x.index_select(0, self.reverse_index)

    def variational_dropout(self, x: Tensor, p: float) -> Tensor:
        """Apply dropout with one mask for all steps of a sequence."""
        mask = F.dropout(x.new_ones(len(self.batch_sizes) and int(self.batch_sizes[0]), x.shape[-1]), p)
        return x * (mask if self.is_uniform else mask.index_select(0, self.sequence_ranks))

    def sort_states(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Sort the states of sequences from long to short."""
        return [s if self.sequence_order is None else s.index_select(0, self.sequence_order) for s in states]

    def unsort_states(self, states: Sequence[Tensor], previous: Sequence[Tensor]) -> list[Tensor]:
        """Invert `sort_states`; an empty sequence keeps its previous state."""
        if self.sequence_order is None:
            return list(states)
        return [old.to(new.dtype).index_copy(0, self.sequence_order, new) for old, new in zip(previous, states)]


class PaddedTimeMajor(TimeMajor):
    """Time-major order of a padded batch, [L, B, …]; its shape may be symbolic. `mask` [L, B, 1] is True at tokens."""

    def __init__(self, layout: PaddedLayout):
        self.layout, self.is_uniform, self.sequence_order = layout, True, None
        self.num_sequences, self.max_seqlen = layout.mask.shape
        self.mask = layout.mask.t()[:, :, None]

    # copies, because a batch of one sequence would have another memory layout

    def to_time_major(self, x: Tensor) -> Tensor:
        return self.layout.unflatten(x).transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def from_time_major(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).clone(memory_format=torch.contiguous_format).flatten(0, 1)
        return rows.clone(memory_format=torch.contiguous_format)  # a view has strides that the exporter cannot simplify

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return a linear layer of all steps, [L, B, …]."""
        rows = x.clone(memory_format=torch.contiguous_format).view(self.layout.num_tokens, x.shape[-1])
        return F.linear(rows, weight, bias).view(*x.shape[:2], weight.shape[0])

    def reverse(self, x: Tensor) -> Tensor:
        """Reverse the tokens of each sequence, and its padding."""
        steps = torch.arange(self.max_seqlen, device=x.device)[:, None]
        index = self.mask[:, :, 0].long().sum(0) - 1 - steps  # [L, B], negative at padding
        index = torch.where(index < 0, index + self.max_seqlen, index)
        return x.gather(0, index[:, :, None].expand_as(x))


def time_major_of(layout: PackedLayout) -> TimeMajor:
    """Return the conversion of a packed layout, or of a padded one, to time-major order."""
    return PaddedTimeMajor(layout) if isinstance(layout, PaddedLayout) else TimeMajor(layout)


class RNNCellLayer(nn.Module):
    """One cell run over sequences in one direction; its weights have the layout of torch's modules."""

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
        """Draw weights uniformly from ± 1 / √size, as torch's modules do."""
        bound = self.hidden_dim**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        if self.config.cell == "lstm":
            self.bias_ih[self.hidden_dim : 2 * self.hidden_dim] += self.config.forget_bias

    def initial_states(self, num_sequences: int, like: Tensor) -> list[Tensor]:
        """Return zero states."""
        dims = (self.output_dim, self.hidden_dim)[: NUM_STATES[self.config.cell]]
        return [like.new_zeros(num_sequences, dim) for dim in dims]

    def forward(
        self, x: Tensor, order: TimeMajor, states: list[Tensor], use_reference: bool, context: SourceAttention | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the output of each step and the final states; input and output are time-major."""
        states = [s.to(x.dtype) for s in states]  # under autocast a layer returns a narrower type than it gets
        if isinstance(order, PaddedTimeMajor):
            return self._forward_padded(x, order, self.kernel_weights(), states, context)
        if not order.max_seqlen:
            return x.new_zeros(*x.shape[:-1], self.output_dim), states
        if self.has_kernel and not use_reference:
            y, (final_states,) = run_kernel([self], x, order, [states])
            return y, final_states
        y, final_states = self._forward_reference(x, order, self.kernel_weights(), order.sort_states(states), context)
        return y, order.unsort_states(final_states, states)

    @property
    def has_kernel(self) -> bool:
        """Whether torch has a fused kernel for the cell."""
        config = self.config
        has_changes = config.cell_clip or config.projection_clip or self.weight_ch is not None
        return not has_changes and not (config.cell == "gru" and config.gru_reset == "before")

    def kernel_weights(self) -> list[Tensor]:
        """Return the weights in the order of torch's kernels, with dropout."""
        hidden_weight = F.dropout(self.weight_hh, self.config.weight_dropout, self.training)
        weights = [self.weight_ih, hidden_weight, self.bias_ih, self._hidden_bias()]
        return weights if self.weight_hr is None else [*weights, self.weight_hr]

    def _hidden_bias(self) -> Tensor:
        if self.bias_hh is not None:
            return self.bias_hh
        bias = torch.zeros_like(self.bias_ih)
        if self.config.cell == "lstm" and self.config.fixed_forget_bias:
            bias[self.hidden_dim : 2 * self.hidden_dim] = self.config.fixed_forget_bias
        return bias

    def _forward_reference(
        self, x: Tensor, order: TimeMajor, weights: list[Tensor], states: list[Tensor], context: SourceAttention | None
    ) -> tuple[Tensor, list]:
        """Run step by step, as in the papers; the products with the input are computed for all steps at once."""
        from_input = F.linear(x, weights[0], weights[2]).flatten(0, -2)
        outputs, context_fn = [], None
        if context is not None and self.weight_ch is not None:
            context_fn = context.make_step_fn(order.sequence_order)
        for gates in from_input.split(order.batch_sizes.tolist()):
            active, finished = [s[: len(gates)] for s in states], [s[len(gates) :] for s in states]
            if context_fn is not None and self.weight_ch is not None:
                gates = gates + F.linear(context_fn(active[0]), self.weight_ch)
            active = self._cell_step(gates, weights, *active)
            outputs.append(active[0])
            states = [torch.cat(pair) for pair in zip(active, finished)] if len(finished[0]) else active
        if context_fn is not None and context is not None:
            context.finalize(lambda rows: order.from_time_major(rows.view(*x.shape[:-1], -1)))
        return torch.cat(outputs).view(*x.shape[:-1], self.output_dim), states

    def _forward_padded(
        self, x: Tensor, order: PaddedTimeMajor, weights: list[Tensor], states: list[Tensor], context: Any
    ) -> tuple[Tensor, list]:
        """Run a padded batch step by step, without a step at padding; in a graph, whose length varies, as a scan."""
        has_context = context is not None and self.weight_ch is not None

        def step(states: list[Tensor], inputs: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            gates, is_token = inputs
            outputs: list[Tensor] = []
            if has_context:
                outputs = [context.compute_contexts(states[0])]
                gates = gates + F.linear(outputs[0], self.weight_ch)  # type: ignore[arg-type]
            new_states = self._cell_step(gates, weights, *states)
            outputs.append(new_states[0].clone())  # a scan may not return a tensor twice
            return [torch.where(is_token, new, old) for new, old in zip(new_states, states)], outputs

        from_input = order.project(x, weights[0], weights[2])  # [L, B, gates]
        if torch.compiler.is_exporting():
            from torch._higher_order_ops.scan import scan

            states, outputs = scan(step, states, (from_input, order.mask))
        else:
            steps = []
            for inputs in zip(from_input, order.mask):
                states, step_outputs = step(states, inputs)
                steps.append(step_outputs)
            outputs = [torch.stack(tensors) for tensors in zip(*steps)]
        if has_context:
            context.contexts = order.from_time_major(outputs[0])
        return outputs[-1], states

    def _cell_step(self, input_gates: Tensor, weights: list[Tensor], hidden: Tensor, *cell: Tensor) -> list[Tensor]:
        """Return the next states, from the products with the input and the current states."""
        matrix, bias = weights[1], weights[3]
        if self.config.cell == "rnn":
            return [torch.tanh(input_gates + F.linear(hidden, matrix, bias))]
        if self.config.cell == "lstm":
            gates = (input_gates + F.linear(hidden, matrix, bias)).chunk(4, dim=-1)
            input_gate, forget_gate, output_gate = (gates[i].sigmoid() for i in (0, 1, 3))
            cell_state = _clip(forget_gate * cell[0] + input_gate * gates[2].tanh(), self.config.cell_clip)
            output = output_gate * cell_state.tanh()
            if self.weight_hr is not None:
                output = _clip(F.linear(output, self.weight_hr), self.config.projection_clip)
            return [output, cell_state]
        split = 2 * self.hidden_dim  # reset and update gates, then the candidate
        reset_update = input_gates[:, :split] + F.linear(hidden, matrix[:split], bias[:split])
        reset_gate, update_gate = reset_update.sigmoid().chunk(2, dim=-1)
        if self.config.gru_reset == "before":
            candidate = F.linear(reset_gate * hidden, matrix[split:], bias[split:])
        else:
            candidate = reset_gate * F.linear(hidden, matrix[split:], bias[split:])
        return [(1 - update_gate) * torch.tanh(input_gates[:, split:] + candidate) + update_gate * hidden]


def _clip(x: Tensor, limit: float) -> Tensor:
    return x.clamp(-limit, limit) if limit else x


def run_kernel(
    cells: Sequence[RNNCellLayer], x: Tensor, order: TimeMajor, states: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """Run torch's fused kernel of a cell, or of two, of which the second one reads backward.

    Returns the outputs of all steps, those of both cells concatenated, and the final states of each cell.
    """
    cell = cells[0].config.cell
    kernel: Any = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}[cell]
    initial: Any = [torch.stack(pair) for pair in zip(*map(order.sort_states, states))]
    initial = initial if cell == "lstm" else initial[0]
    weights = [weight for each in cells for weight in each.kernel_weights()]
    settings = True, 1, 0.0, cells[0].training, len(cells) == 2  # biases, one layer, no dropout, training, directions
    if order.is_uniform:
        y, *final_states = kernel(x.contiguous(), initial, weights, *settings, False)  # time comes first
    else:
        y, *final_states = kernel(x, torch.from_numpy(order.batch_sizes), initial, weights, *settings)
    return y, [order.unsort_states([s[i] for s in final_states], states[i]) for i in range(len(cells))]


def prefers_joint_kernel(x: Tensor) -> bool:
    """Return whether one kernel for both directions is faster than two: on a GPU, where it runs them side by side."""
    return x.is_cuda


class RecurrentLayer(nn.Module):
    """One layer of a stack: a cell for each direction, and the skip connection around them."""

    def __init__(self, config: RecurrentTrunkConfig, directions: tuple[str, ...], depth: int):
        super().__init__()
        input_dim, hidden_dim = config.input_dims[depth - 1], config.hidden_dims[depth - 1]
        self.skip, self.directions = config.skip if depth >= config.skip_from_layer else "none", directions
        context_dim = config.context_dim if depth == 1 else 0
        self.cells = nn.ModuleList(RNNCellLayer(config, input_dim, hidden_dim, context_dim) for _ in directions)
        self.gate = nn.Linear(input_dim, input_dim) if self.skip == "highway" else None

    def initial_states(self, num_sequences: int, like: Tensor) -> list[list[Tensor]]:
        """Return zero states for each cell."""
        return [cell.initial_states(num_sequences, like) for cell in cast(Iterable[RNNCellLayer], self.cells)]

    def forward(
        self, x: Tensor, order: TimeMajor, states: list[list[Tensor]], use_reference: bool = False, context: Any = None
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Return the outputs of all steps and the final states of each cell; input and output are time-major."""
        y, final_states = self._run_cells(x, order, states, use_reference, context)
        if self.skip == "residual":
            y = x + y
        if self.gate is not None:
            gate = self.gate(x).sigmoid()
            y = gate * y + (1 - gate) * x
        return y, final_states

    def _run_cells(
        self, x: Tensor, order: TimeMajor, states: list[list[Tensor]], use_reference: bool, context: Any
    ) -> tuple[Tensor, list[list[Tensor]]]:
        cells = cast(list[RNNCellLayer], list(self.cells))
        has_kernel = cells[0].has_kernel and not use_reference and bool(order.max_seqlen)
        has_kernel = has_kernel and not isinstance(order, PaddedTimeMajor)
        if self.directions == ("forward", "backward") and has_kernel and prefers_joint_kernel(x):
            return run_kernel(cells, x, order, [[s.to(x.dtype) for s in each] for each in states])
        outputs, final_states = [], []
        for direction, cell, cell_states in zip(self.directions, cells, states):
            is_backward = direction == "backward"
            cell_input = order.reverse(x) if is_backward else x
            y, cell_final_states = cell(cell_input, order, cell_states, use_reference, context)
            outputs.append(order.reverse(y) if is_backward else y)
            final_states.append(cell_final_states)
        return torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0], final_states


@dataclass(frozen=True)
class RNNAttentionConfig(Config):
    """Score of a decoder state s and an encoder state h.

    dot: s·h; cosine: their cosine times a learned scale (Graves et al. 2014, §3.3.1); multiplicative: s·W h (Luong et
    al. 2015, §3.1, "general"); additive: v·tanh(W s + U h) with `hidden_dim` hidden units (Bahdanau et al. 2015,
    A.1.2); 0 means the size of s.
    """

    score: Literal["dot", "cosine", "multiplicative", "additive"] = "multiplicative"
    hidden_dim: int = 0

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "hidden_dim")

    @property
    def projects_source(self) -> bool:
        """Whether encoder states are multiplied by a matrix."""
        return self.score in ("multiplicative", "additive")

    def build(self, dim: int, source_dim: int) -> RNNAttention:
        if not self.projects_source and dim != source_dim:
            sizes = f"one size, got {dim} and {source_dim}; use multiplicative or additive attention"
            raise ConfigError(f"{self.score} attention needs decoder and encoder states of {sizes}")
        return RNNAttention(self, dim, source_dim)


class RNNAttention(nn.Module):
    """Attention of decoder states over encoder states."""

    constant_init: ClassVar = {"cosine_scale": 10.0}  # the softmax of numbers in ± 1 is nearly uniform

    def __init__(self, config: RNNAttentionConfig, dim: int, source_dim: int):
        super().__init__()
        self.config, self.source_dim = config, source_dim
        is_additive, hidden_dim = config.score == "additive", config.hidden_dim or dim
        key_dim = hidden_dim if is_additive else dim
        self.key_proj = nn.Linear(source_dim, key_dim, bias=is_additive) if config.projects_source else None
        self.query_proj = nn.Linear(dim, hidden_dim, bias=False) if is_additive else None
        self.score_proj = nn.Linear(hidden_dim, 1, bias=False) if is_additive else None
        self.cosine_scale = nn.Parameter(torch.empty(1)) if config.score == "cosine" else None

    def precompute_keys(self, states: Tensor) -> Tensor:
        """Return encoder states with their keys appended on the last axis, computed once per source."""
        if self.key_proj is not None:
            return torch.cat([states, self.key_proj(states)], dim=-1)
        return states if self.cosine_scale is None else torch.cat([states, F.normalize(states, dim=-1)], dim=-1)

    def begin(self, source: EncoderInput) -> SourceAttention:
        """Start a forward pass of the decoder over a source prepared by `precompute_keys`."""
        padded = source.layout.pad(source.values)
        values, keys = padded[..., : self.source_dim], padded[..., self.source_dim :]
        return SourceAttention(self, values, keys if keys.shape[-1] else values, ~source.layout.attention_mask())

    def scores(self, states: Tensor, keys: Tensor) -> Tensor:
        """Score states [B, n, dim] against keys [B, m, …]; returns [B, n, m]."""
        if self.query_proj is not None and self.score_proj is not None:
            return self.score_proj((self.query_proj(states)[:, :, None] + keys[:, None]).tanh())[..., 0]
        if self.cosine_scale is not None:
            states = self.cosine_scale * F.normalize(states, dim=-1)
        return states @ keys.transpose(1, 2)


class SourceAttention:
    """Attention over the sources of a batch during one forward pass of the decoder.

    The decoder attends at each step (`make_step_fn`) or for all states at once; `weights` and `contexts` of all tokens
    are set afterwards.
    """

    weights: Tensor  # [T, max source length]
    contexts: Tensor  # [T, source_dim]

    def __init__(self, attention: RNNAttention, values: Tensor, keys: Tensor, padding_mask: Tensor):
        self.attention, self.values, self.keys, self.padding_mask = attention, values, keys, padding_mask
        self.steps: list[tuple[Tensor, Tensor]] = []  # weights and contexts
        self.states: list[Tensor] = []  # the queries, [B, n, dim] each

    def _attention_weights(self, states: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        self.states.append(states)
        return self._compute_weights(states, keys, padding_mask)

    def compute_contexts(self, states: Tensor) -> Tensor:
        """Return the contexts of states [B, dim]; nothing is stored."""
        return (self._compute_weights(states[:, None], self.keys, self.padding_mask) @ self.values)[:, 0]

    def _compute_weights(self, states: Tensor, keys: Tensor, padding_mask: Tensor) -> Tensor:
        scores = self.attention.scores(states, keys).masked_fill(padding_mask[:, None], -math.inf)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)

    def make_step_fn(self, sequence_order: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return a function from the states [n, dim] of the first n sequences, in this order, to their contexts."""
        values, keys, padding_mask = self.values, self.keys, self.padding_mask
        if sequence_order is not None:
            values, keys, padding_mask = (t.index_select(0, sequence_order) for t in (values, keys, padding_mask))
        self.steps, self.states = [], []

        def step(states: Tensor) -> Tensor:
            n = len(states)
            weights = self._attention_weights(states[:, None], keys[:n], padding_mask[:n])
            self.steps.append((weights[:, 0], (weights @ values[:n])[:, 0]))
            return self.steps[-1][1]

        return step

    @property
    def terms(self) -> AttentionTerms:
        """What was computed for a single sequence, as one head."""
        queries, keys, attention = torch.cat(self.states, dim=1), self.keys, self.attention
        products, score_function = attention.scores(queries, keys), attention.config.score
        return AttentionTerms(queries, keys, self.values, products, score_function=score_function)

    def finalize(self, pack: Callable[[Tensor], Tensor]) -> None:
        """Set `weights` and `contexts` after the last step; `pack` turns time-major rows into packed ones."""
        self.weights, self.contexts = (pack(torch.cat(rows)) for rows in zip(*self.steps))

    def attend_all(self, states: Tensor, layout: PackedLayout) -> None:
        """Set `weights` and `contexts` for all states [T, dim] at once."""
        weights = self._attention_weights(layout.pad(states), self.keys, self.padding_mask)
        self.weights, self.contexts = layout.unpad(weights), layout.unpad(weights @ self.values)
