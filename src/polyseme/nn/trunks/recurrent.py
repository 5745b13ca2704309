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

from polyseme.config import Spec, in_range
from polyseme.errors import UserError
from polyseme.nn.attention.relative import Queries
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.char_cnn import CharactersSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Layout, Source
from polyseme.nn.trunks.transformer import PoolerSpec, Reading

Cell = Literal["rnn", "gru", "lstm"]
GATES: dict[str, int] = {"rnn": 1, "gru": 3, "lstm": 4}  # products of a step, stacked as torch stacks them
STATES: dict[str, int] = {"rnn": 1, "gru": 1, "lstm": 2}

# torch's kernels copy weights that do not lie side by side, and leave out one of their libraries: both cost little
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


@dataclass(frozen=True)
class RecurrentSpec(Spec):
    """Layers of one cell over token vectors; `sizes` are those of the layers' states.

    An LSTM with a `projection` hands on, and back to itself, a vector of that size (Sak et al. 2014). `reset` is the
    GRU's: before the product, as in its paper (Cho et al. 2014), or after it, as torch's fused kernel has it.

    `direction` both is two stacks side by side that know nothing of each other, one for each way; crossed has layers
    that read both ways of the one below. A layer's output y stands for itself, or joins what the layer read, x:
    residual x + y, highway t·y + (1 − t)·x with a gate t of x (Srivastava et al. 2015), dense: a layer reads the token
    vectors and the outputs of all layers below. The layers below `links_from` have no link.

    Dropout is on what enters the first layer (`input_dropout`), on what passes between layers (`dropout`), on what
    leaves the last (`output_dropout`); `locked`, its mask is the same at every time step of a sequence (Gal and
    Ghahramani 2016). `weight_dropout` is on the matrices from state to state, one mask for a whole reading (Merity et
    al. 2018, §2).

    With a `context`, whoever reads answers the first layer at every step: its state so far is the question, a vector of
    that size the answer, which joins what the layer reads (`Answers`).
    """

    embeddings: EmbeddingsSpec | CharactersSpec
    sizes: tuple[int, ...]
    cell: Cell = "lstm"
    projection: int = 0
    reset: Literal["before", "after"] = "after"
    direction: Literal["forward", "backward", "both", "crossed"] = "forward"
    links: Literal["none", "residual", "dense", "highway"] = "none"
    input_dropout: float = 0.0
    dropout: float = 0.0
    output_dropout: float = 0.0
    weight_dropout: float = 0.0
    locked: bool = False
    forget_bias: float = 0.0  # added to the LSTM's forget gates at the start
    forget_offset: float | None = None  # with a number, cells have one bias, and this is added to the forget gates
    cell_clip: float = 0.0  # an LSTM's cell stays within ± this; 0 is anywhere. What is clipped runs the plain body
    projection_clip: float = 0.0
    links_from: int = 1
    context: int = 0
    pooler: PoolerSpec = field(default_factory=lambda: PoolerSpec("last"))
    init: InitSpec = field(default_factory=InitSpec)

    def __post_init__(self) -> None:
        for name in ("input_dropout", "dropout", "output_dropout", "weight_dropout"):
            in_range(name, getattr(self, name), 0, 1)
        in_range("projection", self.projection, 0, math.inf)
        for size in self.sizes:
            in_range("a size of sizes", size, 1, math.inf)
        if self.projection and self.cell != "lstm":
            raise UserError(f"projection is {self.projection}, which the cell {self.cell!r} does not have: 0 or 'lstm'")
        in_range("cell_clip", self.cell_clip, 0, math.inf)
        in_range("projection_clip", self.projection_clip, 0, math.inf)
        in_range("links_from", self.links_from, 1, math.inf)
        in_range("context", self.context, 0, math.inf)
        reads = (self.embeddings.dim, *(self.width * size for size in self.outputs))[self.links_from - 1 :]
        if self.links in ("residual", "highway") and len(set(reads)) > 1:
            raise UserError(
                f"links {self.links!r} need what each layer reads and writes to be of one size, not {reads}"
            )

    @property
    def outputs(self) -> tuple[int, ...]:
        """The size of what each layer hands on, in one direction."""
        return tuple(self.projection or size for size in self.sizes)

    @property
    def stacks(self) -> tuple[tuple[str, ...], ...]:
        """The ways that the layers of each stack read."""
        return {"both": (("forward",), ("backward",)), "crossed": (("forward", "backward"),)}.get(
            self.direction, ((self.direction,),)
        )

    @property
    def width(self) -> int:
        """How many directions stand side by side in what a layer of a stack reads."""
        return len(self.stacks[0])

    @property
    def inputs(self) -> tuple[int, ...]:
        """What each layer of a stack reads."""
        below = (self.embeddings.dim, *(self.width * size for size in self.outputs))
        return tuple(sum(below[: i + 1]) if self.links == "dense" else below[i] for i in range(len(self.sizes)))

    @property
    def dim(self) -> int:
        return self.outputs[-1] * len(self.stacks) * self.width

    @property
    def num_layers(self) -> int:
        return len(self.sizes)

    @property
    def num_blocks(self) -> int:
        return len(self.sizes)

    @property
    def causal(self) -> bool:
        return self.direction == "forward"

    @property
    def weights(self) -> int:
        """How many weights of matrices a token meets."""
        gates, highway = GATES[self.cell], self.links == "highway"
        found = self.embeddings.inner * self.embeddings.dim + gates * self.context * sum(self.sizes[:1])
        for read, size, out in zip(self.inputs, self.sizes, self.outputs):
            one = gates * size * (read + out) + (size * out if self.projection else 0)
            found += len(self.stacks) * (self.width * one + highway * read * read)
        return found

    num_segments: ClassVar[int] = 0
    num_heads: ClassVar[int] = 0
    by_lengths: ClassVar[bool] = True
    one_shape: ClassVar[bool] = False
    stream: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        return self.direction in ("forward", "backward")

    def build(self) -> Recurrent:
        if not self.sizes:
            raise UserError("a trunk needs one layer or more")
        return Recurrent(self)


class Steps:
    """The Layout as recurrence wants it: time step by time step.

    Where all sequences have one length, [length, sequences, …]; else one flat list as in a PackedSequence: the
    sequences sorted from long to short, `counts` how many are left at each step.
    """

    def __init__(self, layout: Layout):
        lengths, device = np.array(layout.lengths, dtype=np.int64), layout.starts.device
        self.number, self.longest = len(lengths), int(lengths.max(initial=0))
        self.even = self.number > 0 and bool((lengths == self.longest).all())
        self.sequences: Tensor | None = None  # those with a token, from long to short
        if self.even:
            self.counts = np.full(self.longest, self.number)
            return
        order = np.argsort(-lengths, kind="stable")[: int((lengths > 0).sum())]
        sizes, starts = lengths[order], (np.cumsum(lengths) - lengths)[order]
        self.counts = len(sizes) - np.searchsorted(sizes[::-1], np.arange(self.longest), side="right")
        times = np.repeat(np.arange(self.longest), self.counts)
        ranks = np.arange(len(times)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        index = starts[ranks] + times
        back = np.empty_like(index)
        back[index] = np.arange(len(index))
        turned = back[starts[ranks] + sizes[ranks] - 1 - times]
        self.sequences, self.index, self.back, self.turned, self.ranks = (
            torch.from_numpy(found).to(device, non_blocking=True) for found in (order, index, back, turned, ranks)
        )

    def enter(self, x: Tensor) -> Tensor:
        if self.even:
            return x.view(self.number, self.longest, x.shape[-1]).transpose(0, 1)
        return x.index_select(0, self.index)

    def leave(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(0, 1) if self.even else x.index_select(0, self.back)

    def turn(self, x: Tensor) -> Tensor:
        """Each sequence from its end to its start, and the other way round."""
        return x.flip(0) if self.even else x.index_select(0, self.turned)

    def locked(self, x: Tensor, p: float) -> Tensor:
        """Dropout whose mask is one for a sequence."""
        mask = F.dropout(x.new_ones(len(self.counts) and int(self.counts[0]), x.shape[-1]), p)
        return x * (mask if self.even else mask.index_select(0, self.ranks))

    def begin(self, states: Sequence[Tensor]) -> list[Tensor]:
        """The states of sequences as the body wants them."""
        return [s if self.sequences is None else s.index_select(0, self.sequences) for s in states]

    def end(self, states: Sequence[Tensor], before: Sequence[Tensor]) -> list[Tensor]:
        """The inverse of `begin`; a sequence without a token keeps its state."""
        if self.sequences is None:
            return list(states)
        return [old.to(new.dtype).index_copy(0, self.sequences, new) for old, new in zip(before, states)]


class Answers(Protocol):
    """What answers a layer at every step, with a vector for each state."""

    def along(self, sequences: Tensor | None) -> Callable[[Tensor], Tensor]:
        """For sequences in this order, the answers to the states [n, size] of the first n of them, [n, context]."""

    def done(self, packed: Callable[[Tensor], Tensor]) -> None:
        """All steps were asked for; the function turns rows, step after step, into a packed batch."""


class Recurrence(nn.Module):
    """One cell, run over sequences in one direction; its weights are laid out as those of torch's own modules."""

    def __init__(self, spec: RecurrentSpec, read: int, size: int, context: int = 0):
        super().__init__()
        self.spec, self.size, self.out = spec, size, spec.projection or size
        rows = GATES[spec.cell] * size
        self.weight_ih = nn.Parameter(torch.empty(rows, read))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.out))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows)) if spec.forget_offset is None else None
        self.weight_hr = nn.Parameter(torch.empty(self.out, size)) if spec.projection else None
        self.weight_ch = nn.Parameter(torch.empty(rows, context)) if context else None

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Uniform in ± 1 / √size, as torch's modules begin."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.size**-0.5), self.size**-0.5, generator=generator)
        if self.spec.cell == "lstm":
            self.bias_ih[self.size : 2 * self.size] += self.spec.forget_bias

    def start(self, number: int, like: Tensor) -> list[Tensor]:
        return [like.new_zeros(number, size) for size in (self.out, self.size)[: STATES[self.spec.cell]]]

    def forward(
        self, x: Tensor, steps: Steps, states: list[Tensor], plain: bool, answers: Answers | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """What it says at each step, and its states after the last; `x` and the outcome are as `steps` has them."""
        states = [s.to(x.dtype) for s in states]  # under autocast a layer says less than it was told
        hidden = F.dropout(self.weight_hh, self.spec.weight_dropout, self.training)
        weights = [self.weight_ih, hidden, self.bias_ih, self._second_bias()]
        if self.weight_hr is not None:
            weights.append(self.weight_hr)
        if not steps.longest:
            return x.new_zeros(*x.shape[:-1], self.out), states
        plain = plain or (self.spec.cell == "gru" and self.spec.reset == "before")
        plain = plain or self.spec.cell_clip > 0 or self.spec.projection_clip > 0
        if plain or self.weight_ch is not None:
            y, ended = self._plain(x, steps, weights, steps.begin(states), answers)
        else:
            y, ended = self._fused(x, steps, weights, steps.begin(states))
        return y, steps.end(ended, states)

    def _second_bias(self) -> Tensor:
        if self.bias_hh is not None:
            return self.bias_hh
        found = torch.zeros_like(self.bias_ih)
        if self.spec.cell == "lstm" and self.spec.forget_offset:
            found[self.size : 2 * self.size] = self.spec.forget_offset
        return found

    def _fused(self, x: Tensor, steps: Steps, weights: list[Tensor], states: list[Tensor]) -> tuple[Tensor, list]:
        run: Any = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}[self.spec.cell]
        given: Any = [s[None].contiguous() for s in states]
        given = given if self.spec.cell == "lstm" else given[0]
        if steps.even:  # biases, one layer, no dropout, training, one direction, time first
            y, *ended = run(x.contiguous(), given, weights, True, 1, 0.0, self.training, False, False)
        else:
            counts = torch.from_numpy(steps.counts)
            y, *ended = run(x, counts, given, weights, True, 1, 0.0, self.training, False)
        return y, [s[0] for s in ended]

    def _plain(
        self, x: Tensor, steps: Steps, weights: list[Tensor], states: list[Tensor], answers: Answers | None
    ) -> tuple[Tensor, list]:
        """Step by step, as the papers write it; the products with the input are made for all steps at once."""
        from_input = F.linear(x, weights[0], weights[2]).flatten(0, -2)
        found = []
        answer = answers.along(steps.sequences) if answers and self.weight_ch is not None else None
        for given in from_input.split(steps.counts.tolist()):
            going, done = [s[: len(given)] for s in states], [s[len(given) :] for s in states]
            if answer is not None and self.weight_ch is not None:
                given = given + F.linear(answer(going[0]), self.weight_ch)
            going = self._step(given, weights, *going)
            found.append(going[0])
            states = [torch.cat(pair) for pair in zip(going, done)] if len(done[0]) else going
        if answer is not None and answers is not None:
            answers.done(lambda rows: steps.leave(rows.view(*x.shape[:-1], -1)))
        return torch.cat(found).view(*x.shape[:-1], self.out), states

    def _step(self, given: Tensor, weights: list[Tensor], hidden: Tensor, *cell: Tensor) -> list[Tensor]:
        """The next states of some sequences, from what their input gives and their states."""
        matrix, bias = weights[1], weights[3]
        if self.spec.cell == "rnn":
            return [torch.tanh(given + F.linear(hidden, matrix, bias))]
        if self.spec.cell == "lstm":
            enter, forget, new, leave = (given + F.linear(hidden, matrix, bias)).chunk(4, dim=-1)
            kept = _clipped(forget.sigmoid() * cell[0] + enter.sigmoid() * new.tanh(), self.spec.cell_clip)
            said = leave.sigmoid() * kept.tanh()
            if self.weight_hr is not None:
                said = _clipped(F.linear(said, self.weight_hr), self.spec.projection_clip)
            return [said, kept]
        size = self.size
        reset, update = (given[:, : 2 * size] + F.linear(hidden, matrix[: 2 * size], bias[: 2 * size])).chunk(2, dim=-1)
        reset, update = reset.sigmoid(), update.sigmoid()
        if self.spec.reset == "before":
            new = F.linear(reset * hidden, matrix[2 * size :], bias[2 * size :])
        else:
            new = reset * F.linear(hidden, matrix[2 * size :], bias[2 * size :])
        return [(1 - update) * torch.tanh(given[:, 2 * size :] + new) + update * hidden]


def _clipped(x: Tensor, most: float) -> Tensor:
    return x.clamp(-most, most) if most else x


class Layer(nn.Module):
    """The cells of one depth of a stack, one for each way it reads, and how their output joins what they read."""

    def __init__(self, spec: RecurrentSpec, ways: tuple[str, ...], depth: int):
        super().__init__()
        read, size = spec.inputs[depth - 1], spec.sizes[depth - 1]
        self.links, self.ways = spec.links if depth >= spec.links_from else "none", ways
        self.cells = nn.ModuleList(Recurrence(spec, read, size, spec.context * (depth == 1)) for _ in ways)
        self.gate = nn.Linear(read, read) if self.links == "highway" else None

    def start(self, number: int, like: Tensor) -> list[list[Tensor]]:
        """The states before a text, of each of its cells."""
        return [cell.start(number, like) for cell in cast(Iterable[Recurrence], self.cells)]

    def forward(
        self, x: Tensor, steps: Steps, states: list[list[Tensor]], plain: bool, answers: Answers | None = None
    ) -> tuple[Tensor, list[list[Tensor]]]:
        found, ended = [], []
        for way, cell, own in zip(self.ways, self.cells, states):
            turned = way == "backward"
            y, after = cell(steps.turn(x) if turned else x, steps, own, plain, answers)
            found.append(steps.turn(y) if turned else y)
            ended.append(after)
        y = torch.cat(found, dim=-1) if len(found) > 1 else found[0]
        if self.links == "residual":
            y = x + y
        if self.gate is not None:
            share = self.gate(x).sigmoid()
            y = share * y + (1 - share) * x
        return y, ended


class Recurrent(nn.Module):
    """With `plain`, the plain body serves; with `recompute`, training keeps what layers read and runs them again."""

    def __init__(self, spec: RecurrentSpec):
        super().__init__()
        self.spec = spec
        self.plain = self.recompute = False
        self.embeddings = spec.embeddings.build()
        self.stacks = nn.ModuleList(
            nn.ModuleList(Layer(spec, ways, depth) for depth in range(1, spec.num_layers + 1)) for ways in spec.stacks
        )
        self.pooler = spec.pooler.build(spec.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Memory | None = None,
        remember: bool = False,
        queries: Queries | None = None,
        source: Source | None = None,
        table: Tensor | None = None,
        answers: Answers | None = None,
    ) -> Reading:
        """Read a chunk. With `remember`, the reading carries the states with which the next chunk is read.

        The next chunk of a trunk that reads backwards stands before this one. Two stacks that read both ways each go
        on from their own states, as ELMo's published program does from batch to batch. Layers are kept as they are
        before the dropout that follows them; the vectors of tokens once for each stack. `table` are the token vectors
        where they are another trunk's, `answers` what the first layer is told at each step.
        """
        spec = self.spec
        if (remember or memory) and spec.width > 1:
            raise UserError("a trunk whose layers read both directions of those below has no memory")
        steps, wanted = Steps(layout), set(keep)
        x = self.embeddings(tokens, layout.positions, segments, layout.longest, table)
        depths: list[list[Tensor]] = [[] for _ in spec.sizes]  # of each depth, what each stack says
        ends: list[tuple[Tensor, ...]] = []
        lasts = []
        first = self._dropped(steps.enter(x), steps, spec.input_dropout)
        for number, stack in enumerate(self.stacks):
            below, last = first, first
            for depth, layer in enumerate(cast(Iterable[Layer], stack)):
                states = (
                    [list(memory.states[number * spec.num_layers + depth])] if memory else layer.start(steps.number, x)
                )
                if self.recompute and self.training:
                    y, ended = checkpoint(layer, below, steps, states, self.plain, answers, use_reentrant=False)
                else:
                    y, ended = layer(below, steps, states, self.plain, answers)
                ends.append(tuple(t for each in ended for t in each))
                if depth + 1 in wanted:
                    depths[depth].append(steps.leave(y))
                top = depth + 1 == spec.num_layers
                last = self._dropped(y, steps, spec.output_dropout if top else spec.dropout)
                below = torch.cat([below, last], dim=-1) if spec.links == "dense" else last
            lasts.append(steps.leave(last))
        layers = {depth: torch.cat(depths[depth - 1], dim=-1) for depth in wanted if depth}
        layers |= {0: torch.cat([x] * len(self.stacks), dim=-1)} if 0 in wanted else {}
        found = torch.cat(lasts, dim=-1) if len(lasts) > 1 else lasts[0]
        return Reading(found, layers, self._remembered(ends, layout, memory) if remember else None)

    def _dropped(self, x: Tensor, steps: Steps, p: float) -> Tensor:
        if not p or not self.training:
            return x
        return steps.locked(x, p) if self.spec.locked else F.dropout(x, p)

    def _remembered(self, ends: list[tuple[Tensor, ...]], layout: Layout, memory: Memory | None) -> Memory:
        """One row for each sequence."""
        read = memory.read if memory else (0,) * len(layout.lengths)
        rows = Layout.recalled((1,) * len(layout.lengths), layout.starts.device)
        return Memory(rows, tuple(ends), tuple(a + b for a, b in zip(read, layout.lengths)))

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """One vector a sequence, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def table(self) -> Any:
        """The token vectors, which tied language-model heads share."""
        return self.embeddings.table

    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group a layer."""
        depths = [nn.ModuleList(layers) for layers in zip(*self.stacks)]
        found = [list(part.parameters()) for part in (self.embeddings, *depths, self.pooler)]
        return [group for group in found if group]

    def matrices(self) -> list[tuple[Tensor, int]]:
        """The matrices of the cells, and how many are stacked in each: what Muon makes orthogonal."""
        cells = [part for part in self.modules() if isinstance(part, Recurrence)]
        found = [w for cell in cells for w in (cell.weight_ih, cell.weight_hh, cell.weight_ch) if w is not None]
        return [(weight, GATES[self.spec.cell]) for weight in found]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, self.spec.num_layers, generator)
        self.start_cells(generator)

    def start_cells(self, generator: torch.Generator | None) -> None:
        for part in self.modules():
            if isinstance(part, Recurrence):
                part.initialise(generator)
