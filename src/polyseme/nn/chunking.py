"""Reading long texts piece by piece: each piece with the memory of those before it, which has no gradient."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.packing import PackedLayout


def forward_chunked(
    trunk: Any, tokens: Tensor, layout: PackedLayout, segments: Tensor | None, chunk_size: int, grad_tokens: int = 0
) -> Tensor:
    """The last states of every token, [T, dim], read `chunk_size` tokens of each sequence at a time.

    A trunk that reads backwards begins at the end. Gradients stop at the borders of chunks, and only chunks with one of
    a sequence's last `grad_tokens` tokens, in the order of reading, have any (0 is all): a text of any length is learnt
    from in bounded memory, while a head may pool over all of it (Howard and Ruder 2018, §3.3, BPT3C). Without gradients
    this is the same as reading at once, as the law of memory says.
    """
    is_backward = getattr(trunk.config, "direction", "") == "backward"
    lengths = np.array(layout.lengths)
    starts, order = np.cumsum(lengths) - lengths, []
    hidden_chunks, memory = [], None
    previous_alive = np.arange(len(lengths))  # the sequences that memory is of
    for offset in range(0, int(lengths.max(initial=0)), chunk_size):
        alive = np.flatnonzero(lengths > offset)
        if memory is not None and len(alive) < len(previous_alive):
            memory = memory.select(np.searchsorted(previous_alive, alive).tolist())
        previous_alive, ends = alive, np.minimum(lengths[alive], offset + chunk_size)
        chunk_lengths = ends - offset
        chunk_layout = PackedLayout.from_lengths(chunk_lengths, device=layout.cu_seqlens.device)
        first_rows = starts[alive] + (lengths[alive] - ends if is_backward else offset)
        rows = np.repeat(first_rows - (np.cumsum(chunk_lengths) - chunk_lengths), chunk_lengths) + np.arange(
            int(chunk_lengths.sum())
        )
        index = torch.from_numpy(rows).to(tokens.device)
        needs_grad = ends > lengths[alive] - grad_tokens if grad_tokens else np.ones(len(alive), dtype=bool)
        with nullcontext() if needs_grad.any() else torch.no_grad():
            chunk_segments = None if segments is None else segments.index_select(0, index)
            output = trunk(
                tokens.index_select(0, index), chunk_layout, chunk_segments, memory=memory, return_memory=True
            )
        memory, hidden = output.memory.detach(), output.hidden
        if not needs_grad.all():
            mask = torch.from_numpy(np.repeat(needs_grad, chunk_lengths)).to(hidden.device)
            hidden = torch.where(mask[:, None], hidden, hidden.detach())
        hidden_chunks.append(hidden)
        order.append(rows)
    inverse_order = torch.from_numpy(np.argsort(np.concatenate(order))).to(tokens.device)
    return torch.cat(hidden_chunks).index_select(0, inverse_order)
