"""The window trunk: a state is made from the last few tokens alone (Bengio et al. 2003)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.nn.attention.relative import Queries
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.memory import Memory, close_caches, open_caches
from polyseme.nn.packing import Layout, Source
from polyseme.nn.trunks.transformer import PoolerSpec, Reading, SimpleTrunkSpec, Trunk


@dataclass(frozen=True)
class WindowSpec(SimpleTrunkSpec):
    """The vectors of `window` tokens, the state's own last, side by side, through one layer with tanh.

    With `direct`, those vectors stand behind what the layer makes of them, so that a linear head on the state has
    direct connections from words to words. Before the first token of a sequence there is nothing: zeros.
    """

    embeddings: EmbeddingsSpec
    window: int
    hidden_dim: int
    direct: bool = False
    dropout: float = 0.0  # on the state
    pooler: PoolerSpec = field(default_factory=lambda: PoolerSpec("mean"))
    init: InitSpec = field(default_factory=InitSpec)

    num_layers: ClassVar[int] = 1
    num_blocks: ClassVar[int] = 1
    num_segments: ClassVar[int] = 0
    by_lengths: ClassVar[bool] = False
    one_shape: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.within(1, math.inf, "window", "hidden_dim")
        self.within(0, 1, "dropout")

    @property
    def read(self) -> int:
        """The size of what stands side by side."""
        return self.window * self.embeddings.dim

    @property
    def dim(self) -> int:
        return self.hidden_dim + self.read * self.direct

    @property
    def weights(self) -> int:
        """How many weights of matrices a token meets."""
        return self.read * self.hidden_dim + self.embeddings.inner * self.embeddings.dim

    def build(self) -> Window:
        return Window(self)


class Window(Trunk):
    def __init__(self, spec: WindowSpec):
        super().__init__()
        self.spec = spec
        self.embeddings = spec.embeddings.build()
        self.hidden = nn.Linear(spec.read, spec.hidden_dim)
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
    ) -> Reading:
        """Read a chunk; the memory is the vectors of the tokens before it that a window can reach."""
        x = self.embeddings(tokens, layout.positions, segments, layout.longest)
        caches = open_caches(memory, layout, 1) if remember or memory else None
        rows, joined, new = x, layout, torch.arange(layout.total, device=x.device)
        if caches:
            rows, joined = caches[0].extend(x)
            # the chunk's rows are the last of each sequence
            shifts = joined.starts[1:].long() - layout.starts[1:].long()
            new = new + shifts.repeat_interleave(layout.starts.diff(), output_size=layout.total)
        positions = joined.positions.index_select(0, new)
        beside = [
            rows.index_select(0, (new - back).clamp(min=0)).masked_fill((positions < back)[:, None], 0.0)
            for back in range(self.spec.window - 1, -1, -1)
        ]
        read = torch.cat(beside, dim=-1)
        state = torch.tanh(self.hidden(read))
        state = torch.cat([state, read], dim=-1) if self.spec.direct else state
        layers = {depth: each for depth, each in enumerate((x, state)) if depth in set(keep)}
        last = F.dropout(state, self.spec.dropout, self.training)
        kept = close_caches(caches, layout, memory).last(self.spec.window - 1) if caches and remember else None
        return Reading(last, layers, kept)

    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output."""
        found = [list(part.parameters()) for part in (self.embeddings, self.hidden, self.pooler)]
        return [group for group in found if group]

    def matrices(self) -> list[tuple[Tensor, int]]:
        return [(self.hidden.weight, 1)]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, 1, generator)
