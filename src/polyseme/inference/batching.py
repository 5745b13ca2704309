"""Many sequences through a trunk: sorted by length and packed, and on a GPU never kept waiting.

A thread packs the next bins while one is read, and results travel back while the next are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.packing import Layout, bins
from polyseme.progress import progress
from polyseme.train.prefetch import prefetch

LAG = 3  # bins that may be on their way back


@dataclass(frozen=True, eq=False)
class Packed:
    """One bin of sequences: `index` says which of those given stand in it, in order."""

    index: np.ndarray
    tokens: Tensor
    layout: Layout
    segments: Tensor | None


def in_bins(
    ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None, bin_tokens: int, device: torch.device
) -> Iterator[Packed]:
    """The sequences in bins of about `bin_tokens` tokens, on the device; the short ones first.

    So the last bin, whose way back nothing hides, has the fewest results.
    """
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    cuda = device.type == "cuda"

    def joined(rows: Sequence[np.ndarray], index: np.ndarray) -> Tensor:
        found = torch.from_numpy(np.concatenate([rows[i] for i in index]).astype(np.int64, copy=False))
        return found.pin_memory() if cuda else found

    def made() -> Iterator[Packed]:
        for index in reversed(list(bins(lengths, bin_tokens))):
            layout = Layout.of(lengths[index])
            if cuda:
                pinned = layout.starts.pin_memory(), layout.positions.pin_memory()
                layout = Layout(layout.lengths, layout.longest, *pinned)
            yield Packed(index, joined(ids, index), layout, None if segments is None else joined(segments, index))

    total = int(lengths.sum())
    with progress("read", total, "tokens", show=total > 20 * bin_tokens) as bar:
        for each in prefetch(made()) if cuda else made():
            tokens = each.tokens.to(device, non_blocking=True)
            kinds = None if each.segments is None else each.segments.to(device, non_blocking=True)
            yield Packed(each.index, tokens, each.layout.to(device), kinds)
            bar.advance(each.layout.total)


def means(states: Tensor, layout: Layout) -> Tensor:
    """The mean over each sequence's tokens, float32: a run of equal lengths at a time, or on a GPU all at once."""
    if states.is_cuda:
        lengths = layout.starts[: len(layout.lengths) + 1].diff().long()
        # unsafe: it does not look at the lengths, for which the host would wait
        return torch.segment_reduce(states.float(), "mean", lengths=lengths, axis=0, unsafe=True)
    parts = states.split([n * length for n, length in layout.runs])
    found = [part.view(n, length, *part.shape[1:]).float().mean(1) for (n, length), part in zip(layout.runs, parts)]
    return torch.cat(found)


def fetched(results: Iterator[tuple[np.ndarray, Tensor]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The results of bins in the host's memory; from a GPU they come while the next are made."""
    waiting: deque[tuple[np.ndarray, Tensor, torch.cuda.Event]] = deque()

    def arrived() -> tuple[np.ndarray, np.ndarray]:
        index, host, event = waiting.popleft()
        event.synchronize()
        return index, host.numpy()

    for index, found in results:
        if not found.is_cuda:
            yield index, found.numpy()
            continue
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        host.copy_(found, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        waiting.append((index, host, event))
        if len(waiting) > LAG:
            yield arrived()
    while waiting:
        yield arrived()
