"""Memory in buffers that are made once: a step writes its keys and values in place and copies nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.nn.memory import Cache, Memory
from polyseme.nn.packing import Layout, Room

Pair = tuple[Tensor, Tensor]  # keys and values


@dataclass(eq=False)
class StaticMemory:
    """Keys and values of each depth, [rows, columns, heads, head_dim], the first rows in use; one token a step.

    It changes in place: who has read with it, or taken rows of it, has the old one no more. Of sources, keys and
    values are kept too, [sources, longest, heads, head_dim]; each belongs to as many rows, which are neighbours. With
    `fixed`, all columns are looked at, so that a step's kernels are the same at every length.
    """

    states: list[Pair]
    lengths: Tensor  # int64 [rows]: how many columns of each row are filled
    crossed: list[Pair] = field(default_factory=list)
    source_lengths: Tensor | None = None  # int64 [sources]
    fixed: bool = False
    longest: int = 0  # the most columns that are filled in a row, as the host knows; behind them nothing is looked at
    even: bool = True  # rows are filled alike
    sources: int = 0  # how many are in use
    sources_even: bool = True

    @classmethod
    def made(
        cls, memory: Memory, crossed: Sequence[Pair], rows: int, columns: int, wide: int = 0, fixed: bool = False
    ) -> StaticMemory:
        """Empty buffers for what such a memory holds; `wide` is the length of the longest source."""
        device = memory.layout.starts.device

        def empty(like: Tensor, *shape: int) -> Tensor:
            return like.new_zeros(*shape, *like.shape[1:])  # what is hidden must still be a number

        even = len(set(memory.layout.lengths)) < 2 and not fixed  # then nothing is hidden

        def room(like: Tensor) -> Tensor:
            return like.new_empty(rows, columns, *like.shape[1:]) if even else empty(like, rows, columns)

        number = len(memory.source.layout.lengths) if memory.source is not None else 0
        return cls(
            [(room(k), room(v)) for k, v in memory.states],
            torch.zeros(rows, dtype=torch.int64, device=device),
            [(empty(k, number, wide), empty(v, number, wide)) for k, v in crossed],
            torch.zeros(number, dtype=torch.int64, device=device) if number else None,
            fixed,
        )

    def fill(self, memory: Memory, crossed: Sequence[Pair]) -> StaticMemory:
        """What was read of the beginnings goes to the first rows, and keys and values of their sources beside them."""
        lengths = memory.layout.lengths
        self.longest, self.even = max(lengths, default=0), len(set(lengths)) < 2
        if self.longest > self.columns or len(lengths) > len(self.lengths):
            size = f"{len(self.lengths)} × {self.columns}"
            raise UserError(f"{len(lengths)} sequences of up to {self.longest} tokens do not fit {size} places")
        _spread(self.states, memory.states, memory.layout, self.lengths)  # type: ignore[arg-type]
        if memory.source is not None and self.source_lengths is not None:
            layout = memory.source.layout
            self.sources, self.sources_even = len(layout.lengths), len(set(layout.lengths)) < 2
            _spread(self.crossed, crossed, layout, self.source_lengths)
        return self

    @property
    def bytes(self) -> int:
        """What the buffers hold."""
        return sum(t.numel() * t.element_size() for pair in (*self.states, *self.crossed) for t in pair)

    @property
    def columns(self) -> int:
        return self.states[0][0].shape[1]

    @property
    def _seen(self) -> int:
        """How many columns are looked at, that of the token to come too."""
        return self.columns if self.fixed else self.longest + 1

    def places(self, layout: Layout) -> tuple[Tensor, int]:
        return self.lengths[: layout.total].clone(), self._seen

    def open(self, layout: Layout, depth: int) -> list[StaticCache]:
        n = layout.total
        if len(layout.lengths) != n or self.longest >= self.columns:
            raise ValueError(f"a step reads one token a sequence, up to {self.columns}")
        used = self.lengths[:n]
        index = torch.arange(n, device=used.device) * self.columns + used
        room = Room(used + 1, self._seen, self.even and not self.fixed)
        kept: list[Any] = [None] * depth
        if self.source_lengths is not None:
            m, wide = self.sources, self.crossed[0][0].shape[1]
            source = Room(self.source_lengths[:m], wide, self.sources_even and not self.fixed)
            kept = [(k[:m], v[:m], layout, source) for k, v in self.crossed]
        return [StaticCache(pair, room, index, crossed) for pair, crossed in zip(self.states, kept)]

    def close(self, caches: Sequence[Cache], layout: Layout) -> StaticMemory:
        """The host's count grows where the host calls: kernels that are replayed do not come by here."""
        self.lengths[: layout.total] += 1
        if not self.fixed:
            self.longest += 1
        return self

    def take(self, chosen: Sequence[int]) -> StaticMemory:
        """These rows are the first ones now. Only rows that are not in their place already are copied."""
        _take(self.states, self.lengths, chosen, self.longest)
        return self

    def take_sources(self, chosen: Sequence[int]) -> StaticMemory:
        """These sources are the first ones, and the only ones, now; their rows have to be taken too."""
        assert self.source_lengths is not None
        _take(self.crossed, self.source_lengths, chosen, self.crossed[0][0].shape[1])
        self.sources = len(chosen)
        return self


class StaticCache(Cache):
    """One depth of it while a token is read: the new keys and values go to their places."""

    def __init__(self, buffers: Pair, room: Room, index: Tensor, crossed: tuple[Any, ...] | None):
        super().__init__(buffers, room, index)
        self.crossed = crossed

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        assert self.old is not None and self.index is not None
        for buffer, new in zip(self.old, parts):
            buffer.flatten(0, 1).index_copy_(0, self.index, new)
        n = len(self.index)
        return *(buffer[:n, : self.joined.longest] for buffer in self.old), self.joined


def _spread(buffers: Sequence[Pair], packed: Sequence[Pair], layout: Layout, lengths: Tensor) -> None:
    """Packed sequences [T, …] to the beginnings of the first rows, and their lengths."""
    device = lengths.device
    sizes = torch.tensor(layout.lengths)
    lengths[: len(sizes)] = sizes.to(device)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
    for old, new in zip(buffers, packed):
        for buffer, part in zip(old, new):
            index = owner * buffer.shape[1] + layout.positions
            buffer.flatten(0, 1).index_copy_(0, index, part)


def _take(buffers: Sequence[Pair], lengths: Tensor, chosen: Sequence[int], columns: int) -> None:
    moved = [i for i, row in enumerate(chosen) if i != row]
    if not moved:
        return
    where, which = (torch.tensor(rows, device=lengths.device) for rows in (moved, [chosen[i] for i in moved]))
    for pair in buffers:
        for part in pair:
            filled = part[:, :columns]
            filled.index_copy_(0, where, filled.index_select(0, which))
    lengths[where] = lengths[which]
