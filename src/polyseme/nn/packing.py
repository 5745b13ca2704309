"""Packed batches, the inputs of a trunk: sequences of different lengths without padding.

There is no pad token inside a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from polyseme.nn.index_cache import cached_index
from polyseme.progress import progress

if TYPE_CHECKING:
    from polyseme.nn.attention.relative import QueryStream
    from polyseme.nn.layers.frozen_features import FeatureStore

Device = str | torch.device
T = TypeVar("T")


def tree_map(tree: T, fn: Callable[[Tensor], Tensor]) -> T:
    """Return a copy with `fn` applied to every tensor of nested dataclasses, dictionaries and tuples.

    A tuple of ints (the lengths of a layout) is returned unread.
    """
    if isinstance(tree, Tensor):
        return fn(tree)  # type: ignore[return-value]
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: tree_map(getattr(tree, f.name), fn) for f in fields(tree)})
    if isinstance(tree, dict):
        return {key: tree_map(value, fn) for key, value in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple) and not (tree and isinstance(tree[0], int)):
        return tuple(tree_map(value, fn) for value in tree)  # type: ignore[return-value]
    return tree


def tree_leaves(tree: object) -> list[Tensor]:
    """Return the tensors of a tree in the order of `tree_map`."""
    leaves: list[Tensor] = []
    tree_map(tree, lambda tensor: leaves.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return leaves


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """B sequences concatenated to one list of T tokens.

    `lengths` are Python ints, so that no code has to wait for the device; `cu_seqlens` and `positions` are the same as
    tensors. A batch of a static shape (for `torch.compile` and CUDA graphs) has empty sequences at its end:
    `cu_seqlens` has one entry per slot, and `max_seqlen` may exceed the longest length. `causal` tells a hybrid trunk,
    which can read in either way, that tokens see only those before them.
    """

    is_padded: ClassVar[bool] = False  # whether it stands for a padded batch, see `nn.padding`
    lengths: tuple[int, ...]
    max_seqlen: int
    cu_seqlens: Tensor = field(repr=False)  # int32 [slots + 1]
    positions: Tensor = field(repr=False)  # int64 [T], counted from the start of each sequence
    causal: bool = False
    has_static_shape: bool = False  # whether kernels may depend on the number of slots and `max_seqlen`, not on lengths

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int] | np.ndarray, num_slots: int = 0, max_seqlen: int = 0, device: Device = "cpu"
    ) -> Self:
        """Create the layout of sequences of these lengths; with `num_slots` and `max_seqlen`, of this static shape."""
        sizes = np.asarray(lengths, dtype=np.int64)
        ends = np.cumsum(sizes)
        num_tokens = int(ends[-1]) if len(ends) else 0
        cu_seqlens = np.full(max(num_slots, len(sizes)) + 1, num_tokens, dtype=np.int32)
        cu_seqlens[0], cu_seqlens[1 : len(sizes) + 1] = 0, ends
        positions = np.arange(num_tokens) - np.repeat(ends - sizes, sizes)
        starts, places = (torch.from_numpy(array).to(device, non_blocking=True) for array in (cu_seqlens, positions))
        longest = max(max_seqlen, int(sizes.max(initial=0)))
        return cls(tuple(sizes.tolist()), longest, starts, places, has_static_shape=num_slots > 0)

    @staticmethod
    @cached_index(256)
    def cached(lengths: tuple[int, ...], device: torch.device) -> PackedLayout:
        """Return `from_lengths` from a cache, for lengths that recur."""
        return PackedLayout.from_lengths(lengths, device=device)

    def as_causal(self) -> Self:
        """Return the same layout, read left to right by a hybrid trunk."""
        return replace(self, causal=True)

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens of all sequences."""
        return self.positions.shape[0]

    @property
    def longest(self) -> int:
        """Length of the longest sequence, 0 if there is none; with a static shape, that of the longest possible one."""
        return self.max_seqlen if self.has_static_shape else max(self.lengths, default=0)

    @property
    def first_indices(self) -> Tensor:
        """Index of each sequence's first token, int64 [slots]; any valid index for an empty slot."""
        return self.cu_seqlens[:-1].long().clamp(max=self.num_tokens - 1)

    @property
    def last_indices(self) -> Tensor:
        """Index of each sequence's last token, int64 [slots]; any valid index for an empty slot."""
        return (self.cu_seqlens[1:].long() - 1).clamp(min=0)

    @property
    def sequence_ids(self) -> Tensor:
        """Index of the sequence of each token, int64 [T]; computed on the device."""
        index = torch.arange(self.num_tokens, device=self.cu_seqlens.device)
        return torch.searchsorted(self.cu_seqlens[1:].long(), index, right=True)

    def mean_pool(self, packed: Tensor) -> Tensor:
        """Mean of each sequence's rows, [slots, …], summed in at least float32; 0 for an empty slot."""
        upcast = packed.to(torch.promote_types(packed.dtype, torch.float32))
        sums = upcast.new_zeros(len(self.cu_seqlens) - 1, *packed.shape[1:]).index_add(0, self.sequence_ids, upcast)
        counts = self.cu_seqlens.long().diff().clamp(min=1).view(-1, *[1] * (packed.ndim - 1))
        return (sums / counts).to(packed.dtype)

    def max_pool(self, packed: Tensor) -> Tensor:
        """Maximum of each sequence's rows, [slots, …]; −∞ for an empty slot."""
        return torch.segment_reduce(packed, "max", offsets=self.cu_seqlens.long(), axis=0, unsafe=True)

    def count_per_sequence(self, rows: Tensor) -> list[int]:
        """Number of `rows` in each sequence."""
        sequence_ids = torch.searchsorted(self.cu_seqlens[1:].long(), rows, right=True)
        return torch.bincount(sequence_ids, minlength=len(self.lengths)).tolist()

    @cached_property
    def equal_length_runs(self) -> list[tuple[int, int]]:
        """Runs of adjacent sequences of equal length, (number, length): each can be viewed as a dense batch."""
        return [(len(list(run)), length) for length, run in groupby(self.lengths) if length]

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """Convert [T, …] to a padded batch [B, longest length, …]."""
        shape = len(self.lengths), max(self.lengths, default=0)
        padded = packed.new_full((shape[0] * shape[1], *packed.shape[1:]), value)
        return padded.index_copy(0, self._padded_index(), packed).unflatten(0, shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """Invert `pad`."""
        return padded.flatten(0, 1).index_select(0, self._padded_index())

    def _padded_index(self) -> Tensor:
        """Index of each token in the flattened padded batch."""
        return self.sequence_ids * max(self.lengths, default=0) + self.positions

    def one_per_slot(self) -> Self:
        """Return the layout of one token for each slot."""
        index = torch.arange(len(self.cu_seqlens), dtype=torch.int32, device=self.cu_seqlens.device)
        positions = torch.zeros_like(self.cu_seqlens[1:], dtype=torch.int64)
        return replace(self, lengths=(1,) * len(positions), max_seqlen=1, cu_seqlens=index, positions=positions)

    def single_rows(self) -> PackedLayout:
        """Return the layout of one row for each sequence."""
        return PackedLayout.cached((1,) * len(self.lengths), self.cu_seqlens.device)

    def attention_mask(self) -> Tensor:
        """Mask of the padded batch, bool [B, longest length]: True at tokens."""
        lengths = self.cu_seqlens.diff()[: len(self.lengths)]
        return torch.arange(max(self.lengths, default=0), device=lengths.device) < lengths[:, None]


@dataclass(frozen=True, eq=False)
class CacheLayout:
    """Keys in cache buffers: row i holds `lengths[i]` of `max_seqlen` columns, or all of them if `all_valid`.

    The lengths are on the device only, so that a CUDA graph stays valid while rows grow.
    """

    lengths: Tensor  # int64 [n]
    max_seqlen: int
    all_valid: bool = False
    bias_cache: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, repr=False)

    def attention_bias(self, window: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Mask and bias [n, 1 or heads, 1, max_seqlen] for a query at the position of each row's last key, or None.

        `bias` is by relative position, as in `AttentionOptions`. Layers with the same arguments share the result.
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
    """Sources of a batch, one per sequence: token ids [S] or, once encoded, states [S, dim]."""

    values: Tensor
    layout: PackedLayout


@dataclass(frozen=True, eq=False)
class Inputs:
    """A packed batch of token ids, and what some trunks take with it.

    `Trunk.forward` raises for a field that the trunk does not use.
    """

    tokens: Tensor  # int64 [T]
    layout: PackedLayout
    segments: Tensor | None = None  # int64 [T]
    source: EncoderInput | None = None  # one source for each sequence: token ids, or encoder states for a decoder
    query_stream: QueryStream | None = None  # its states follow those of the tokens (XLNet)
    features: FeatureStore | None = None  # vectors that the tokens index
    token_embeddings: Tensor | None = None  # [vocab, dim], where the table belongs to another trunk
    rows: Tensor | None = None  # int64 [n], the tokens whose last states are returned, [n, dim]; None: all

    def to(self, device: str | torch.device) -> Self:
        """Copy all tensors to a device."""
        return tree_map(self, lambda tensor: tensor.to(device, non_blocking=True))

    def split(self, max_tokens: int) -> Iterator[Self]:
        """Yield runs of adjacent sequences with at most `max_tokens` tokens, or one longer sequence.

        Sources, query streams and rows are not supported.
        """
        assert self.source is None and self.query_stream is None and self.rows is None
        lengths, device = self.layout.lengths, self.tokens.device
        first = start = end = 0
        for last, length in enumerate((*lengths, max_tokens + 1)):
            if last > first and end + length - start > max_tokens:
                segments = None if self.segments is None else self.segments[start:end]
                layout = PackedLayout.from_lengths(lengths[first:last], device=device)
                yield replace(self, tokens=self.tokens[start:end], layout=layout, segments=segments)
                first, start = last, end
            end += length


def time_major_order(lengths: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sort packed rows by time step, sequences from long to short, as in torch's PackedSequence.

    Return the number of sequences that reach each step, the non-empty sequences from long to short, the packed row at
    each sorted position, the sorted position of each packed row, the sorted position of the same row if all sequences
    were reversed, and the rank of the sequence at each sorted position.
    """
    sequences = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    sizes, starts = lengths[sequences], (np.cumsum(lengths) - lengths)[sequences]
    steps = np.arange(sizes.max(initial=0))
    batch_sizes = len(sizes) - np.searchsorted(sizes[::-1], steps, side="right")
    steps = np.repeat(steps, batch_sizes)
    ranks = np.arange(len(steps)) - np.repeat(np.cumsum(batch_sizes) - batch_sizes, batch_sizes)
    index = starts[ranks] + steps
    inverse = np.empty_like(index)
    inverse[index] = np.arange(len(index))
    return batch_sizes, sequences, index, inverse, inverse[starts[ranks] + sizes[ranks] - 1 - steps], ranks


def token_budget_batches(lengths: Sequence[int] | np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Group the indices of sequences, longest first, into batches of at most `max_tokens` tokens.

    A longer sequence is a batch of its own.
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
    fn: Callable[[np.ndarray], Iterable[T]], lengths: Sequence[int], max_tokens: int, title: str, unit: str, show: bool
) -> list[T]:
    """Apply a function to the indices of each batch of `token_budget_batches`; return results in the input's order."""
    results: dict[int, T] = {}
    with progress(title, len(lengths), unit, show) as bar:
        for index in token_budget_batches(lengths, max_tokens):
            results.update(zip(index.tolist(), fn(index), strict=True))
            bar.advance(len(index))
    return [results[i] for i in range(len(lengths))]
