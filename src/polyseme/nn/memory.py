"""Memory: what a causal trunk carries from one chunk to the next, and a KV cache in preallocated buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError
from polyseme.nn.index_cache import cached_index
from polyseme.nn.packing import CacheLayout, EncoderInput, PackedLayout, tree_map

TEACHER_PREFIX = "teacher/"  # of the names of its tensors in a checkpoint
KeyValue = tuple[Tensor, Tensor]  # keys and values


@dataclass(frozen=True, eq=False)
class Memory:
    """Packed rows of each layer: keys and values, or the hidden states that they are computed from.

    `num_seen` is the number of tokens read of each sequence, which exceeds that in memory if its length is bounded.
    `source` holds the encoder states for cross attention. In distillation, `teacher` is the memory of a teacher that
    reads the same tokens.
    """

    layout: PackedLayout
    states: tuple[tuple[Tensor, ...], ...]  # [layer][part], each [T, …]
    num_seen: tuple[int, ...]
    source: EncoderInput | None = None
    teacher: Memory | None = None

    @classmethod
    def empty(cls, layout: PackedLayout) -> Memory:
        """Return the memory before the first chunk, whose layout this is."""
        return cls(layout, (), (0,) * len(layout.lengths))

    def next_positions(self, layout: PackedLayout) -> tuple[Tensor, int]:
        """Positions of the next chunk's tokens, and the largest length of a sequence together with its memory."""
        device = layout.positions.device
        lengths, num_past = (torch.tensor(sizes, device=device) for sizes in (layout.lengths, self.num_seen))
        positions = layout.positions + num_past.repeat_interleave(lengths, output_size=layout.num_tokens)
        return positions, max(p + n for p, n in zip(self.layout.lengths, layout.lengths))

    def create_caches(self, layout: PackedLayout, num_layers: int) -> list[LayerCache]:
        """Create the cache of each layer for the next chunk."""
        if not self.states:
            return [LayerCache(None, layout, None) for _ in range(num_layers)]
        full_layout, index = _append_order(self.layout.lengths, layout.lengths, layout.cu_seqlens.device)
        return [LayerCache(parts, full_layout, index) for parts in self.states]

    def update(self, caches: Sequence[LayerCache], layout: PackedLayout) -> Memory:
        """Return the memory after a chunk, by which the layers have extended their caches."""
        num_seen = tuple(a + b for a, b in zip(self.num_seen, layout.lengths))
        return Memory(caches[0].full_layout, tuple(cache.updated for cache in caches), num_seen)

    def detach(self) -> Memory:
        """Return a copy without gradients."""
        return tree_map(self, torch.Tensor.detach)

    def truncate(self, max_len: int) -> Memory:
        """Keep the newest `max_len` rows of each sequence."""
        if max(self.layout.lengths, default=0) <= max_len:
            return self
        return self._select_rows(*_newest_rows(self.layout.lengths, max_len, self.layout.cu_seqlens.device))

    def drop_last(self) -> Memory:
        """Remove the newest token of each sequence, which was a placeholder."""
        sizes, device = np.array(self.layout.lengths), self.layout.cu_seqlens.device
        index = torch.from_numpy(np.delete(np.arange(sizes.sum()), np.cumsum(sizes) - 1)).to(device)
        memory = self._select_rows(index, PackedLayout.from_lengths(sizes - 1, device=device))
        return replace(memory, num_seen=tuple(n - 1 for n in self.num_seen))

    @classmethod
    def concat(cls, memories: Sequence[Memory]) -> Memory:
        """Put the sequences of several memories of a trunk without sources after one another."""
        lengths = [length for memory in memories for length in memory.layout.lengths]
        layout = PackedLayout.from_lengths(lengths, device=memories[0].layout.cu_seqlens.device)
        layers = zip(*(memory.states for memory in memories))
        states = tuple(tuple(map(torch.cat, zip(*parts))) for parts in layers)
        return cls(layout, states, tuple(n for memory in memories for n in memory.num_seen))

    def select(self, sequence_ids: Sequence[int]) -> Memory:
        """Select sequences, in this order; one may occur several times."""
        memory = self._select_rows(*_sequence_rows(self.layout, sequence_ids))
        source = self.source
        if source is not None:
            index, layout = _sequence_rows(source.layout, sequence_ids)
            source = EncoderInput(source.values.index_select(0, index), layout)
        return replace(memory, num_seen=tuple(self.num_seen[i] for i in sequence_ids), source=source)

    def _select_rows(self, index: Tensor, layout: PackedLayout) -> Memory:
        states = tuple(tuple(t.index_select(0, index) for t in parts) for parts in self.states)
        return replace(self, layout=layout, states=states)

    def with_num_seen(self, num_seen: tuple[int, ...]) -> Memory:
        """Return a copy after so many tokens of each sequence, which a teacher has read as well."""
        return replace(self, num_seen=num_seen, teacher=self.teacher and self.teacher.with_num_seen(num_seen))

    def to_tensors(self) -> dict[str, Tensor]:
        """Convert to named tensors, for a checkpoint."""
        named_tensors = {f"{layer}.{i}": t for layer, parts in enumerate(self.states) for i, t in enumerate(parts)}
        if self.teacher is not None:
            named_tensors |= {f"{TEACHER_PREFIX}{name}": t for name, t in self.teacher.to_tensors().items()}
        return named_tensors | {"lengths": torch.tensor(self.layout.lengths), "num_seen": torch.tensor(self.num_seen)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], device: str | torch.device = "cpu") -> Memory:
        """Invert `to_tensors`."""
        taught = {n.removeprefix(TEACHER_PREFIX): t for n, t in tensors.items() if n.startswith(TEACHER_PREFIX)}
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(TEACHER_PREFIX)}
        keys = [tuple(map(int, name.split("."))) for name in tensors if "." in name]
        states: list[tuple[Tensor, ...]] = [() for _ in range(1 + max((layer for layer, _ in keys), default=-1))]
        for layer, i in sorted(keys):
            states[layer] += (tensors[f"{layer}.{i}"].to(device),)
        layout = PackedLayout.from_lengths(tensors["lengths"].tolist(), device=device)
        teacher = cls.from_tensors(taught, device) if taught else None
        return cls(layout, tuple(states), tuple(tensors["num_seen"].tolist()), teacher=teacher)


def _sequence_rows(layout: PackedLayout, sequence_ids: Sequence[int]) -> tuple[Tensor, PackedLayout]:
    """Return the rows of some sequences and their layout."""
    offsets, device = np.cumsum([0, *layout.lengths]), layout.cu_seqlens.device
    index = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in sequence_ids])
    lengths = [layout.lengths[i] for i in sequence_ids]
    return torch.from_numpy(index).to(device), PackedLayout.from_lengths(lengths, device=device)


@cached_index(64)
def _newest_rows(lengths: tuple[int, ...], max_len: int, device: torch.device) -> tuple[Tensor, PackedLayout]:
    """Return the last `max_len` rows of each sequence and their layout."""
    sizes = np.array(lengths)
    ends = np.repeat(np.cumsum(sizes), sizes)
    index = np.flatnonzero(ends - np.arange(len(ends)) <= max_len)
    return torch.from_numpy(index).to(device), PackedLayout.from_lengths(np.minimum(sizes, max_len), device=device)


@cached_index(64)
def _append_order(
    old_lengths: tuple[int, ...], new_lengths: tuple[int, ...], device: torch.device
) -> tuple[PackedLayout, Tensor]:
    """Return the layout of each sequence's old rows followed by its new ones, and the order of concatenated rows."""
    old_sizes, new_sizes, sequence_ids = np.array(old_lengths), np.array(new_lengths), np.arange(len(old_lengths))
    ranks = [np.repeat(2 * sequence_ids, old_sizes), np.repeat(2 * sequence_ids + 1, new_sizes)]
    index = np.argsort(np.concatenate(ranks), kind="stable")
    return PackedLayout.from_lengths(old_sizes + new_sizes, device=device), torch.from_numpy(index).to(device)


@dataclass(eq=False)
class LayerCache:
    """Memory of one layer during the forward pass of a chunk."""

    past: tuple[Tensor, ...] | None
    full_layout: Any
    index: Tensor | None
    cross_kv: tuple[Any, ...] | None = None  # keys and values of the source, if cached, and their layouts
    updated: tuple[Tensor, ...] = ()

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        """Append the rows of the chunk to each part of the memory; return the parts and their layout."""
        self.updated = parts if self.past is None else tuple(map(self.append, self.past, parts))
        return *self.updated, self.full_layout

    def append(self, past_rows: Tensor, new_rows: Tensor) -> Tensor:
        """Append the new rows of each sequence to its old ones."""
        return new_rows if self.index is None else torch.cat([past_rows, new_rows]).index_select(0, self.index)


@dataclass(eq=False)
class StaticKVCache:
    """Preallocated keys and values of each layer, [rows, columns, heads, head_dim], for steps of one token per row.

    It is modified in place. The keys and values of sources are cached too, [sources, longest, heads, head_dim]; each
    belongs to the same number of adjacent rows. With `static_shape`, attention covers all columns, so that the kernels
    of a step do not depend on the lengths. It belongs to one decoding session, so to one thread.
    """

    states: list[KeyValue]
    lengths: Tensor  # int64 [rows], number of filled columns
    cross_kv: list[KeyValue] = field(default_factory=list)
    source_lengths: Tensor | None = None  # int64 [sources]
    static_shape: bool = False
    max_seqlen: int = 0  # the largest of `lengths`, known without a sync
    uniform: bool = True  # whether all lengths are equal
    num_sources: int = 0  # in use
    sources_uniform: bool = True

    @classmethod
    def allocate(
        cls,
        memory: Memory,
        cross_kv: Sequence[KeyValue],
        num_rows: int,
        capacity: int,
        max_source_len: int = 0,
        static_shape: bool = False,
        supports_append: bool = False,
    ) -> StaticKVCache:
        """Allocate empty buffers for a memory like this one; `max_source_len` is the length of the longest source."""
        num_sources = len(memory.source.layout.lengths) if memory.source is not None else 0
        lengths, source_lengths = (
            torch.zeros(n, dtype=torch.int64, device=memory.layout.cu_seqlens.device) for n in (num_rows, num_sources)
        )
        # masked columns must still hold numbers
        has_masked_columns = static_shape or supports_append or len(set(memory.layout.lengths)) > 1
        allocate = Tensor.new_zeros if has_masked_columns else Tensor.new_empty
        states = [tuple(allocate(t, (num_rows, capacity, *t.shape[1:])) for t in pair) for pair in memory.states]
        sources = [tuple(t.new_zeros(num_sources, max_source_len, *t.shape[1:]) for t in pair) for pair in cross_kv]
        return cls(states, lengths, sources, source_lengths if num_sources else None, static_shape)  # type: ignore[arg-type]

    def fill(self, memory: Memory, cross_kv: Sequence[KeyValue]) -> StaticKVCache:
        """Copy the memory of prompts to the first rows, and the keys and values of their sources."""
        lengths = memory.layout.lengths
        self.max_seqlen, self.uniform = max(lengths, default=0), len(set(lengths)) < 2
        if self.max_seqlen > self.capacity or len(lengths) > len(self.lengths):
            size = f"{len(self.lengths)} × {self.capacity}"
            raise ConfigError(f"{len(lengths)} sequences of up to {self.max_seqlen} tokens do not fit in {size} places")
        _scatter_packed(self.states, memory.states, memory.layout, self.lengths)  # type: ignore[arg-type]
        if memory.source is not None and self.source_lengths is not None:
            layout = memory.source.layout
            self.num_sources, self.sources_uniform = len(layout.lengths), len(set(layout.lengths)) < 2
            _scatter_packed(self.cross_kv, cross_kv, layout, self.source_lengths)
        return self

    def append(self, memory: Memory, num_rows: int) -> None:
        """Copy the memory of prompts to the rows after the first `num_rows`; call `set_row_lengths` afterwards."""
        _scatter_packed(self.states, memory.states, memory.layout, self.lengths, num_rows)  # type: ignore[arg-type]

    def copy_rows(self, other: StaticKVCache, num_rows: int) -> None:
        """Copy the first rows of a cache of another size."""
        for pair, other_pair in zip(self.states, other.states):
            for buffer, other_buffer in zip(pair, other_pair):
                buffer[:num_rows, : other.max_seqlen] = other_buffer[:num_rows, : other.max_seqlen]
        self.lengths[:num_rows] = other.lengths[:num_rows]

    def set_row_lengths(self, row_lengths: Sequence[int]) -> None:
        """Take the lengths of the rows in use, which attention need not exceed, from the host."""
        self.max_seqlen, self.uniform = max(row_lengths, default=0), len(set(row_lengths)) < 2

    @property
    def capacity(self) -> int:
        """Number of columns."""
        return self.states[0][0].shape[1]

    @property
    def _visible_len(self) -> int:
        """Number of columns that attention covers, including that of the next token."""
        return self.capacity if self.static_shape else self.max_seqlen + 1

    def next_positions(self, layout: PackedLayout) -> tuple[Tensor, int]:
        """Positions of the next tokens, and the number of columns that they attend to."""
        return self.lengths[: layout.num_tokens].clone(), self._visible_len

    def create_caches(self, layout: PackedLayout, num_layers: int) -> list[StaticLayerCache]:
        """Create the cache of each layer for the next token of each row."""
        n = layout.num_tokens
        if len(layout.lengths) != n or self.max_seqlen >= self.capacity:
            raise ValueError(f"a step has one token per sequence, which may have up to {self.capacity}")
        lengths = self.lengths[:n]
        index = torch.arange(n, device=lengths.device) * self.capacity + lengths
        cache_layout = CacheLayout(lengths + 1, self._visible_len, self.uniform and not self.static_shape)
        cross_caches: list[Any] = [None] * num_layers
        if self.source_lengths is not None:
            m, all_valid = self.num_sources, self.sources_uniform and not self.static_shape
            source_layout = CacheLayout(self.source_lengths[:m], self.cross_kv[0][0].shape[1], all_valid)
            cross_caches = [(k[:m], v[:m], layout, source_layout) for k, v in self.cross_kv]
        return [StaticLayerCache(pair, cache_layout, index, cross) for pair, cross in zip(self.states, cross_caches)]

    def update(self, caches: Sequence[LayerCache], layout: PackedLayout) -> StaticKVCache:
        """Count the new token of each row; in a CUDA graph, the caller updates `max_seqlen`."""
        self.lengths[: layout.num_tokens] += 1
        if not self.static_shape:
            self.max_seqlen += 1
        return self

    def select(self, row_ids: Sequence[int]) -> StaticKVCache:
        """Move these rows to the front, in this order; only rows that change their place are copied."""
        _select_rows_(self.states, self.lengths, row_ids, self.max_seqlen)
        return self

    def select_sources(self, source_ids: Sequence[int]) -> StaticKVCache:
        """Select sources; call `select` for their rows too."""
        assert self.source_lengths is not None
        _select_rows_(self.cross_kv, self.source_lengths, source_ids, self.cross_kv[0][0].shape[1])
        self.num_sources = len(source_ids)
        return self


class StaticLayerCache(LayerCache):
    """One layer of a `StaticKVCache` during a step: new keys and values are written to the buffers `past`."""

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        assert self.past is not None and self.index is not None
        for buffer, new_rows in zip(self.past, parts):
            buffer.flatten(0, 1).index_copy_(0, self.index, new_rows)
        n = len(self.index)
        return *(buffer[:n, : self.full_layout.max_seqlen] for buffer in self.past), self.full_layout


def _scatter_packed(
    buffers: Sequence[KeyValue],
    packed: Sequence[KeyValue],
    layout: PackedLayout,
    lengths: Tensor,
    first_row: int = 0,
) -> None:
    """Copy packed sequences [T, …] to the beginnings of rows from `first_row`, and set the lengths of these rows."""
    lengths[first_row : first_row + len(layout.lengths)] = torch.tensor(layout.lengths).to(lengths.device)
    sequence_ids = layout.sequence_ids + first_row if first_row else layout.sequence_ids
    for layer_buffers, layer_rows in zip(buffers, packed):
        for buffer, rows in zip(layer_buffers, layer_rows):
            index = sequence_ids * buffer.shape[1] + layout.positions
            buffer.flatten(0, 1).index_copy_(0, index, rows)


def _select_rows_(buffers: Sequence[KeyValue], lengths: Tensor, row_ids: Sequence[int], max_len: int) -> None:
    moves = [(target, source) for target, source in enumerate(row_ids) if target != source]
    if not moves:
        return
    targets, sources = torch.tensor(moves, device=lengths.device).unbind(1)
    for pair in buffers:
        for buffer in pair:
            buffer[:, :max_len].index_copy_(0, targets, buffer[:, :max_len].index_select(0, sources))
    lengths[targets] = lengths[sources]
