"""The trunk: reads a packed batch, returns hidden states and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.errors import UserError
from polyseme.parts.block import Block, BlockSpec
from polyseme.parts.embeddings import EmbeddingsSpec
from polyseme.parts.feedforward import ACTIVATIONS
from polyseme.parts.init import InitSpec
from polyseme.parts.layout import Layout, Source
from polyseme.parts.memory import Memory, close_caches, open_caches
from polyseme.parts.norms import NoNormSpec, NormSpec
from polyseme.parts.score_bias import NoBiasSpec, ScoreBiasSpec
from polyseme.parts.spec import Spec


@dataclass(frozen=True)
class PoolerSpec(Spec):
    """One vector a sequence: its first or last token, through a dense layer and tanh if the family has one."""

    place: Literal["first", "last"] = "first"
    dense: bool = False

    def build(self, dim: int) -> Pooler:
        return Pooler(self, dim)


class Pooler(nn.Module):
    def __init__(self, spec: PoolerSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.dense = nn.Linear(dim, dim) if spec.dense else None

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        x = hidden.index_select(0, layout.first if self.spec.place == "first" else layout.last)
        return x if self.dense is None else ACTIVATIONS["tanh"](self.dense(x))


@dataclass(frozen=True, eq=False)
class Reading:
    """What a trunk makes of a batch. `layers` holds those asked for: 0 the embeddings, i the output of depth i."""

    last: Tensor  # [T, dim]
    layers: dict[int, Tensor]
    memory: Memory | None = None


@dataclass(frozen=True)
class TransformerSpec(Spec):
    """`order` names the block that runs at each depth, so that sharing blocks is data.

    Where blocks are not alike, `pattern` says of each block which kind it is: 0 is `block`, i is `variants[i − 1]`.
    """

    embeddings: EmbeddingsSpec
    block: BlockSpec
    order: tuple[int, ...]
    variants: tuple[BlockSpec, ...] = ()
    pattern: tuple[int, ...] = ()
    final_norm: NormSpec = field(default_factory=NoNormSpec)
    pooler: PoolerSpec = field(default_factory=PoolerSpec)
    init: InitSpec = field(default_factory=InitSpec)
    score_bias: ScoreBiasSpec = field(default_factory=NoBiasSpec)
    final_dropout: float = 0.0  # behind the final norm

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    @property
    def num_layers(self) -> int:
        return len(self.order)

    @property
    def causal(self) -> bool:
        return self.block.attention.causal

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The spec of each block."""
        number = max(self.order) + 1
        kinds = (self.block, *self.variants)
        if self.pattern and (
            len(self.pattern) != number or not 0 <= min(self.pattern) <= max(self.pattern) < len(kinds)
        ):
            raise UserError(
                f"pattern {list(self.pattern)} does not name a kind, 0 to {len(kinds) - 1}, for {number} blocks"
            )
        return tuple(kinds[kind] for kind in self.pattern or (0,) * number)

    def build(self) -> Transformer:
        if not self.order:
            raise UserError("a trunk needs one layer or more")
        return Transformer(self)


class Transformer(nn.Module):
    """With `recompute`, training keeps the input of each block alone and runs the block again backwards."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.recompute = False
        self.embeddings = spec.embeddings.build()
        self.blocks = nn.ModuleList(block.build(spec.dim) for block in spec.blocks)
        self.final_norm = spec.final_norm.build(spec.dim)
        self.final_dropout = nn.Dropout(spec.final_dropout)
        self.score_bias = spec.score_bias.build(spec.block.attention.num_heads, spec.causal)
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
        source: Source | None = None,
        table: Tensor | None = None,
    ) -> Reading:
        """Read a chunk. With `remember`, the reading carries the memory with which the next chunk is read.

        `source` is for blocks with cross attention; `table` are the token vectors where they are another trunk's.
        """
        caches = open_caches(memory, layout, len(self.spec.order)) if remember or memory else None
        positions, longest = layout.positions, layout.longest
        if memory is not None:
            lengths = torch.tensor(layout.lengths, device=tokens.device)
            past = torch.tensor(memory.layout.lengths, device=tokens.device)
            positions = positions + past.repeat_interleave(lengths, output_size=layout.total)
            longest = max(p + n for p, n in zip(memory.layout.lengths, layout.lengths))
        x = self.embeddings(tokens, positions, segments, longest, table)
        bias = self.score_bias(longest)
        wanted = set(keep)
        layers = {0: x} if 0 in wanted else {}
        for depth, block in enumerate(self.depths(), start=1):
            if self.recompute and self.training and caches is None:
                x = checkpoint(block, x, layout, positions, None, bias, source, use_reentrant=False)
            else:
                x = block(x, layout, positions, caches[depth - 1] if caches else None, bias, source)
            if depth == self.spec.num_layers:
                x = self.final_dropout(self.final_norm(x))
            if depth in wanted:
                layers[depth] = x
        return Reading(x, layers, close_caches(caches) if caches else None)

    def depths(self) -> list[Block]:
        """The block that runs at each depth, from input to output."""
        return [self.blocks[i] for i in self.spec.order]  # type: ignore[misc]

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """One vector a sequence, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def table(self) -> Tensor:
        """The token vectors, which tied language-model heads share."""
        return self.embeddings.table()

    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group a layer: for freezing and for rates by depth."""
        top = [*self.final_norm.parameters(), *self.pooler.parameters()]
        bottom = [*self.embeddings.parameters(), *self.score_bias.parameters()]
        found = [bottom, *(list(b.parameters()) for b in self.blocks)]
        return [*found, top] if top else found

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, 2 * self.spec.num_layers, generator)
