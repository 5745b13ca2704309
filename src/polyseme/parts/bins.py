"""Reading many sequences of uneven length without padding: sorted, packed into bins, answered in input order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyseme.parts.layout import Layout


@dataclass(frozen=True, eq=False)
class Packed:
    """One bin: `index` says which of the given sequences stand in it, in order."""

    index: np.ndarray
    tokens: Tensor
    layout: Layout
    segments: Tensor | None


def pack_bins(
    ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None, bin_tokens: int, device: str | torch.device
) -> Iterator[Packed]:
    """Bins of about `bin_tokens` tokens, longest sequences first, equal lengths side by side."""
    lengths = np.array([len(i) for i in ids])
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        fitting = np.searchsorted(np.cumsum(lengths[order[begin:]]), bin_tokens, side="right")
        index = order[begin : begin + max(int(fitting), 1)]
        tokens = torch.from_numpy(np.concatenate([ids[i] for i in index]).astype(np.int64)).to(device)
        parts = None
        if segments is not None:
            parts = torch.from_numpy(np.concatenate([segments[i] for i in index]).astype(np.int64)).to(device)
        yield Packed(index, tokens, Layout.of(lengths[index], device=device), parts)
        begin += len(index)
