"""Memory in buffers that are made once: a step writes its keys and values in place and copies nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.parts.layout import Layout, Room
from polyseme.parts.memory import Cache, Memory

Pair = tuple[Tensor, Tensor]  # keys and values


@dataclass(eq=False)
class StaticMemory:
    """Keys and values of each depth, [rows, columns, heads, head_dim], the first rows in use; one token a step.

    It changes in place: who has read with it, or taken rows of it, has the old one no more. Of a source, keys and
    values are kept too, [sources, longest, heads, head_dim]; each belongs to as many rows, which are neighbours.
    """

    states: list[Pair]
    lengths: Tensor  # int64 [rows]: how many columns of each row are filled
    longest: int  # the most of them, as the host knows; behind it no column is looked at
    even: bool  # rows are filled alike
    crossed: list[Pair]
    source: Room | None = None
    fixed: bool = False  # all columns are looked at, so that a step's kernels are the same at every length

    @classmethod
    def of(cls, memory: Memory, rows: int, columns: int, crossed: Sequence[Pair] | None = None) -> StaticMemory:
        """From what was read of the beginnings, whose rows are the first ones."""
        lengths, device = memory.layout.lengths, memory.layout.starts.device
        longest = max(lengths, default=0)
        if longest > columns or len(lengths) > rows:
            raise UserError(f"{len(lengths)} sequences of up to {longest} tokens do not fit {rows} × {columns} places")
        states = [(_spread(k, memory.layout, rows, columns), _spread(v, memory.layout, rows, columns))
                  for k, v in memory.states]  # fmt: skip
        used = torch.zeros(rows, dtype=torch.int64)
        used[: len(lengths)] = torch.tensor(lengths)
        found = cls(states, used.to(device), longest, len(set(lengths)) < 2, [])
        if crossed and memory.source is not None:
            layout = memory.source.layout
            most, number = max(layout.lengths), len(layout.lengths)
            found.crossed = [(_spread(k, layout, number, most), _spread(v, layout, number, most)) for k, v in crossed]
            found.source = Room(torch.tensor(layout.lengths, device=device), most, len(set(layout.lengths)) < 2)
        return found

    @property
    def bytes(self) -> int:
        """What the buffers hold."""
        return sum(t.numel() * t.element_size() for pair in (*self.states, *self.crossed) for t in pair)

    def places(self, layout: Layout) -> tuple[Tensor, int]:
        return self.lengths[: layout.total].clone(), self._seen

    def open(self, layout: Layout, depth: int) -> list[StaticCache]:
        n = layout.total
        if len(layout.lengths) != n or self.longest == self.columns:
            raise ValueError(f"a step reads one token a sequence, up to {self.columns}")
        used = self.lengths[:n]
        index = torch.arange(n, device=used.device) * self.columns + used
        room = Room(used + 1, self._seen, self.even and not self.fixed)
        kept: list[Any] = [(*pair, layout, self.source) for pair in self.crossed] or [None] * depth
        return [StaticCache(pair, room, index, crossed) for pair, crossed in zip(self.states, kept)]

    def close(self, caches: Sequence[Cache], layout: Layout) -> StaticMemory:
        self.lengths[: layout.total] += 1
        if not self.fixed:
            self.longest += 1
        return self

    def take(self, chosen: Sequence[int]) -> StaticMemory:
        """These rows are the first ones now. Only rows that are not in their place already are copied."""
        moved = [i for i, row in enumerate(chosen) if i != row]
        if moved:
            where, which = (_index(rows, self.lengths) for rows in (moved, [chosen[i] for i in moved]))
            for pair in self.states:
                for part in pair:
                    filled = part[:, : self.longest]
                    filled[where] = filled.index_select(0, which)
            self.lengths[where] = self.lengths[which]
        return self

    def take_sources(self, chosen: Sequence[int]) -> StaticMemory:
        """The sources of these numbers alone; their rows have to be taken too."""
        if self.source is not None and len(chosen) < len(self.source.lengths):
            index = _index(chosen, self.lengths)
            self.crossed = [(k.index_select(0, index), v.index_select(0, index)) for k, v in self.crossed]
            self.source = Room(self.source.lengths.index_select(0, index), self.source.longest, self.source.full)
        return self

    @property
    def columns(self) -> int:
        return self.states[0][0].shape[1]

    @property
    def _seen(self) -> int:
        """How many columns are looked at, that of the token to come too."""
        return self.columns if self.fixed else self.longest + 1


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


def _spread(packed: Tensor, layout: Layout, rows: int, columns: int) -> Tensor:
    """[T, …] to [rows, columns, …]; what is not filled is 0, for what is hidden must still be a number."""
    found = packed.new_zeros(rows, columns, *packed.shape[1:])
    for i, part in enumerate(packed.split(list(layout.lengths))):
        found[i, : len(part)] = part
    return found


def _index(rows: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, device=like.device)
