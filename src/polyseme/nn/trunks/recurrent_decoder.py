"""A recurrent decoder: cells that begin with what a source came to, and look back at it at every step, or do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.attention.rnn_attention import Look, Looking, LookSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Layout, Source
from polyseme.nn.trunks.recurrent import STATES, RecurrentSpec
from polyseme.nn.trunks.transformer import PoolerSpec, Reading


@dataclass(frozen=True)
class RecurrentDecoderSpec(Spec):
    """The layers of `stack` over a target; `source` is the size of the states of its source.

    All cells start from the source as `opening` pools it, through a dense layer and tanh. With a `look`, the context
    found in the source comes before the recurrence or after it. If the stack has a `context`, the first layer asks with
    its last state and reads the answer with the next token (Bahdanau et al. 2015, §3.1); if not, the states of the last
    layer ask, all at once. Either way a state s and its context c leave as tanh(W [c; s]) (Luong et al. 2015, §3).
    """

    stack: RecurrentSpec
    source: int
    look: LookSpec | None = None
    opening: PoolerSpec = field(default_factory=lambda: PoolerSpec("ends"))
    dropout: float = 0.0  # on what leaves it

    static: ClassVar[bool] = False
    looks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.within(0, 1, "dropout")
        if self.stack.context and (self.look is None or self.stack.context != self.source):
            raise UserError(
                f"context is {self.stack.context}, which needs a look at states of that size: "
                f"0, or {self.source} with a look"
            )

    @property
    def embeddings(self) -> EmbeddingsSpec:
        assert isinstance(self.stack.embeddings, EmbeddingsSpec)
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
    def by_lengths(self) -> bool:
        return self.stack.by_lengths

    @property
    def causal(self) -> bool:
        return self.stack.causal

    @property
    def weights(self) -> tuple[int, int]:
        """How many weights of matrices a token meets, and how many a token of its source."""
        dim, look = self.dim, self.look
        if look is None:
            return self.stack.weights, 0
        inner = (look.inner or dim) if look.score == "additive" else dim
        asks = dim * inner if look.score == "additive" else 0
        return self.stack.weights + asks + dim * (dim + self.source), look.projects * self.source * inner

    def build(self) -> RecurrentDecoder:
        return RecurrentDecoder(self)


class RecurrentDecoder(nn.Module):
    def __init__(self, spec: RecurrentDecoderSpec):
        super().__init__()
        self.spec = spec
        self.stack = spec.stack.build()
        self.opening = spec.opening.build(spec.source)
        states = STATES[spec.stack.cell]
        self.sizes = [pair[:states] for pair in zip(spec.stack.outputs, spec.stack.sizes)]  # of each layer's states
        self.bridge = nn.Linear(spec.source, sum(map(sum, self.sizes)))
        asks = spec.stack.outputs[0] if spec.stack.context else spec.dim
        self.look = spec.look.build(asks, spec.source) if spec.look else None
        self.join = nn.Linear(spec.source + spec.dim, spec.dim, bias=False) if spec.look else None
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Memory | None = None,
        remember: bool = False,
        source: Source | None = None,
        table: Tensor | None = None,
    ) -> Reading:
        """Read a chunk of targets, whose sources are as `prepared` has them. Memory is the state of the cells."""
        return self._read(tokens, layout, keep, memory, remember, source, table)[0]

    def _read(
        self,
        tokens: Tensor,
        layout: Layout,
        keep: Iterable[int],
        memory: Memory | None,
        remember: bool,
        source: Source | None,
        table: Tensor | None,
    ) -> tuple[Reading, Looking | None]:
        assert source is not None, "a decoder needs a source"
        looking = self.look.opened(source) if self.look is not None else None
        reading = self.stack(
            tokens,
            layout,
            keep=keep,
            memory=self._opened(source, layout) if memory is None else memory,
            remember=remember,
            table=table,
            answers=looking if self.spec.stack.context else None,
        )
        last = reading.last
        if looking is not None and self.join is not None:
            if not self.spec.stack.context:
                looking.at_once(last, layout)
            last = self.join(torch.cat([looking.contexts, last], dim=-1)).tanh()
        return dataclasses.replace(reading, last=self.dropout(last)), looking

    def _opened(self, source: Source, layout: Layout) -> Memory:
        """The states before a target."""
        number = len(layout.lengths)
        pooled = self.opening(source.values[:, : self.spec.source], source.layout)[:number]
        parts = self.bridge(pooled).tanh().split([size for sizes in self.sizes for size in sizes], dim=-1)
        found = iter(parts)
        states = tuple(tuple(next(found) for _ in sizes) for sizes in self.sizes)
        return Memory(Layout.of([1] * number, device=layout.starts.device), states, (0,) * number)

    def prepared(self, states: Tensor) -> Tensor:
        """What is kept of a source's states to look at."""
        return states if self.look is None else self.look.offered(states)

    def cross_weights(self, tokens: Tensor, layout: Layout, source: Source, table: Tensor | None) -> list[list[Tensor]]:
        """Which states of the source a target looks at, [1, queries, keys] for each sequence; none if it does not."""
        looking = self._read(tokens, layout, (), None, False, source, table)[1]
        if looking is None:
            return []
        shares = looking.shares.split(list(layout.lengths))
        return [[part[None, :, :length] for part, length in zip(shares, source.layout.lengths)]]

    @property
    def table(self) -> Any:
        return self.stack.table

    @property
    def recompute(self) -> bool:
        return self.stack.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self.stack.recompute = value

    def groups(self) -> list[list[nn.Parameter]]:
        """The start of all cells stands with their input, what joins behind them at the end."""
        first, *rest = self.stack.groups()
        last = [p for part in (self.look, self.join) if part is not None for p in part.parameters()]
        return [[*first, *self.bridge.parameters()], *rest, *([last] if last else [])]

    def matrices(self) -> list[tuple[Tensor, int]]:
        look = [] if self.look is None else [self.look.keys, self.look.query]
        dense = [part.weight for part in (self.bridge, self.join, *look) if part is not None]
        return [*self.stack.matrices(), *((weight, 1) for weight in dense)]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.stack.init.apply(self, self.spec.num_layers, generator)
        self.stack.start_cells(generator)
        if isinstance(self.look, Look):
            self.look.initialise()
