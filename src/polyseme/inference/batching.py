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

from polyseme.nn.packing import PackedLayout, token_budget_batches
from polyseme.progress import progress
from polyseme.train.loop import prefetch

MAX_IN_FLIGHT = 3  # bins that may be on their way back


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """One bin of sequences: `index` says which of those given stand in it, in order."""

    index: np.ndarray
    tokens: Tensor
    layout: PackedLayout
    segments: Tensor | None


def packed_batches(
    ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None, max_batch_tokens: int, device: torch.device
) -> Iterator[PackedBatch]:
    """The sequences in bins of about `max_batch_tokens` tokens, on the device; the short ones first.

    So the last bin, whose way back nothing hides, has the fewest results.
    """
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    is_cuda = device.type == "cuda"

    def concat_rows(rows: Sequence[np.ndarray], index: np.ndarray) -> Tensor:
        row_tensor = torch.from_numpy(np.concatenate([rows[i] for i in index]).astype(np.int64, copy=False))
        return row_tensor.pin_memory() if is_cuda else row_tensor

    def cpu_batches() -> Iterator[PackedBatch]:
        for index in reversed(list(token_budget_batches(lengths, max_batch_tokens))):
            layout = PackedLayout.from_lengths(lengths[index])
            if is_cuda:
                pinned = layout.cu_seqlens.pin_memory(), layout.positions.pin_memory()
                layout = PackedLayout(layout.lengths, layout.max_seqlen, *pinned)
            yield PackedBatch(
                index, concat_rows(ids, index), layout, None if segments is None else concat_rows(segments, index)
            )

    total = int(lengths.sum())
    with progress("read", total, "tokens", show=total > 20 * max_batch_tokens) as bar:
        for cpu_batch in prefetch(cpu_batches()) if is_cuda else cpu_batches():
            tokens = cpu_batch.tokens.to(device, non_blocking=True)
            segment_ids = None if cpu_batch.segments is None else cpu_batch.segments.to(device, non_blocking=True)
            yield PackedBatch(cpu_batch.index, tokens, cpu_batch.layout.to(device), segment_ids)
            bar.advance(cpu_batch.layout.num_tokens)


def mean_pool(hidden: Tensor, layout: PackedLayout) -> Tensor:
    """The mean over each sequence's tokens, float32: a run of equal lengths at a time, or on a GPU all at once."""
    if hidden.is_cuda:
        lengths = layout.cu_seqlens[: len(layout.lengths) + 1].diff().long()
        # unsafe: it does not look at the lengths, for which the host would wait
        return torch.segment_reduce(hidden.float(), "mean", lengths=lengths, axis=0, unsafe=True)
    run_states = hidden.split([n * length for n, length in layout.equal_length_runs])
    run_means = [
        run_state.view(n, length, *run_state.shape[1:]).float().mean(1)
        for (n, length), run_state in zip(layout.equal_length_runs, run_states)
    ]
    return torch.cat(run_means)


def to_host_async(results: Iterator[tuple[np.ndarray, Tensor]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The results of bins in the host's memory; from a GPU they come while the next are made."""
    in_flight: deque[tuple[np.ndarray, Tensor, torch.cuda.Event]] = deque()

    def pop_oldest() -> tuple[np.ndarray, np.ndarray]:
        index, host, event = in_flight.popleft()
        event.synchronize()
        return index, host.numpy()

    for index, device_tensor in results:
        if not device_tensor.is_cuda:
            yield index, device_tensor.numpy()
            continue
        host = torch.empty(device_tensor.shape, dtype=device_tensor.dtype, pin_memory=True)
        host.copy_(device_tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        in_flight.append((index, host, event))
        if len(in_flight) > MAX_IN_FLIGHT:
            yield pop_oldest()
    while in_flight:
        yield pop_oldest()
