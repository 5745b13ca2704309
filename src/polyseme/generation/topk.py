"""The highest scores of long rows."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


def highest(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The `number` highest of each row [rows, vocabulary], highest first, and which they are.

    On a CPU torch's own sorts along the whole row. Here only the chunks that have the highest maxima are looked at,
    which hold all that is asked for, and what is left at the end of the row.
    """
    rows, size = scores.shape
    number, chunks = min(number, size), size // CHUNK
    if scores.is_cuda or chunks < 4 * number:
        top = scores.topk(number)
        return top.values, top.indices
    whole = chunks * CHUNK
    body, row = scores[:, :whole].unflatten(1, (chunks, CHUNK)), torch.arange(rows)[:, None]
    which = body.amax(-1).topk(number, sorted=False).indices
    top = torch.cat([body[row, which].flatten(1), scores[:, whole:]], dim=1).topk(number)
    chunk, place = top.indices // CHUNK, top.indices % CHUNK
    left = chunk >= number  # behind all chunks
    inside = which.gather(1, chunk.masked_fill(left, 0)) * CHUNK + place
    return top.values, torch.where(left, top.indices - number * CHUNK + whole, inside)
