"""Where each sequence starts and ends in a packed batch. There is no pad token inside a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.index_cache import cached_index
from polyseme.nn.tree import tree_map
from polyseme.progress import progress

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """B sequences laid end to end in one flat list of T tokens.

    `lengths` are Python ints, so that no body has to ask the device; `cu_seqlens` and `positions` are the same facts
    as tensors. A batch of one fixed shape (for `torch.compile`) has empty sequences at its end: `slots` says how
    many rows `cu_seqlens` has, and `max_seqlen` may be set above the longest length present.
    """

    lengths: tuple[int, ...]
    max_seqlen: int
    cu_seqlens: Tensor = field(repr=False)  # int32 [slots + 1]
    positions: Tensor = field(repr=False)  # int64 [T], counted from the start of each sequence

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int] | np.ndarray,
        num_slots: int = 0,
        max_seqlen: int = 0,
        device: str | torch.device = "cpu",
    ) -> PackedLayout:
        sizes = np.asarray(lengths, dtype=np.int64)
        ends = np.cumsum(sizes)
        num_tokens = int(ends[-1]) if len(ends) else 0
        cu_seqlens = np.full(max(num_slots, len(sizes)) + 1, num_tokens, dtype=np.int32)
        cu_seqlens[0] = 0
        cu_seqlens[1 : len(sizes) + 1] = ends
        positions = np.arange(num_tokens) - np.repeat(ends - sizes, sizes)
        return cls(
            tuple(sizes.tolist()),
            max(max_seqlen, int(sizes.max(initial=0))),
            torch.from_numpy(cu_seqlens).to(device, non_blocking=True),
            torch.from_numpy(positions).to(device, non_blocking=True),
        )

    @staticmethod
    @cached_index(256)
    def cached(lengths: tuple[int, ...], device: torch.device) -> PackedLayout:
        """The same, for lengths that come again and again: worked out and sent to the device once."""
        return PackedLayout.from_lengths(lengths, device=device)

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    @property
    def first_indices(self) -> Tensor:
        """The flat index of each sequence's first token, int64 [slots]; of an empty slot, any valid index."""
        return self.cu_seqlens[:-1].long().clamp(max=self.num_tokens - 1)

    @property
    def last_indices(self) -> Tensor:
        """The flat index of each sequence's last token, int64 [slots]; of an empty slot, any valid index."""
        return (self.cu_seqlens[1:].long() - 1).clamp(min=0)

    def mean_pool(self, packed: Tensor) -> Tensor:
        """The mean of each sequence's rows, [slots, …], summed in float32 at least; of an empty slot, 0."""
        cu_seqlens = self.cu_seqlens.long()
        sequence_ids = torch.searchsorted(
            cu_seqlens[1:], torch.arange(self.num_tokens, device=cu_seqlens.device), right=True
        )
        upcast = packed.to(torch.promote_types(packed.dtype, torch.float32))
        sums = upcast.new_zeros(len(cu_seqlens) - 1, *packed.shape[1:]).index_add(0, sequence_ids, upcast)
        counts = cu_seqlens.diff().clamp(min=1).view(-1, *[1] * (packed.ndim - 1))
        return (sums / counts).to(packed.dtype)

    def max_pool(self, packed: Tensor) -> Tensor:
        """The greatest of each sequence's rows by column, [slots, …]; of an empty slot, −∞."""
        return torch.segment_reduce(packed, "max", offsets=self.cu_seqlens.long(), axis=0, unsafe=True)

    def count_per_sequence(self, rows: Tensor) -> list[int]:
        """How many of `rows`, which rise, lie in each sequence."""
        sequence_ids = torch.searchsorted(self.cu_seqlens[1:].long(), rows, right=True)
        return torch.bincount(sequence_ids, minlength=len(self.lengths)).tolist()

    @cached_property
    def equal_length_runs(self) -> list[tuple[int, int]]:
        """Neighbours of equal length as (how many, length): each run can be viewed as a plain batch."""
        runs: list[tuple[int, int]] = []
        for length in self.lengths:
            if runs and runs[-1][1] == length:
                runs[-1] = (runs[-1][0] + 1, length)
            else:
                runs.append((1, length))
        return [run for run in runs if run[1]]

    def to(self, device: str | torch.device) -> PackedLayout:
        """Copy the layout to a device."""
        return tree_map(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """[T, …] to the padded view other tools use, [B, longest present, …]."""
        num_sequences, max_len = len(self.lengths), max(self.lengths, default=0)
        padded = packed.new_full((num_sequences * max_len, *packed.shape[1:]), value)
        return padded.index_copy(0, self._padded_index(), packed).unflatten(0, (num_sequences, max_len))

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`."""
        return padded.flatten(0, 1).index_select(0, self._padded_index())

    def _padded_index(self) -> Tensor:
        """Where each token stands in the padded view, flattened; worked out on the device, so that nothing waits."""
        sizes = self.cu_seqlens.diff().long()
        sequence_ids = torch.arange(len(sizes), device=sizes.device).repeat_interleave(
            sizes, output_size=self.num_tokens
        )
        return sequence_ids * max(self.lengths, default=0) + self.positions

    def attention_mask(self) -> Tensor:
        """True where the padded view holds a token, bool [B, longest present]."""
        max_len = max(self.lengths, default=0)
        lengths = self.cu_seqlens.diff()[: len(self.lengths)]
        return torch.arange(max_len, device=lengths.device)[None] < lengths[:, None]


@dataclass(frozen=True, eq=False)
class CacheLayout:
    """Keys in buffers with room for more: row i holds `lengths[i]` of `max_seqlen` columns, or all of them if
    `all_valid`.

    The host need not know the lengths, so that kernels recorded once serve while rows grow.
    """

    lengths: Tensor  # int64 [n]
    max_seqlen: int
    all_valid: bool = False
    bias_cache: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, repr=False)

    def attention_bias(self, window: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of the query behind each row's last key, [n, 1 or heads, 1, longest]; or nothing.

        The bias is by distance, as `ScoreModifier` has it. Made once for all depths that ask alike.
        """
        key = window, id(bias)
        if key not in self.bias_cache:
            self.bias_cache[key] = self._compute_attention_bias(window, bias, dtype)
        return self.bias_cache[key]

    def _compute_attention_bias(self, window: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if self.all_valid and bias is None and not 0 < window < self.max_seqlen:
            return None
        key_positions = torch.arange(self.max_seqlen, device=self.lengths.device)
        relative_positions = key_positions - self.lengths[:, None] + 1
        masked_out = relative_positions > 0
        if window:
            masked_out |= relative_positions < -window
        attention_bias = torch.zeros(masked_out.shape, dtype=dtype, device=masked_out.device)[:, None]
        if bias is not None:
            index = (relative_positions.clamp(max=0) + bias.shape[1] // 2).flatten()
            attention_bias = bias.index_select(1, index).view(-1, *masked_out.shape).transpose(0, 1).to(dtype)
        return attention_bias.masked_fill(masked_out[:, None], float("-inf"))[:, :, None]


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """The sources of a batch, one per sequence: token ids [S] or, once encoded, states [S, dim]."""

    values: Tensor
    layout: PackedLayout


def token_budget_batches(lengths: Sequence[int] | np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """The places of sequences, longest first and equal lengths side by side, in groups of at most `max_tokens`.

    A sequence that is longer stands alone. How many texts of uneven length are read without padding.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order])
    start = 0
    while start < len(order):
        tokens_before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, tokens_before + max_tokens, side="right")), start + 1)
        yield order[start:end]
        start = end


def map_batches(
    fn: Callable[[np.ndarray], Iterable[Result]],
    lengths: Sequence[int],
    max_tokens: int,
    title: str,
    unit: str,
    show: bool,
) -> list[Result]:
    """Apply a function to the indices of each batch of `token_budget_batches`; return results in the input's order."""
    results: dict[int, Result] = {}
    with progress(title, len(lengths), unit, show) as bar:
        for index in token_budget_batches(lengths, max_tokens):
            results.update(zip(index.tolist(), fn(index), strict=True))
            bar.advance(len(index))
    return [results[i] for i in range(len(lengths))]
