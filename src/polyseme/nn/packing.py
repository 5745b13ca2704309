"""Where each sequence starts and ends in a packed batch. There is no pad token inside a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.index_cache import known


@dataclass(frozen=True, eq=False)
class Layout:
    """B sequences laid end to end in one flat list of T tokens.

    `lengths` are Python ints, so that no body has to ask the device; `starts` and `positions` are the same facts
    as tensors. A batch of one fixed shape (for `torch.compile`) has empty sequences at its end: `slots` says how
    many rows `starts` has, and `longest` may be set above the longest length present.
    """

    lengths: tuple[int, ...]
    longest: int
    starts: Tensor = field(repr=False)  # int32 [slots + 1]
    positions: Tensor = field(repr=False)  # int64 [T], counted from the start of each sequence

    @classmethod
    def of(
        cls,
        lengths: Sequence[int] | np.ndarray,
        slots: int = 0,
        longest: int = 0,
        device: str | torch.device = "cpu",
    ) -> Layout:
        sizes = np.asarray(lengths, dtype=np.int64)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        starts = np.full(max(slots, len(sizes)) + 1, total, dtype=np.int32)
        starts[0] = 0
        starts[1 : len(sizes) + 1] = ends
        positions = np.arange(total) - np.repeat(ends - sizes, sizes)
        return cls(
            tuple(sizes.tolist()),
            max(longest, int(sizes.max(initial=0))),
            torch.from_numpy(starts).to(device, non_blocking=True),
            torch.from_numpy(positions).to(device, non_blocking=True),
        )

    @staticmethod
    @known(256)
    def recalled(lengths: tuple[int, ...], device: torch.device) -> Layout:
        """The same, for lengths that come again and again: worked out and sent to the device once."""
        return Layout.of(lengths, device=device)

    @property
    def total(self) -> int:
        return self.positions.shape[0]

    @property
    def first(self) -> Tensor:
        """The flat index of each sequence's first token, int64 [slots]; of an empty slot, any valid index."""
        return self.starts[:-1].long().clamp(max=self.total - 1)

    @property
    def last(self) -> Tensor:
        """The flat index of each sequence's last token, int64 [slots]; of an empty slot, any valid index."""
        return (self.starts[1:].long() - 1).clamp(min=0)

    def mean(self, packed: Tensor) -> Tensor:
        """The mean of each sequence's rows, [slots, …], summed in float32 at least; of an empty slot, 0."""
        starts = self.starts.long()
        owner = torch.searchsorted(starts[1:], torch.arange(self.total, device=starts.device), right=True)
        wide = packed.to(torch.promote_types(packed.dtype, torch.float32))
        sums = wide.new_zeros(len(starts) - 1, *packed.shape[1:]).index_add(0, owner, wide)
        counts = starts.diff().clamp(min=1).view(-1, *[1] * (packed.ndim - 1))
        return (sums / counts).to(packed.dtype)

    def max(self, packed: Tensor) -> Tensor:
        """The greatest of each sequence's rows by column, [slots, …]; of an empty slot, −∞."""
        return torch.segment_reduce(packed, "max", offsets=self.starts.long(), axis=0, unsafe=True)

    def counts(self, rows: Tensor) -> list[int]:
        """How many of `rows`, which rise, lie in each sequence."""
        owner = torch.searchsorted(self.starts[1:].long(), rows, right=True)
        return torch.bincount(owner, minlength=len(self.lengths)).tolist()

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Neighbours of equal length as (how many, length): each run can be viewed as a plain batch."""
        found: list[tuple[int, int]] = []
        for length in self.lengths:
            if found and found[-1][1] == length:
                found[-1] = (found[-1][0] + 1, length)
            else:
                found.append((1, length))
        return [run for run in found if run[1]]

    def to(self, device: str | torch.device) -> Layout:
        starts = self.starts.to(device, non_blocking=True)
        return Layout(self.lengths, self.longest, starts, self.positions.to(device, non_blocking=True))

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """[T, …] to the padded view other tools use, [B, longest present, …]."""
        number, longest = len(self.lengths), max(self.lengths, default=0)
        padded = packed.new_full((number * longest, *packed.shape[1:]), value)
        return padded.index_copy(0, self._spots(), packed).unflatten(0, (number, longest))

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`."""
        return padded.flatten(0, 1).index_select(0, self._spots())

    def _spots(self) -> Tensor:
        """Where each token stands in the padded view, flattened; worked out on the device, so that nothing waits."""
        sizes = self.starts.diff().long()
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes, output_size=self.total)
        return owner * max(self.lengths, default=0) + self.positions

    def mask(self) -> Tensor:
        """True where the padded view holds a token, bool [B, longest present]."""
        longest = max(self.lengths, default=0)
        lengths = self.starts.diff()[: len(self.lengths)]
        return torch.arange(longest, device=lengths.device)[None] < lengths[:, None]


@dataclass(frozen=True, eq=False)
class Room:
    """Keys in buffers with room for more: row i holds `lengths[i]` of `longest` columns, or all of them if `full`.

    The host need not know the lengths, so that kernels recorded once serve while rows grow.
    """

    lengths: Tensor  # int64 [n]
    longest: int
    full: bool = False
    found: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, repr=False)

    def added(self, window: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of the query behind each row's last key, [n, 1 or heads, 1, longest]; or nothing.

        The bias is by distance, as `Scoring` has it. Made once for all depths that ask alike.
        """
        key = window, id(bias)
        if key not in self.found:
            self.found[key] = self._added(window, bias, dtype)
        return self.found[key]

    def _added(self, window: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if self.full and bias is None and not 0 < window < self.longest:
            return None
        places = torch.arange(self.longest, device=self.lengths.device)
        ahead = places - self.lengths[:, None] + 1
        hidden = ahead > 0
        if window:
            hidden |= ahead < -window
        found = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)[:, None]
        if bias is not None:
            index = (ahead.clamp(max=0) + bias.shape[1] // 2).flatten()
            found = bias.index_select(1, index).view(-1, *hidden.shape).transpose(0, 1).to(dtype)
        return found.masked_fill(hidden[:, None], float("-inf"))[:, :, None]


@dataclass(frozen=True, eq=False)
class Source:
    """What each sequence of a batch looks at besides itself: token ids [S], or states [S, dim] once they are read."""

    values: Tensor
    layout: Layout

    def to(self, device: str | torch.device) -> Source:
        return Source(self.values.to(device, non_blocking=True), self.layout.to(device))


def bins(lengths: Sequence[int] | np.ndarray, bin_tokens: int) -> Iterator[np.ndarray]:
    """The places of sequences, longest first and equal lengths side by side, in groups of at most `bin_tokens`.

    A sequence that is longer stands alone. How many texts of uneven length are read without padding.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order])
    begin = 0
    while begin < len(order):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + bin_tokens, side="right")), begin + 1)
        yield order[begin:end]
        begin = end
