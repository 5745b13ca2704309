"""The trunk: reads a packed batch, returns hidden states and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.attention.relative import NoRelationsSpec, Queries, RelationsSpec, RelativeAttentionSpec
from polyseme.nn.attention.score_bias import BucketBiasSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsSpec
from polyseme.nn.layers.block import Block, BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ACTIVATIONS
from polyseme.nn.layers.norms import NoNormSpec, NormSpec
from polyseme.nn.memory import Memory, close_caches, open_caches
from polyseme.nn.packing import Layout, Source
from polyseme.nn.static_memory import StaticMemory

HALVES = "attention", "ffn"  # how the names of a block's parts begin


@dataclass(frozen=True)
class PoolerSpec(Spec):
    """One vector a sequence: its first or last token or their mean, through a dense layer and tanh if there is one.

    `ends` is for two directions side by side: where each of them has read everything.
    """

    place: Literal["first", "last", "mean", "ends"] = "first"
    dense: bool = False

    def build(self, dim: int) -> Pooler:
        return Pooler(self, dim)


class Pooler(nn.Module):
    def __init__(self, spec: PoolerSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.dense = nn.Linear(dim, dim) if spec.dense else None

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        if self.spec.place == "mean":
            x = layout.mean(hidden)
        elif self.spec.place == "ends":
            half = hidden.shape[-1] // 2
            ends = hidden.index_select(0, layout.last)[:, :half], hidden.index_select(0, layout.first)[:, half:]
            x = torch.cat(ends, dim=-1)
        else:
            x = hidden.index_select(0, layout.first if self.spec.place == "first" else layout.last)
        return x if self.dense is None else ACTIVATIONS["tanh"](self.dense(x))


@dataclass(frozen=True, eq=False)
class Reading:
    """What a trunk makes of a batch. `layers` holds those asked for: 0 the embeddings, i the output of depth i."""

    last: Tensor  # [T, dim]
    layers: dict[int, Tensor]
    memory: Any = None  # a Memory, if it was asked for


@dataclass(frozen=True)
class SimpleTrunkSpec(Spec):
    """What others ask of every trunk's spec, as it is of one without attention; abstract. A spec says where it differs.

    It also has `embeddings`, `pooler` and `init`, `dim`, `num_layers`, `num_segments` and `by_lengths`, and `weights`,
    how many weights of matrices a token meets. What the names mean is said in `TransformerSpec`.
    """

    causal: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 0
    num_heads: ClassVar[int] = 0
    one_shape: ClassVar[bool] = False
    stream: ClassVar[bool] = False
    remembers: ClassVar[bool] = False


class Trunk(nn.Module):
    """What others ask of every trunk besides `forward`, `groups` and `initialise`."""

    embeddings: Any
    pooler: Pooler
    recompute = False

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """One vector a sequence, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def table(self) -> Any:
        """The token vectors, which tied heads share, where there are such."""
        return self.embeddings.table

    def matrices(self) -> list[tuple[Tensor, int]]:
        """The matrices inside, and how many are stacked in each: what Muon makes orthogonal."""
        return []


@dataclass(frozen=True)
class TransformerSpec(Spec):
    """`order` names the block that runs at each depth, so that sharing blocks is data.

    With `ffn_order`, the two name attention and feed-forward apart: each pair of them is a block, and blocks that name
    the same attention, or the same feed-forward, share its weights. Where blocks are not alike, `pattern` says of each
    block which kind it is: 0 is `block`, i is `variants[i − 1]`.
    """

    embeddings: EmbeddingsSpec | AdaptiveEmbeddingsSpec
    block: BlockSpec
    order: tuple[int, ...]
    variants: tuple[BlockSpec, ...] = ()
    pattern: tuple[int, ...] = ()
    final_norm: NormSpec = field(default_factory=NoNormSpec)
    pooler: PoolerSpec = field(default_factory=PoolerSpec)
    init: InitSpec = field(default_factory=InitSpec)
    relations: RelationsSpec | NoRelationsSpec | BucketBiasSpec = field(default_factory=NoRelationsSpec)
    memory_len: int = 0  # how many tokens of each sequence are remembered; 0 is all
    ffn_order: tuple[int, ...] = ()
    final_dropout: float = 0.0  # behind the final norm

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    @property
    def num_layers(self) -> int:
        return len(self.order)

    @property
    def by_lengths(self) -> bool:
        """Whether its attention works by lengths that the host knows: its kernels cannot be recorded for others."""
        return not isinstance(self.relations, NoRelationsSpec)

    @property
    def one_shape(self) -> bool:
        """Whether a batch filled up to one shape is all it needs, as `torch.compile` does."""
        return not isinstance(self.relations, RelationsSpec)

    @property
    def stream(self) -> bool:
        """Whether it can be read by queries that do not see their own token."""
        return isinstance(self.relations, RelationsSpec) and self.relations.stream

    @property
    def remembers(self) -> bool:
        """Whether it hands on a memory that does not grow."""
        return self.memory_len > 0

    @property
    def causal(self) -> bool:
        return self.block.attention.causal

    @property
    def static(self) -> bool:
        """Whether what it remembers is all keys and values it met, for which buffers can be made once."""
        plain = all(isinstance(block.attention, AttentionSpec) for block in (self.block, *self.variants))
        return plain and self.causal and not self.memory_len

    @property
    def looks(self) -> bool:
        """Whether every block looks at a source."""
        return all(block.cross is not None for block in self.blocks)

    @property
    def num_heads(self) -> int:
        return self.block.attention.num_heads

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_segments(self) -> int:
        """How many segments the trunk tells apart, by vectors of their own or by scores; 0 is none."""
        attention = self.block.attention
        relative = isinstance(attention, RelativeAttentionSpec) and attention.segments
        return self.embeddings.num_segments or 2 * relative

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which attention and which feed-forward run at each depth."""
        if self.ffn_order and len(self.ffn_order) != len(self.order):
            raise UserError(f"ffn_order names {len(self.ffn_order)} depths, but order names {len(self.order)}")
        return tuple(zip(self.order, self.ffn_order or self.order))

    @property
    def depths(self) -> tuple[int, ...]:
        """Which block runs at each depth."""
        kinds = sorted(set(self.pairs))
        return tuple(kinds.index(pair) for pair in self.pairs)

    @property
    def blocks(self) -> tuple[BlockSpec, ...]:
        """The spec of each block, in the order of their pairs."""
        number = len(set(self.pairs))
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


class Transformer(Trunk):
    """With `recompute`, training keeps the input of each block alone and runs the block again backwards."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.embeddings = spec.embeddings.build()
        self.relations = spec.relations.build(spec.dim)
        self.blocks = nn.ModuleList(block.build(spec.dim) for block in spec.blocks)
        pairs = sorted(set(spec.pairs))
        for half, numbers in zip(HALVES, zip(*pairs)):
            for block, number in zip(self.blocks, numbers):
                owner = self.blocks[numbers.index(number)]
                for name, part in list(owner.named_children()):
                    if name.startswith(half):
                        setattr(block, name, part)
        self.final_norm = spec.final_norm.build(spec.dim)
        self.final_dropout = nn.Dropout(spec.final_dropout)
        self.pooler = spec.pooler.build(spec.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Memory | StaticMemory | None = None,
        remember: bool = False,
        queries: Queries | None = None,
        source: Source | None = None,
        table: Tensor | None = None,
    ) -> Reading:
        """Read a chunk. With `remember`, the reading carries the memory with which the next chunk is read.

        With `queries`, the states of the query stream stand behind those of the tokens. `source` is for blocks with
        cross attention; `table` are the token vectors where they are another trunk's.
        """
        caches, positions, longest = None, layout.positions, layout.longest
        if memory is not None:
            caches = memory.open(layout, self.spec.num_layers)
            if not isinstance(self.spec.relations, RelationsSpec):  # which knows how far apart tokens are, and no more
                positions, total = memory.places(layout)
                longest = longest if self.spec.memory_len else total  # a set length is read without end, in chunks
        elif remember:
            caches = open_caches(None, layout, self.spec.num_layers)
        x = self.embeddings(tokens, positions, segments, longest, table)
        x, relations = self.relations(x, layout, segments, queries, caches[0] if caches else None)
        wanted = set(keep)
        layers = {0: x} if 0 in wanted else {}
        for depth, block in enumerate(self.depths(), start=1):
            if self.recompute and self.training and caches is None:
                x = checkpoint(block, x, layout, positions, None, relations, source, use_reentrant=False)
            else:
                x = block(x, layout, positions, caches[depth - 1] if caches else None, relations, source)
            if depth == self.spec.num_layers:
                x = self.final_dropout(self.final_norm(x))
            if depth in wanted:
                layers[depth] = x
        if caches is None:
            return Reading(x, layers)
        kept: Any = close_caches(caches, layout, None) if memory is None else memory.close(caches, layout)
        return Reading(x, layers, kept.last(self.spec.memory_len) if self.spec.memory_len else kept)

    def prepared(self, states: Tensor) -> Tensor:
        """What is kept of a source's states to look at: all of them, of which each block makes its keys."""
        return states

    def cross_weights(self, tokens: Tensor, layout: Layout, source: Source, table: Tensor | None) -> list[list[Tensor]]:
        """Of each depth and sequence, which states of the source a target looks at, [heads, queries, keys]."""
        reading = self(tokens, layout, keep=range(self.spec.num_layers), source=source, table=table)
        _, relations = self.relations(reading.layers[0], layout, None, None, None)
        return [
            block.cross_weights(reading.layers[i], layout, relations, source) for i, block in enumerate(self.depths())
        ]

    def source_keys(self, memory: Memory) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that cross attention of each depth makes of the source."""
        if memory.source is None:
            return []
        values = memory.source.values
        return [block.cross.keys(values) for block in self.depths() if block.cross is not None]

    def depths(self) -> list[Block]:
        """The block that runs at each depth, from input to output."""
        return [self.blocks[i] for i in self.spec.depths]  # type: ignore[misc]

    def groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group a layer: for freezing and for rates by depth.

        What several layers share stands with the first of them.
        """
        bottom, top = ([self.embeddings, self.relations], [self.final_norm, self.pooler])
        seen: set[int] = set()
        found = []
        for part in (nn.ModuleList(bottom), *self.blocks, nn.ModuleList(top)):
            found.append([p for p in part.parameters() if id(p) not in seen])
            seen.update(map(id, found[-1]))
        return [group for group in found if group]

    def matrices(self) -> list[tuple[Tensor, int]]:
        return [
            (child.weight, getattr(part, "stacked", {}).get(name, 1))
            for part in self.blocks.modules()
            for name, child in part.named_children()
            if isinstance(child, nn.Linear)
        ]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        self.spec.init.apply(self, 2 * self.spec.num_layers, generator)
