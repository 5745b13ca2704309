"""Padded batches in the form of packed ones, for graphs of dynamic shape that other programs run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from polyseme.nn.packing import PackedLayout


@dataclass(frozen=True, eq=False)
class PaddedLayout(PackedLayout):
    """B sequences of L tokens each, of which the last ones may be padding.

    Modules take it in place of a `PackedLayout`: their rows are then the B · L tokens of all sequences. Rows of padding
    are computed, and no other row depends on them. Shapes may be symbolic, so nothing here reads `lengths`.
    """

    mask: Any = None  # bool [B, L], True at tokens

    @classmethod
    def from_mask(cls, mask: Tensor) -> Self:
        """Create the layout of a batch [B, L] whose sequences end where the mask becomes False."""
        batch_size, max_seqlen = mask.shape
        positions = torch.arange(max_seqlen, device=mask.device).expand(batch_size, -1).reshape(-1)
        cu_seqlens = torch.arange(batch_size + 1, device=mask.device, dtype=torch.int32) * max_seqlen
        return cls((), max_seqlen, cu_seqlens, positions, mask=mask)

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

    def mean_pool(self, packed: Tensor) -> Tensor:
        """Mean of each sequence's rows without padding, [B, dim]."""
        mask = self.mask[:, :, None].to(packed.dtype)
        return (self.unflatten(packed) * mask).sum(1) / mask.sum(1)

    def max_pool(self, packed: Tensor) -> Tensor:
        """Maximum of each sequence's rows without padding, [B, dim]."""
        return self.unflatten(packed).masked_fill(~self.mask[:, :, None], torch.finfo(packed.dtype).min).amax(1)
