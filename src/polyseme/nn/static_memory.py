"""Memory in buffers that are made once: a step writes its keys and values in place and copies nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyseme.errors import ConfigError
from polyseme.nn.memory import LayerCache, Memory
from polyseme.nn.packing import CacheLayout, PackedLayout

KeyValue = tuple[Tensor, Tensor]  # keys and values


@dataclass(eq=False)
class StaticKVCache:
    """Keys and values of each depth, [rows, columns, heads, head_dim], the first rows in use; one token a step.

    It changes in place: who has read with it, or taken rows of it, has the old one no more. Of sources, keys and
    values are kept too, [sources, longest, heads, head_dim]; each belongs to as many rows, which are neighbours. With
    `static_shape`, all columns are looked at, so that a step's kernels are the same at every length.
    """

    states: list[KeyValue]
    lengths: Tensor  # int64 [rows]: how many columns of each row are filled
    cross_kv: list[KeyValue] = field(default_factory=list)
    source_lengths: Tensor | None = None  # int64 [sources]
    static_shape: bool = False
    max_seqlen: int = (
        0  # the most columns that are filled in a row, as the host knows; behind them nothing is looked at
    )
    uniform: bool = True  # rows are filled alike
    num_sources: int = 0  # how many are in use
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
    ) -> StaticKVCache:
        """Empty buffers for what such a memory holds; `max_source_len` is the length of the longest source."""
        device = memory.layout.cu_seqlens.device

        def zeros_like_rows(like: Tensor, *shape: int) -> Tensor:
            return like.new_zeros(*shape, *like.shape[1:])  # what is hidden must still be a number

        is_uniform = len(set(memory.layout.lengths)) < 2 and not static_shape  # then nothing is hidden

        def allocate_buffer(like: Tensor) -> Tensor:
            return (
                like.new_empty(num_rows, capacity, *like.shape[1:])
                if is_uniform
                else zeros_like_rows(like, num_rows, capacity)
            )

        num_sources = len(memory.source.layout.lengths) if memory.source is not None else 0
        return cls(
            [(allocate_buffer(k), allocate_buffer(v)) for k, v in memory.states],
            torch.zeros(num_rows, dtype=torch.int64, device=device),
            [
                (zeros_like_rows(k, num_sources, max_source_len), zeros_like_rows(v, num_sources, max_source_len))
                for k, v in cross_kv
            ],
            torch.zeros(num_sources, dtype=torch.int64, device=device) if num_sources else None,
            static_shape,
        )

    def fill(self, memory: Memory, cross_kv: Sequence[KeyValue]) -> StaticKVCache:
        """What was read of the beginnings goes to the first rows, and keys and values of their sources beside them."""
        lengths = memory.layout.lengths
        self.max_seqlen, self.uniform = max(lengths, default=0), len(set(lengths)) < 2
        if self.max_seqlen > self.capacity or len(lengths) > len(self.lengths):
            size = f"{len(self.lengths)} × {self.capacity}"
            raise ConfigError(f"{len(lengths)} sequences of up to {self.max_seqlen} tokens do not fit {size} places")
        _scatter_packed(self.states, memory.states, memory.layout, self.lengths)  # type: ignore[arg-type]
        if memory.source is not None and self.source_lengths is not None:
            layout = memory.source.layout
            self.num_sources, self.sources_uniform = len(layout.lengths), len(set(layout.lengths)) < 2
            _scatter_packed(self.cross_kv, cross_kv, layout, self.source_lengths)
        return self

    @property
    def num_bytes(self) -> int:
        """What the buffers hold."""
        return sum(t.numel() * t.element_size() for pair in (*self.states, *self.cross_kv) for t in pair)

    @property
    def capacity(self) -> int:
        return self.states[0][0].shape[1]

    @property
    def _visible_len(self) -> int:
        """How many columns are looked at, that of the token to come too."""
        return self.capacity if self.static_shape else self.max_seqlen + 1

    def next_positions(self, layout: PackedLayout) -> tuple[Tensor, int]:
        return self.lengths[: layout.num_tokens].clone(), self._visible_len

    def create_caches(self, layout: PackedLayout, num_layers: int) -> list[StaticLayerCache]:
        n = layout.num_tokens
        if len(layout.lengths) != n or self.max_seqlen >= self.capacity:
            raise ValueError(f"a step reads one token a sequence, up to {self.capacity}")
        lengths = self.lengths[:n]
        index = torch.arange(n, device=lengths.device) * self.capacity + lengths
        cache_layout = CacheLayout(lengths + 1, self._visible_len, self.uniform and not self.static_shape)
        cross_caches: list[Any] = [None] * num_layers
        if self.source_lengths is not None:
            num_sources, max_source_len = self.num_sources, self.cross_kv[0][0].shape[1]
            source_layout = CacheLayout(
                self.source_lengths[:num_sources], max_source_len, self.sources_uniform and not self.static_shape
            )
            cross_caches = [(k[:num_sources], v[:num_sources], layout, source_layout) for k, v in self.cross_kv]
        return [
            StaticLayerCache(pair, cache_layout, index, cross_kv) for pair, cross_kv in zip(self.states, cross_caches)
        ]

    def update(self, caches: Sequence[LayerCache], layout: PackedLayout) -> StaticKVCache:
        """The host's count grows where the host calls: kernels that are replayed do not come by here."""
        self.lengths[: layout.num_tokens] += 1
        if not self.static_shape:
            self.max_seqlen += 1
        return self

    def select(self, row_ids: Sequence[int]) -> StaticKVCache:
        """These rows are the first ones now. Only rows that are not in their place already are copied."""
        _select_rows_(self.states, self.lengths, row_ids, self.max_seqlen)
        return self

    def select_sources(self, source_ids: Sequence[int]) -> StaticKVCache:
        """These sources are the first ones, and the only ones, now; their rows have to be taken too."""
        assert self.source_lengths is not None
        _select_rows_(self.cross_kv, self.source_lengths, source_ids, self.cross_kv[0][0].shape[1])
        self.num_sources = len(source_ids)
        return self


class StaticLayerCache(LayerCache):
    """One depth of it while a token is read: the new keys and values go to their places."""

    def __init__(self, buffers: KeyValue, cache_layout: CacheLayout, index: Tensor, cross_kv: tuple[Any, ...] | None):
        super().__init__(buffers, cache_layout, index)
        self.cross_kv = cross_kv

    def extend(self, *parts: Tensor) -> tuple[Any, ...]:
        assert self.past is not None and self.index is not None
        for buffer, new_rows in zip(self.past, parts):
            buffer.flatten(0, 1).index_copy_(0, self.index, new_rows)
        n = len(self.index)
        return *(buffer[:n, : self.full_layout.max_seqlen] for buffer in self.past), self.full_layout


def _scatter_packed(
    buffers: Sequence[KeyValue], packed: Sequence[KeyValue], layout: PackedLayout, lengths: Tensor
) -> None:
    """Packed sequences [T, …] to the beginnings of the first rows, and their lengths."""
    device = lengths.device
    sizes = torch.tensor(layout.lengths)
    lengths[: len(sizes)] = sizes.to(device)
    row_ids = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
    for layer_buffers, layer_rows in zip(buffers, packed):
        for buffer, rows in zip(layer_buffers, layer_rows):
            index = row_ids * buffer.shape[1] + layout.positions
            buffer.flatten(0, 1).index_copy_(0, index, rows)


def _select_rows_(buffers: Sequence[KeyValue], lengths: Tensor, row_ids: Sequence[int], max_len: int) -> None:
    moved_rows = [i for i, row in enumerate(row_ids) if i != row]
    if not moved_rows:
        return
    target_rows, source_rows = (
        torch.tensor(rows, device=lengths.device) for rows in (moved_rows, [row_ids[i] for i in moved_rows])
    )
    for pair in buffers:
        for part in pair:
            filled_columns = part[:, :max_len]
            filled_columns.index_copy_(0, target_rows, filled_columns.index_select(0, source_rows))
    lengths[target_rows] = lengths[source_rows]
