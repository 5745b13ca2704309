"""What a causal trunk carries from one chunk to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyseme.parts.layout import Layout, Source


@dataclass(frozen=True, eq=False)
class Memory:
    """Keys and values of every depth, packed, with the layout of what was read so far.

    `source` holds the states that cross attention looks at.
    """

    layout: Layout
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    source: Source | None = None

    def detach(self) -> Memory:
        source = None if self.source is None else Source(self.source.values.detach(), self.source.layout)
        return Memory(self.layout, tuple(k.detach() for k in self.keys), tuple(v.detach() for v in self.values), source)


class Cache:
    """One depth's keys and values while a chunk is read: the old ones, then the chunk's, sequence by sequence."""

    def __init__(self, old: tuple[Tensor, Tensor] | None, joined: Layout, index: Tensor | None):
        self.old, self.joined, self.index = old, joined, index
        self.key: Tensor
        self.value: Tensor

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Layout]:
        if self.old is None or self.index is None:
            self.key, self.value = k, v
        else:
            self.key = torch.cat([self.old[0], k]).index_select(0, self.index)
            self.value = torch.cat([self.old[1], v]).index_select(0, self.index)
        return self.key, self.value, self.joined


def open_caches(memory: Memory | None, layout: Layout, depth: int) -> list[Cache]:
    """A cache for each depth; the order in which old and new rows join is worked out once for all of them."""
    if memory is None:
        return [Cache(None, layout, None) for _ in range(depth)]
    old, new = np.array(memory.layout.lengths), np.array(layout.lengths)
    joined = Layout.of(old + new, device=layout.starts.device)
    ranks = np.concatenate([np.repeat(2 * np.arange(len(old)), old), np.repeat(2 * np.arange(len(new)) + 1, new)])
    index = torch.from_numpy(np.argsort(ranks, kind="stable")).to(layout.starts.device)
    return [Cache(pair, joined, index) for pair in zip(memory.keys, memory.values)]


def close_caches(caches: list[Cache]) -> Memory:
    return Memory(caches[0].joined, tuple(c.key for c in caches), tuple(c.value for c in caches))
