"""Reading long texts piece by piece: each piece with the memory of those before it, which has no gradient."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.packing import Layout


def read_in_chunks(
    trunk: Any, tokens: Tensor, layout: Layout, segments: Tensor | None, chunk: int, learnt: int = 0
) -> Tensor:
    """The last states of every token, [T, dim], read `chunk` tokens of each sequence at a time.

    A trunk that reads backwards begins at the end. Gradients stop at the borders of chunks, and only chunks with one of
    a sequence's last `learnt` tokens, in the order of reading, have any (0 is all): a text of any length is learnt from
    in bounded memory, while a head may pool over all of it (Howard and Ruder 2018, §3.3, BPT3C). Without gradients this
    is the same as reading at once, as the law of memory says.
    """
    backwards = getattr(trunk.spec, "direction", "") == "backward"
    sizes = np.array(layout.lengths)
    begins, order = np.cumsum(sizes) - sizes, []
    found, memory = [], None
    before = np.arange(len(sizes))  # the sequences that memory is of
    for done in range(0, int(sizes.max(initial=0)), chunk):
        alive = np.flatnonzero(sizes > done)
        if memory is not None and len(alive) < len(before):
            memory = memory.take(np.searchsorted(before, alive).tolist())
        before, ends = alive, np.minimum(sizes[alive], done + chunk)
        taken = ends - done
        part = Layout.of(taken, device=layout.starts.device)
        first = begins[alive] + (sizes[alive] - ends if backwards else done)
        rows = np.repeat(first - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
        index = torch.from_numpy(rows).to(tokens.device)
        learns = ends > sizes[alive] - learnt if learnt else np.ones(len(alive), dtype=bool)
        with nullcontext() if learns.any() else torch.no_grad():
            own = None if segments is None else segments.index_select(0, index)
            reading = trunk(tokens.index_select(0, index), part, own, memory=memory, remember=True)
        memory, last = reading.memory.detach(), reading.last
        if not learns.all():
            mask = torch.from_numpy(np.repeat(learns, taken)).to(last.device)
            last = torch.where(mask[:, None], last, last.detach())
        found.append(last)
        order.append(rows)
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(tokens.device)
    return torch.cat(found).index_select(0, back)
