"""Processing of long sequences in chunks, each with the memory of those before it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import PackedLayout


def forward_chunked(trunk: Any, inputs: Inputs, chunk_size: int, grad_tokens: int = 0) -> Tensor:
    """Compute the hidden states [T, dim] by processing `chunk_size` tokens of each sequence at a time.

    A backward trunk starts at the end. Gradients stop at chunk borders, and only chunks that contain one of the last
    `grad_tokens` tokens of a sequence, in the order of processing, have gradients (0: all chunks). So texts of any
    length are trained on in bounded memory, while a head may pool over all of them (Howard and Ruder 2018, §3.3,
    BPT3C). Without gradients the result equals that of one forward pass.
    """
    tokens, layout, segments = inputs.tokens, inputs.layout, inputs.segments
    is_backward = getattr(trunk.config, "direction", "") == "backward"
    lengths = np.array(layout.lengths)
    starts, order = np.cumsum(lengths) - lengths, []
    hidden_chunks, memory = [], None
    previous_alive = np.arange(len(lengths))  # the sequences in memory
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
            chunk = Inputs(tokens.index_select(0, index), chunk_layout, chunk_segments)
            output = trunk(chunk, memory=memory, return_memory=True)
        memory, hidden = output.memory.detach(), output.hidden
        if not needs_grad.all():
            mask = torch.from_numpy(np.repeat(needs_grad, chunk_lengths)).to(hidden.device)
            hidden = torch.where(mask[:, None], hidden, hidden.detach())
        hidden_chunks.append(hidden)
        order.append(rows)
    inverse_order = torch.from_numpy(np.argsort(np.concatenate(order))).to(tokens.device)
    return torch.cat(hidden_chunks).index_select(0, inverse_order)
