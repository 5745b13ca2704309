"""What a trunk carries from one chunk to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.index_cache import known
from polyseme.nn.packing import Layout, Source


@dataclass(frozen=True, eq=False)
class Memory:
    """What attention keeps of each depth, packed, with the layout of what is kept.

    What that is, attention decides: keys and values, or the states they are made from. `read` is how many tokens of
    each sequence were read so far, which is more than is kept where a memory has a set length. `source` holds the
    states that cross attention looks at.
    """

    layout: Layout
    states: tuple[tuple[Tensor, ...], ...]  # [depth][part], each [T, …]
    read: tuple[int, ...]
    source: Source | None = None

    def places(self, layout: Layout) -> tuple[Tensor, int]:
        """Where the tokens of the next chunk stand, and how long the longest sequence gets with what is kept of it."""
        device = layout.positions.device
        past = torch.tensor(self.read, device=device)
        positions = layout.positions + past.repeat_interleave(
            torch.tensor(layout.lengths, device=device), output_size=layout.total
        )
        return positions, max(p + n for p, n in zip(self.layout.lengths, layout.lengths))

    def open(self, layout: Layout, depth: int) -> list[Cache]:
        return open_caches(self, layout, depth)

    def close(self, caches: Sequence[Cache], layout: Layout) -> Memory:
        """What is remembered when a chunk was read."""
        return close_caches(caches, layout, self)

    def detach(self) -> Memory:
        source = None if self.source is None else replace(self.source, values=self.source.values.detach())
        return replace(self, states=tuple(tuple(t.detach() for t in part) for part in self.states), source=source)

    def last(self, length: int) -> Memory:
        """The newest `length` of each sequence."""
        if max(self.layout.lengths, default=0) <= length:
            return self
        return self._of(*_newest(self.layout.lengths, length, self.layout.starts.device))

    def without_last(self) -> Memory:
        """All but the newest token of each sequence: one that was read for what stands in its place."""
        sizes = np.array(self.layout.lengths)
        keep = np.ones(int(sizes.sum()), dtype=bool)
        keep[np.cumsum(sizes) - 1] = False
        index = torch.from_numpy(np.flatnonzero(keep)).to(self.layout.starts.device)
        found = self._of(index, Layout.of(sizes - 1, device=self.layout.starts.device))
        return replace(found, read=tuple(n - 1 for n in self.read))

    def take(self, chosen: Sequence[int]) -> Memory:
        """The memory of these sequences, in this order and as often as they are named: one prompt, many ways on."""
        found = replace(self._of(*_sequences(self.layout, chosen)), read=tuple(self.read[i] for i in chosen))
        if self.source is None:
            return found
        index, layout = _sequences(self.source.layout, chosen)
        return replace(found, source=Source(self.source.values.index_select(0, index), layout))

    def _of(self, index: Tensor, layout: Layout) -> Memory:
        """These rows of it."""
        states = tuple(tuple(t.index_select(0, index) for t in part) for part in self.states)
        return replace(self, layout=layout, states=states)

    def tensors(self) -> dict[str, Tensor]:
        """All of it as named tensors, for a checkpoint."""
        found = {f"{depth}.{i}": t for depth, part in enumerate(self.states) for i, t in enumerate(part)}
        return found | {"lengths": torch.tensor(self.layout.lengths), "read": torch.tensor(self.read)}

    @classmethod
    def of(cls, tensors: dict[str, Tensor], device: str | torch.device = "cpu") -> Memory:
        """The inverse of `tensors`."""
        places = [tuple(map(int, name.split("."))) for name in tensors if "." in name]
        states: list[tuple[Tensor, ...]] = [() for _ in range(1 + max((depth for depth, _ in places), default=-1))]
        for depth, i in sorted(places):
            states[depth] += (tensors[f"{depth}.{i}"].to(device),)
        layout = Layout.of(tensors["lengths"].tolist(), device=device)
        return cls(layout, tuple(states), tuple(tensors["read"].tolist()))


def _sequences(layout: Layout, chosen: Sequence[int]) -> tuple[Tensor, Layout]:
    """The rows of these sequences, and their layout."""
    starts = np.cumsum([0, *layout.lengths])
    index = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
    device = layout.starts.device
    return torch.from_numpy(index).to(device), Layout.of([layout.lengths[i] for i in chosen], device=device)


@known(64)
def _newest(lengths: tuple[int, ...], length: int, device: torch.device) -> tuple[Tensor, Layout]:
    """The last rows of sequences of these lengths, `length` of each at most, and their layout."""
    sizes = np.array(lengths)
    ends = np.repeat(np.cumsum(sizes), sizes)
    index = np.flatnonzero(ends - np.arange(len(ends)) <= length)
    return torch.from_numpy(index).to(device), Layout.of(np.minimum(sizes, length), device=device)


@known(64)
def _joined(old: tuple[int, ...], new: tuple[int, ...], device: torch.device) -> tuple[Layout, Tensor]:
    """The layout of new rows behind old ones, sequence by sequence, and the order in which they join."""
    before, behind = np.array(old), np.array(new)
    ranks = [np.repeat(2 * np.arange(len(old)), before), np.repeat(2 * np.arange(len(new)) + 1, behind)]
    index = np.argsort(np.concatenate(ranks), kind="stable")
    return Layout.of(before + behind, device=device), torch.from_numpy(index).to(device)


class Cache:
    """One depth's memory while a chunk is read: the old rows, then the chunk's, sequence by sequence."""

    crossed: tuple[Any, ...] | None = None  # keys and values of the source, if kept, and the layouts to read them by

    def __init__(self, old: tuple[Tensor, ...] | None, joined: Any, index: Tensor | None):
        self.old, self.joined, self.index = old, joined, index
        self.new: tuple[Tensor, ...] = ()

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        """The chunk's rows of each part behind the old ones, and their layout."""
        self.new = parts if self.old is None else tuple(map(self.behind, self.old, parts))
        return *self.new, self.joined

    def behind(self, old: Tensor, new: Tensor) -> Tensor:
        """Rows of the chunk behind old ones, sequence by sequence."""
        return new if self.index is None else torch.cat([old, new]).index_select(0, self.index)


def open_caches(memory: Memory | None, layout: Layout, depth: int) -> list[Cache]:
    """A cache for each depth; the order in which old and new rows join is one for all of them."""
    if memory is None:
        return [Cache(None, layout, None) for _ in range(depth)]
    joined, index = _joined(memory.layout.lengths, layout.lengths, layout.starts.device)
    return [Cache(part, joined, index) for part in memory.states]


def close_caches(caches: Sequence[Cache], layout: Layout, memory: Memory | None) -> Memory:
    read = memory.read if memory else (0,) * len(layout.lengths)
    total = tuple(a + b for a, b in zip(read, layout.lengths))
    return Memory(caches[0].joined, tuple(c.new for c in caches), total)
