"""Adjacent sequences of similar length as one padded batch: a GPU is faster with few large products than many small."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyseme.nn.packing import PackedLayout

MAX_PADDED_SHARE = 1.3  # scores of a padded group, relative to those of its sequences
SMALL_GROUP = 1 << 14  # scores of a head, below which padding costs less than another group


@dataclass(frozen=True, eq=False)
class PaddedGroup:
    """`num_sequences` adjacent sequences, padded at their ends to `num_queries` queries and `num_keys` keys each."""

    num_sequences: int
    num_queries: int
    num_keys: int
    query_rows: Tensor  # int64 [sequences · queries], the packed row of each query; any row for padding
    key_rows: Tensor  # int64 [sequences · keys]
    query_places: Tensor  # int64, the place of each packed query in the padded group
    is_padding: Tensor  # bool [sequences, keys]


def prefers_padding(x: Tensor) -> bool:
    """Return whether groups are faster than runs of equal length: on a GPU, where each run costs several launches."""
    return x.is_cuda


def group_sequences(q_layout: PackedLayout, k_layout: PackedLayout) -> list[PaddedGroup]:
    """Divide all sequences into groups that waste little on padding; the loader sorts them by length."""
    borders, padded_shape, num_scores = [0], (0, 0), 0
    pairs = list(zip(q_layout.lengths, k_layout.lengths))
    for i, (num_queries, num_keys) in enumerate(pairs):
        shape = max(padded_shape[0], num_queries), max(padded_shape[1], num_keys)
        num_padded = (i + 1 - borders[-1]) * shape[0] * shape[1]
        num_scores += num_queries * num_keys
        is_wasteful = num_padded > max(MAX_PADDED_SHARE * num_scores, SMALL_GROUP)
        if i > borders[-1] and is_wasteful:
            borders.append(i)
            shape, num_scores = (num_queries, num_keys), num_queries * num_keys
        padded_shape = shape
    query_sequences = q_layout.sequence_ids
    ends = [*borders[1:], len(pairs)] if pairs else []
    return [_pad_group(q_layout, k_layout, query_sequences, first, stop) for first, stop in zip(borders, ends)]


def _pad_group(
    q_layout: PackedLayout, k_layout: PackedLayout, query_sequences: Tensor, first: int, stop: int
) -> PaddedGroup:
    """Return the group of the sequences from `first` to `stop`, without waiting for the device."""
    num_queries, num_keys = max(q_layout.lengths[first:stop]), max(k_layout.lengths[first:stop])
    query_start = sum(q_layout.lengths[:first])
    queries = slice(query_start, query_start + sum(q_layout.lengths[first:stop]))
    places = (query_sequences[queries] - first) * num_queries + q_layout.positions[queries]
    key_lengths = k_layout.cu_seqlens[first : stop + 1].long().diff()
    is_padding = torch.arange(num_keys, device=key_lengths.device) >= key_lengths[:, None]
    query_rows = _padded_rows(q_layout, first, stop, num_queries)
    key_rows = _padded_rows(k_layout, first, stop, num_keys)
    return PaddedGroup(stop - first, num_queries, num_keys, query_rows, key_rows, places, is_padding)


def _padded_rows(layout: PackedLayout, first: int, stop: int, num_rows: int) -> Tensor:
    """Return the packed rows of sequences, each continued by those that follow it, as padding."""
    starts = layout.cu_seqlens[first:stop].long()
    rows = starts[:, None] + torch.arange(num_rows, device=starts.device)
    return rows.clamp(max=max(layout.num_tokens - 1, 0)).flatten()
