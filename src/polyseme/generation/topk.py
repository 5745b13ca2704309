"""The highest scores of long rows."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_SIZE = 64


def fast_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` highest of each row [rows, vocabulary], highest first, and which they are.

    On a CPU torch's own sorts along the whole row. Here only the chunks that have the highest maxima are looked at,
    which hold all that is asked for, and what is left at the end of the row.
    """
    num_rows, size = scores.shape
    k, num_chunks = min(k, size), size // CHUNK_SIZE
    if scores.is_cuda or num_chunks < 4 * k:
        top = scores.topk(k)
        return top.values, top.indices
    chunked_size = num_chunks * CHUNK_SIZE
    body, row = scores[:, :chunked_size].unflatten(1, (num_chunks, CHUNK_SIZE)), torch.arange(num_rows)[:, None]
    top_chunks = body.amax(-1).topk(k, sorted=False).indices
    top = torch.cat([body[row, top_chunks].flatten(1), scores[:, chunked_size:]], dim=1).topk(k)
    chunk, offset = top.indices // CHUNK_SIZE, top.indices % CHUNK_SIZE
    is_remainder = chunk >= k  # behind all chunks
    chunk_indices = top_chunks.gather(1, chunk.masked_fill(is_remainder, 0)) * CHUNK_SIZE + offset
    return top.values, torch.where(is_remainder, top.indices - k * CHUNK_SIZE + chunked_size, chunk_indices)
