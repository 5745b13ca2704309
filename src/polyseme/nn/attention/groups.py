"""Adjacent sequences of similar length as one padded batch: a GPU is faster with few large products than many small."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from polyseme.nn.packing import PackedLayout

MAX_PADDED_SHARE = 1.3  # scores of a padded group, relative to those of its sequences
SMALL_GROUP = 1 << 14  # scores of a head, below which padding costs less than another group


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """The packed rows of adjacent sequences, padded at the end of each to `length` rows.

    `padded_to_packed` has any row for padding. Rows are counted from the first one of the group, which is row `start`
    of the batch.
    """

    length: int
    start: int
    num_rows: int
    padded_to_packed: Tensor  # int64 [sequences · length]
    packed_to_padded: Tensor  # int64 [rows]
    is_padding: Tensor  # bool [sequences, length]

    @classmethod
    def create(cls, layout: PackedLayout, sequence_ids: Tensor, sequences: slice, rows: slice, length: int) -> Self:
        """Return the rows of these sequences, without waiting for the device."""
        first, num_rows = sequences.start, rows.stop - rows.start
        offsets = torch.arange(length, device=sequence_ids.device)
        starts = layout.cu_seqlens[first : sequences.stop].long() - rows.start
        is_padding = offsets >= layout.cu_seqlens[first : sequences.stop + 1].long().diff()[:, None]
        padded_to_packed = (starts[:, None] + offsets).clamp(max=max(num_rows - 1, 0)).flatten()
        packed_to_padded = (sequence_ids[rows] - first) * length + layout.positions[rows]
        return cls(length, rows.start, num_rows, padded_to_packed, packed_to_padded, is_padding)

    def pad(self, x: Tensor) -> Tensor:
        """Convert rows [rows, heads, head_dim] to [heads, sequences, length, head_dim].

        Padding gets no gradient, so nothing that is kept may depend on it.
        """
        num_heads, padded_to_packed, packed_to_padded = self._head_indices(x.shape[1])
        padded = _gather_rows(x.reshape(-1, x.shape[-1]), padded_to_packed, packed_to_padded, None)
        return padded.view(num_heads, -1, self.length, x.shape[-1])

    def unpad(self, x: Tensor) -> Tensor:
        """Convert [heads, sequences, length, head_dim] to rows [rows, heads, head_dim]."""
        num_heads, padded_to_packed, packed_to_padded = self._head_indices(x.shape[0])
        is_padding = self.is_padding.flatten().repeat(num_heads)
        packed = _gather_rows(x.reshape(-1, x.shape[-1]), packed_to_padded, padded_to_packed, is_padding)
        return packed.view(-1, num_heads, x.shape[-1])

    def _head_indices(self, num_heads: int) -> tuple[int, Tensor, Tensor]:
        """Return the packed row of each head and padded row, and the padded row of each packed row and head."""
        heads = torch.arange(num_heads, device=self.is_padding.device)
        padded_to_packed = self.padded_to_packed * num_heads + heads[:, None]  # [heads, sequences · length]
        packed_to_padded = self.packed_to_padded[:, None] + heads * self.is_padding.numel()  # [rows, heads]
        return num_heads, padded_to_packed.flatten(), packed_to_padded.flatten()


@dataclass(frozen=True, eq=False)
class PaddedGroup:
    """`num_sequences` adjacent sequences with padded queries and keys."""

    num_sequences: int
    queries: PaddedRows
    keys: PaddedRows


def prefers_padding(x: Tensor) -> bool:
    """Return whether groups are faster than runs of equal length: on a GPU, where each run costs several launches."""
    return x.is_cuda


def group_sequences(q_layout: PackedLayout, k_layout: PackedLayout) -> list[PaddedGroup]:
    """Divide all sequences into groups that waste little on padding; the loader sorts them by length.

    Layouts of a static shape are one group, for which no length is read: its kernels serve every batch of this shape.
    """
    layouts = (q_layout,) if q_layout is k_layout else (q_layout, k_layout)
    sequence_ids = [layout.sequence_ids for layout in layouts]
    if q_layout.has_static_shape:
        num_slots = len(q_layout.cu_seqlens) - 1
        sides = [
            PaddedRows.create(layout, ids, slice(0, num_slots), slice(0, layout.num_tokens), layout.max_seqlen)
            for layout, ids in zip(layouts, sequence_ids)
        ]
        return [PaddedGroup(num_slots, sides[0], sides[-1])]
    groups, stops = [], [0] * len(layouts)
    for sequences in _split_sequences(list(zip(q_layout.lengths, k_layout.lengths))):
        sides = []
        for i, (layout, ids) in enumerate(zip(layouts, sequence_ids)):
            lengths = layout.lengths[sequences]
            rows = slice(stops[i], stops[i] + sum(lengths))
            stops[i] = rows.stop
            sides.append(PaddedRows.create(layout, ids, sequences, rows, max(lengths)))
        groups.append(PaddedGroup(sequences.stop - sequences.start, sides[0], sides[-1]))
    return groups


def _split_sequences(lengths: list[tuple[int, int]]) -> list[slice]:
    """Divide sequences with these numbers of queries and keys into groups."""
    borders, padded_shape, num_scores = [0], (0, 0), 0
    for i, (num_queries, num_keys) in enumerate(lengths):
        shape = max(padded_shape[0], num_queries), max(padded_shape[1], num_keys)
        num_padded = (i + 1 - borders[-1]) * shape[0] * shape[1]
        num_scores += num_queries * num_keys
        is_wasteful = num_padded > max(MAX_PADDED_SHARE * num_scores, SMALL_GROUP)
        if i > borders[-1] and is_wasteful:
            borders.append(i)
            shape, num_scores = (num_queries, num_keys), num_queries * num_keys
        padded_shape = shape
    return [slice(*pair) for pair in pairwise([*borders, len(lengths)])] if lengths else []


class _GatherRows(torch.autograd.Function):
    """Gather rows by `index`; the gradient is a gather by `inverse_index`, which is faster than a sum of rows.

    It is 0 in rows that are `dropped`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse_index: Tensor, dropped: Tensor | None) -> Tensor:
        ctx.save_for_backward(inverse_index, dropped)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        inverse_index, dropped = ctx.saved_tensors
        grad = grad_output.index_select(0, inverse_index)
        return grad if dropped is None else grad.masked_fill(dropped[:, None], 0), None, None, None


def _gather_rows(x: Tensor, index: Tensor, inverse_index: Tensor, dropped: Tensor | None) -> Tensor:
    gathered: Tensor = _GatherRows.apply(x, index, inverse_index, dropped)
    return gathered
