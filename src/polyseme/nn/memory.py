"""What a trunk carries from one chunk to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.index_cache import cached_index
from polyseme.nn.packing import EncoderInput, PackedLayout


@dataclass(frozen=True, eq=False)
class Memory:
    """What attention keeps of each depth, packed, with the layout of what is kept.

    What that is, attention decides: keys and values, or the states they are made from. `num_seen` is how many tokens of
    each sequence were read so far, which is more than is kept where a memory has a set length. `source` holds the
    states that cross attention looks at.
    """

    layout: PackedLayout
    states: tuple[tuple[Tensor, ...], ...]  # [depth][part], each [T, …]
    num_seen: tuple[int, ...]
    source: EncoderInput | None = None

    def next_positions(self, layout: PackedLayout) -> tuple[Tensor, int]:
        """Where the tokens of the next chunk stand, and how long the longest sequence gets with what is kept of it."""
        device = layout.positions.device
        num_past = torch.tensor(self.num_seen, device=device)
        positions = layout.positions + num_past.repeat_interleave(
            torch.tensor(layout.lengths, device=device), output_size=layout.num_tokens
        )
        return positions, max(p + n for p, n in zip(self.layout.lengths, layout.lengths))

    def create_caches(self, layout: PackedLayout, num_layers: int) -> list[LayerCache]:
        return create_layer_caches(self, layout, num_layers)

    def update(self, caches: Sequence[LayerCache], layout: PackedLayout) -> Memory:
        """What is remembered when a chunk was read."""
        return memory_from_caches(caches, layout, self)

    def detach(self) -> Memory:
        source = None if self.source is None else replace(self.source, values=self.source.values.detach())
        return replace(self, states=tuple(tuple(t.detach() for t in part) for part in self.states), source=source)

    def truncate(self, max_len: int) -> Memory:
        """The newest `max_len` of each sequence."""
        if max(self.layout.lengths, default=0) <= max_len:
            return self
        return self._select_rows(*_newest_rows(self.layout.lengths, max_len, self.layout.cu_seqlens.device))

    def drop_last(self) -> Memory:
        """All but the newest token of each sequence: one that was read for what stands in its place."""
        sizes = np.array(self.layout.lengths)
        keep_mask = np.ones(int(sizes.sum()), dtype=bool)
        keep_mask[np.cumsum(sizes) - 1] = False
        index = torch.from_numpy(np.flatnonzero(keep_mask)).to(self.layout.cu_seqlens.device)
        memory = self._select_rows(index, PackedLayout.from_lengths(sizes - 1, device=self.layout.cu_seqlens.device))
        return replace(memory, num_seen=tuple(n - 1 for n in self.num_seen))

    def select(self, sequence_ids: Sequence[int]) -> Memory:
        """The memory of these sequences, in this order and as often as they are named: one prompt, many ways on."""
        memory = replace(
            self._select_rows(*_sequence_rows(self.layout, sequence_ids)),
            num_seen=tuple(self.num_seen[i] for i in sequence_ids),
        )
        if self.source is None:
            return memory
        index, layout = _sequence_rows(self.source.layout, sequence_ids)
        return replace(memory, source=EncoderInput(self.source.values.index_select(0, index), layout))

    def _select_rows(self, index: Tensor, layout: PackedLayout) -> Memory:
        """These rows of it."""
        states = tuple(tuple(t.index_select(0, index) for t in part) for part in self.states)
        return replace(self, layout=layout, states=states)

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it as named tensors, for a checkpoint."""
        named_tensors = {f"{depth}.{i}": t for depth, part in enumerate(self.states) for i, t in enumerate(part)}
        return named_tensors | {"lengths": torch.tensor(self.layout.lengths), "num_seen": torch.tensor(self.num_seen)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], device: str | torch.device = "cpu") -> Memory:
        """The inverse of `to_tensors`."""
        keys = [tuple(map(int, name.split("."))) for name in tensors if "." in name]
        states: list[tuple[Tensor, ...]] = [() for _ in range(1 + max((depth for depth, _ in keys), default=-1))]
        for depth, i in sorted(keys):
            states[depth] += (tensors[f"{depth}.{i}"].to(device),)
        layout = PackedLayout.from_lengths(tensors["lengths"].tolist(), device=device)
        return cls(layout, tuple(states), tuple(tensors["num_seen"].tolist()))


def _sequence_rows(layout: PackedLayout, sequence_ids: Sequence[int]) -> tuple[Tensor, PackedLayout]:
    """The rows of these sequences, and their layout."""
    offsets = np.cumsum([0, *layout.lengths])
    index = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in sequence_ids])
    device = layout.cu_seqlens.device
    return torch.from_numpy(index).to(device), PackedLayout.from_lengths(
        [layout.lengths[i] for i in sequence_ids], device=device
    )


@cached_index(64)
def _newest_rows(lengths: tuple[int, ...], max_len: int, device: torch.device) -> tuple[Tensor, PackedLayout]:
    """The last rows of sequences of these lengths, `max_len` of each at most, and their layout."""
    sizes = np.array(lengths)
    ends = np.repeat(np.cumsum(sizes), sizes)
    index = np.flatnonzero(ends - np.arange(len(ends)) <= max_len)
    return torch.from_numpy(index).to(device), PackedLayout.from_lengths(np.minimum(sizes, max_len), device=device)


@cached_index(64)
def _append_order(
    old_lengths: tuple[int, ...], new_lengths: tuple[int, ...], device: torch.device
) -> tuple[PackedLayout, Tensor]:
    """The layout of new rows behind old ones, sequence by sequence, and the order in which they join."""
    old_sizes, new_sizes = np.array(old_lengths), np.array(new_lengths)
    ranks = [
        np.repeat(2 * np.arange(len(old_lengths)), old_sizes),
        np.repeat(2 * np.arange(len(new_lengths)) + 1, new_sizes),
    ]
    index = np.argsort(np.concatenate(ranks), kind="stable")
    return PackedLayout.from_lengths(old_sizes + new_sizes, device=device), torch.from_numpy(index).to(device)


class LayerCache:
    """One depth's memory while a chunk is read: the old rows, then the chunk's, sequence by sequence."""

    cross_kv: tuple[Any, ...] | None = None  # keys and values of the source, if kept, and the layouts to read them by

    def __init__(self, past: tuple[Tensor, ...] | None, full_layout: Any, index: Tensor | None):
        self.past, self.full_layout, self.index = past, full_layout, index
        self.updated: tuple[Tensor, ...] = ()

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        """The chunk's rows of each part behind the old ones, and their layout."""
        self.updated = parts if self.past is None else tuple(map(self.append, self.past, parts))
        return *self.updated, self.full_layout

    def append(self, past_rows: Tensor, new_rows: Tensor) -> Tensor:
        """Rows of the chunk behind old ones, sequence by sequence."""
        return new_rows if self.index is None else torch.cat([past_rows, new_rows]).index_select(0, self.index)


def create_layer_caches(memory: Memory | None, layout: PackedLayout, num_layers: int) -> list[LayerCache]:
    """A cache for each depth; the order in which old and new rows join is one for all of them."""
    if memory is None:
        return [LayerCache(None, layout, None) for _ in range(num_layers)]
    full_layout, index = _append_order(memory.layout.lengths, layout.lengths, layout.cu_seqlens.device)
    return [LayerCache(layer_states, full_layout, index) for layer_states in memory.states]


def memory_from_caches(caches: Sequence[LayerCache], layout: PackedLayout, memory: Memory | None) -> Memory:
    num_seen_before = memory.num_seen if memory else (0,) * len(layout.lengths)
    num_seen = tuple(a + b for a, b in zip(num_seen_before, layout.lengths))
    return Memory(caches[0].full_layout, tuple(c.updated for c in caches), num_seen)
