"""Padded batches in the form of packed ones, for graphs of dynamic shape that other programs run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from polyseme.nn.memory import KeyValue, LayerCache
from polyseme.nn.packing import PackedLayout


@dataclass(frozen=True, eq=False)
class PaddedLayout(PackedLayout):
    """B sequences of L tokens each, of which the last ones may be padding.

    Modules take it in place of a `PackedLayout`: their rows are then the B · L tokens of all sequences. Rows of padding
    are computed, and no other row depends on them. Shapes may be symbolic, so nothing here reads `lengths`.
    """

    is_padded: ClassVar[bool] = True
    mask: Any = None  # bool [B, L], True at tokens

    @classmethod
    def from_mask(cls, mask: Tensor, positions: Tensor | None = None) -> Self:
        """Create the layout of a batch [B, L] whose sequences end where the mask becomes False.

        `positions` [B, L] are those of the rows, if they are not those in the batch.
        """
        batch_size, max_seqlen = mask.shape
        if positions is None:
            positions = torch.arange(max_seqlen, device=mask.device).expand(batch_size, -1)
        cu_seqlens = torch.arange(batch_size + 1, device=mask.device, dtype=torch.int32) * max_seqlen
        return cls((), max_seqlen, cu_seqlens, positions.reshape(-1), mask=mask)

    @property
    def longest(self) -> int:
        """L, with padding."""
        return self.max_seqlen

    @property
    def first_indices(self) -> Tensor:
        """Row of each sequence's first token, int64 [B]."""
        return self.cu_seqlens[:-1].long()

    @property
    def last_indices(self) -> Tensor:
        """Row of each sequence's last token, int64 [B]."""
        return self.first_indices + self.mask.long().sum(1) - 1

    def unflatten(self, rows: Tensor) -> Tensor:
        """Convert rows [B · L, …] to [B, L, …]."""
        return rows.view(*self.mask.shape, *rows.shape[1:])

    def distances_to(self, keys: PaddedLayout) -> Tensor:
        """Position of each key minus that of each row, [B or 1, L, keys]."""
        if keys is self:
            index = torch.arange(self.max_seqlen, device=self.mask.device)
            return (index - index[:, None])[None]
        return keys.unflatten(keys.positions)[:, None] - self.unflatten(self.positions)[:, :, None]

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """Convert rows to a batch; its padding holds whatever was computed."""
        return self.unflatten(packed)

    def unpad(self, padded: Tensor) -> Tensor:
        """Invert `pad`."""
        return padded.flatten(0, 1)

    def attention_mask(self) -> Tensor:
        """Mask of the batch, bool [B, L]: True at tokens."""
        return self.mask

    def single_rows(self) -> PackedLayout:
        """Return this layout: that of states, one per sequence, is not needed in a graph."""
        return self

    def mean_pool(self, packed: Tensor) -> Tensor:
        """Mean of each sequence's rows without padding, [B, dim]."""
        mask = self.mask[:, :, None].to(packed.dtype)
        return (self.unflatten(packed) * mask).sum(1) / mask.sum(1)

    def max_pool(self, packed: Tensor) -> Tensor:
        """Maximum of each sequence's rows without padding, [B, dim]."""
        return self.unflatten(packed).masked_fill(~self.mask[:, :, None], torch.finfo(packed.dtype).min).amax(1)


@dataclass(eq=False)
class PaddedKVCache:
    """States of the tokens before a padded chunk, keys and values or others, rows [B · P, …] of each layer; P may be 0.

    Positions are counted over the tokens of `mask` [B, P + L], which ends in that of the chunk: padding may be before
    the tokens of a sequence, between its chunks, or after them. With a `max_len`, only as many of the last tokens
    before the chunk are seen. `cross_kv` and `source` are those of encoder states.
    """

    states: Sequence[tuple[Tensor, ...]]
    mask: Tensor
    past_mask: Tensor  # [B, P], the beginning of `mask`
    cross_kv: Sequence[KeyValue] = ()
    source: PaddedLayout | None = None
    max_len: int = 0

    def chunk_layout(self, mask: Tensor) -> PaddedLayout:
        """Return the layout of the chunk, whose mask is [B, L]."""
        return PaddedLayout.from_mask(mask, self._positions[:, self.past_mask.shape[1] :])

    @property
    def _positions(self) -> Tensor:
        return (self.mask.long().cumsum(1) - 1).clamp(min=0)

    def next_positions(self, layout: PackedLayout) -> tuple[Tensor, int]:
        """Positions of the chunk, which its layout has, and its length."""
        return layout.positions, layout.max_seqlen

    def create_caches(self, layout: PaddedLayout, num_layers: int) -> list[PaddedLayerCache]:
        """Create the cache of each layer."""
        positions, mask = self._positions, self.mask
        if self.max_len:
            mask = mask & (positions >= self.past_mask.long().sum(1, keepdim=True) - self.max_len)
        past_layout, key_layout = PaddedLayout.from_mask(self.past_mask), PaddedLayout.from_mask(mask, positions)
        cross: list[Any] = [(k, v, layout, self.source) for k, v in self.cross_kv] or [None] * num_layers
        return [
            PaddedLayerCache(pair, key_layout, None, cross_kv, past_layout=past_layout, chunk_layout=layout)
            for pair, cross_kv in zip(self.states, cross)
        ]

    def update(self, caches: Sequence[LayerCache], layout: PackedLayout) -> PaddedKVCache:
        """Return the keys and values of all tokens; the mask of the next chunk is not known yet."""
        return replace(self, states=[cache.updated for cache in caches], past_mask=self.mask)

    def truncate(self, max_len: int) -> PaddedKVCache:
        """Return this memory: what is older than `max_len` tokens is masked, not removed."""
        return self


@dataclass(eq=False)
class PaddedLayerCache(LayerCache):
    """One layer of a `PaddedKVCache` during the forward pass of a chunk."""

    past_layout: Any = None
    chunk_layout: Any = None

    def append(self, past_rows: Tensor, new_rows: Tensor) -> Tensor:
        parts = self.past_layout.unflatten(past_rows), self.chunk_layout.unflatten(new_rows)
        return torch.cat(parts, dim=1).flatten(0, 1)
