"""Samples of a corpus, and samplers that order them into batches.

The sample table is fixed for a corpus, so that a sample has an id, and everything random about it is a hash of that id.
The order is a keyed permutation of the ids. The position of a run in its data is three integers, any position can be
reached without reading what precedes it, and positions do not depend on the number of ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, pairwise
from typing import Literal, Protocol

import numpy as np

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.rng import feistel_permutation, hash_combine

WINDOW_SAMPLES = 8192
TOKENS_PER_CHUNK = 1 << 22  # counted at once
_ORDER_KEY = 0x6F72646572  # separates the keys of the order from other random streams


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Table of samples that partition a corpus in order, each within one document unless built across documents.

    A sample is a run of units, which are sentences or parts of too long sentences. `unit_offsets` are the token offsets
    of all units, followed by the end; `first_units` are the first unit of each sample, followed by the end.
    `target_lengths` is the intended length of each sample, or its actual length if its document ended before.
    """

    starts: np.ndarray  # int64 [n]: global token offset
    lengths: np.ndarray  # int64 [n], without special tokens
    document_ids: np.ndarray  # int64 [n]: the first document of the sample
    unit_offsets: np.ndarray  # int64 [units + 1]
    first_units: np.ndarray  # int64 [n + 1]
    target_lengths: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.starts)


def build_samples(
    corpus: Corpus,
    max_len: int,
    split_by: Literal["sentence", "length"] = "sentence",
    min_units: int = 1,
    target_length_fn: Callable[[np.ndarray], np.ndarray] | None = None,
    num_end_tokens: int = 0,
    cross_documents: bool = False,
) -> SampleTable:
    """Split a corpus into samples of at most `max_len` tokens.

    With `split_by="sentence"`, samples are the longest runs of whole sentences of one document; a sentence longer than
    `max_len` is split there. If `min_units` > 1, a sentence longer than `max_len // min_units` is first split into
    equal parts no longer than that, so that `min_units` units always fit and a sample has fewer only at the end of a
    document. `target_length_fn(units)` may return smaller target lengths for samples that begin with these units.
    With `cross_documents` a sample continues into the next documents, each of which costs one more token for the
    separator.

    With `split_by="length"`, documents are split every `max_len` tokens. `num_end_tokens` are added to the length of
    each document for the end-of-document token, which the corpus does not store.
    """
    document_starts = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
    if split_by == "length":
        num_added = np.concatenate(([0], np.cumsum((np.diff(document_starts) > 0) * num_end_tokens)))
        unit_offsets = _split_long_units(document_starts + num_added, max_len)
        document_ids = np.searchsorted(document_starts + num_added, unit_offsets[:-1], side="right") - 1
        first_units = np.arange(len(unit_offsets))
        starts, target_lengths = unit_offsets[:-1] - num_added[document_ids], np.full(len(document_ids), max_len)
        return SampleTable(starts, np.diff(unit_offsets), document_ids, unit_offsets, first_units, target_lengths)

    sentence_offsets = np.asarray(corpus.sentence_offsets)
    unit_offsets = _split_long_units(sentence_offsets, max_len // min_units, split_evenly=min_units > 1)
    units = np.arange(len(unit_offsets) - 1)
    document_ids = np.searchsorted(document_starts, unit_offsets[:-1], side="right") - 1
    target_lengths = np.full(len(units), max_len) if target_length_fn is None else target_length_fn(units)
    document_ends = np.searchsorted(unit_offsets, document_starts)[document_ids + 1]
    if cross_documents:
        document_ends = np.full(len(units), len(units))
        num_separators = np.cumsum(np.diff(document_ids, prepend=document_ids[:1]) > 0)
        max_ends = unit_offsets[:-1] + num_separators + target_lengths
        ends = np.searchsorted(unit_offsets[1:] + num_separators, max_ends, side="right")
    else:
        ends = np.searchsorted(unit_offsets, unit_offsets[:-1] + target_lengths, side="right") - 1
    ends = np.minimum(np.maximum(ends, units + min_units), document_ends)
    first_units = np.append(np.fromiter(_chain_samples(ends), dtype=np.int64), len(units))
    firsts, lengths = first_units[:-1], np.diff(unit_offsets[first_units])
    target_lengths = np.where(first_units[1:] == document_ends[firsts], lengths, target_lengths[firsts])
    return SampleTable(unit_offsets[firsts], lengths, document_ids[firsts], unit_offsets, first_units, target_lengths)


def _split_long_units(offsets: np.ndarray, max_len: int, split_evenly: bool = False) -> np.ndarray:
    """Return the offsets with units longer than `max_len` split and empty units dropped."""
    lengths = np.diff(offsets)
    counts = -(-lengths // max_len)
    if (counts == 1).all():
        return offsets.astype(np.int64)
    ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    inside = np.repeat(lengths, counts) * ranks // np.repeat(counts, counts) if split_evenly else max_len * ranks
    return np.append(np.repeat(offsets[:-1], counts) + inside, offsets[-1]).astype(np.int64)


def _chain_samples(ends: np.ndarray) -> Iterator[int]:
    """Yield 0, ends[0], ends[ends[0]], …: each sample starts where the one before it ends. Takes 0.1 µs per sample."""
    ends_view, unit = ends.data, 0
    while unit < len(ends_view):
        yield unit
        unit = ends_view[unit]


class SampleSource(Protocol):
    """Samples as a sampler sees them: their number, and their lengths with special tokens."""

    max_len: int

    def __len__(self) -> int: ...

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        """Return the lengths of samples in an epoch."""
        ...


@dataclass(frozen=True)
class DataPosition:
    """Position of a run in its data: the next bin to read."""

    epoch: int = 0
    window: int = 0
    bin: int = 0


START = DataPosition()


def _missing_position(position: DataPosition) -> DataError:
    return DataError(f"{position} does not exist: the corpus or the micro-batch size has changed")


@dataclass(frozen=True, eq=False)
class SampleBin:
    """Samples of one micro-batch, sorted by length, so that equal lengths are adjacent."""

    epoch: int
    sample_ids: np.ndarray
    starts_epoch: bool = False  # of streams: the first segments of the epoch
    segment_length: int = 0  # of streams: tokens per segment
    step: int = 0
    index: int = 0  # among the bins of all ranks in its step
    step_size: int = 1  # number of those bins


Steps = Iterator[tuple[list[SampleBin], DataPosition]]  # bins of each step, and the position after it


class _Sampler:
    """What the samplers share: the size of a step, and checks."""

    def __init__(self, source: SampleSource, micro_batch_tokens: int, micro_batches_per_step: int):
        if source.max_len > micro_batch_tokens:
            limit = f"a micro-batch of {micro_batch_tokens}"
            raise ConfigError(f"a sample of {source.max_len} tokens does not fit into {limit}")
        self.micro_batch_tokens, self.micro_batches_per_step = micro_batch_tokens, micro_batches_per_step

    def check_world_size(self, world_size: int) -> None:
        """Raise a `ConfigError` if the micro-batches of a step cannot be divided among the ranks."""
        if self.micro_batches_per_step % world_size:
            problem = f"{self.micro_batches_per_step} micro-batches per step cannot be divided among {world_size} ranks"
            raise ConfigError(f"{problem}: lower `micro_batch_tokens` ({self.micro_batch_tokens}), or use fewer ranks")


class ShuffledSampler(_Sampler):
    """Sampler that yields every sample once per epoch, shuffled, in bins of at most `micro_batch_tokens` tokens.

    A step has `micro_batches_per_step` bins. Over the first `batch_warmup_steps` steps their number grows from one to
    that: early gradients agree so well that few tokens suffice.

    Window w of an epoch consists of the samples from position w·`window_samples` on of that epoch's permutation. They
    are packed in order; a bin is closed when the next sample does not fit, or at `max_samples` samples if set.
    """

    def __init__(
        self,
        source: SampleSource,
        micro_batch_tokens: int,
        micro_batches_per_step: int = 1,
        seed: int = 0,
        window_samples: int = WINDOW_SAMPLES,
        max_samples: int = 0,
        batch_warmup_steps: int = 0,
    ):
        if not len(source):
            raise DataError("the corpus has no samples")
        super().__init__(source, micro_batch_tokens, micro_batches_per_step)
        self.source, self.seed, self.max_samples = source, seed, max_samples
        self.window_samples, self.batch_warmup_steps = window_samples, batch_warmup_steps
        self.num_windows = -(-len(source) // window_samples)
        self._cached_window = lru_cache(maxsize=2)(self._fill_window)

    def steps(self, position: DataPosition = START, rank: int = 0, world_size: int = 1, start_step: int = 0) -> Steps:
        """Yield the bins of one rank for each step from `start_step` on, endlessly, and the position after the step."""
        self.check_world_size(world_size)
        micro_batches = self.micro_batches(position)
        for step_number in count(start_step):
            size = self.num_micro_batches(step_number, world_size)
            step_bins = [next(micro_batches) for _ in range(size)]
            rank_bins = list(enumerate(step_bins))[rank::world_size]
            numbered = [replace(b, step=step_number, index=i, step_size=size) for i, (b, _) in rank_bins]
            yield numbered, step_bins[-1][1]

    def num_micro_batches(self, step: int, world_size: int = 1) -> int:
        """Return the number of bins in a step (counted from 0), a multiple of `world_size`."""
        if step >= self.batch_warmup_steps:
            return self.micro_batches_per_step
        return world_size * (1 + (self.micro_batches_per_step // world_size - 1) * step // self.batch_warmup_steps)

    def micro_batches(self, position: DataPosition = START) -> Iterator[tuple[SampleBin, DataPosition]]:
        """Yield every bin from a position on, endlessly, with the position after it."""
        epoch, window, first_bin = position.epoch, position.window, position.bin
        if window >= self.num_windows or first_bin >= len(self._cached_window(epoch, window)):
            raise _missing_position(position)
        while True:
            *bins, last_bin = self._cached_window(epoch, window)
            for number in range(first_bin, len(bins)):
                yield bins[number], DataPosition(epoch, window, number + 1)
            epoch, window = (epoch, window + 1) if window + 1 < self.num_windows else (epoch + 1, 0)
            first_bin = 0
            yield last_bin, DataPosition(epoch, window)

    def fill_ratio(self, epoch: int = 0, window: int = 0) -> float:
        """Return the share of the capacity of its bins that a window uses."""
        window_bins = self._cached_window(epoch, window)
        num_tokens = sum(int(self.source.lengths(window_bin.sample_ids, epoch).sum()) for window_bin in window_bins)
        return num_tokens / (len(window_bins) * self.micro_batch_tokens)

    def _fill_window(self, epoch: int, window: int) -> list[SampleBin]:
        size, start = len(self.source), window * self.window_samples
        key = hash_combine(hash_combine(hash_combine(np.zeros(1, np.uint64), _ORDER_KEY), self.seed), epoch)
        sample_ids = feistel_permutation(np.arange(start, min(start + self.window_samples, size)), size, key)
        lengths = self.source.lengths(sample_ids, epoch)
        ends = np.cumsum(lengths)
        bin_offsets = [0]
        while (bin_start := bin_offsets[-1]) < len(sample_ids):
            tokens_before = int(ends[bin_start - 1]) if bin_start else 0
            stop = int(np.searchsorted(ends, tokens_before + self.micro_batch_tokens, side="right"))
            bin_offsets.append(min(stop, bin_start + self.max_samples) if self.max_samples else stop)
        bin_numbers = np.repeat(np.arange(len(bin_offsets) - 1), np.diff(bin_offsets))
        sample_ids = sample_ids[np.lexsort((lengths, bin_numbers))]
        return [SampleBin(epoch, sample_ids[low:high]) for low, high in pairwise(bin_offsets)]


class StreamSource(SampleSource, Protocol):
    """Samples that form one continuous stream."""

    def cuts(self, length: int, epoch: int) -> np.ndarray:
        """Return the segment boundaries of a stream of `length` tokens, from 0 to `length`."""
        ...


class StreamSampler(_Sampler):
    """Sampler that divides the corpus into equal streams; each step reads the next segment of every stream.

    Bin i has the same streams in every step, so that a model can carry its state from one step to the next. Segment
    boundaries may differ between epochs, but not between streams. The remainder at the end of the corpus is not read.
    A position's `bin` is the step within the epoch.
    """

    def __init__(self, source: StreamSource, micro_batch_tokens: int, micro_batches_per_step: int = 1):
        super().__init__(source, micro_batch_tokens, micro_batches_per_step)
        if len(source) < micro_batches_per_step:
            limit = f"fewer than micro_batches_per_step, {micro_batches_per_step}"
            raise DataError(f"the corpus has {len(source)} segments, {limit}")
        self.max_len = source.max_len
        self.num_streams = min(micro_batch_tokens // source.max_len * micro_batches_per_step, len(source))
        self.stream_length = len(source) // self.num_streams * source.max_len  # in tokens
        self.segment_offsets = lru_cache(maxsize=2)(lambda epoch: source.cuts(self.stream_length, epoch))

    def steps(self, position: DataPosition = START, rank: int = 0, world_size: int = 1, start_step: int = 0) -> Steps:
        """Yield the bins of one rank for each step, endlessly, and the position after the step.

        `sample_ids` of a bin are token offsets in the corpus.
        """
        self.check_world_size(world_size)
        epoch, step = position.epoch, position.bin
        if step + 1 >= len(self.segment_offsets(epoch)):
            raise _missing_position(position)
        stream_starts = np.array_split(np.arange(self.num_streams) * self.stream_length, self.micro_batches_per_step)
        while True:
            start, end = self.segment_offsets(epoch)[step : step + 2].tolist()
            bins = [SampleBin(epoch, s + start, step == 0, end - start) for s in stream_starts[rank::world_size]]
            epoch, step = (epoch, step + 1) if end < self.stream_length else (epoch + 1, 0)
            yield bins, DataPosition(epoch, 0, step)

    def num_micro_batches(self, step: int, world_size: int = 1) -> int:
        """Return the number of bins in a step."""
        return self.micro_batches_per_step

    def fill_ratio(self) -> float:
        """Return the share of the capacity of its bins that a step uses."""
        num_tokens = self.num_streams * self.stream_length / (len(self.segment_offsets(0)) - 1)
        return num_tokens / (self.micro_batches_per_step * self.micro_batch_tokens)


def count_tokens(corpus: Corpus, vocab_size: int) -> np.ndarray:
    """Return the number of occurrences of each id, int64 [vocab_size]."""
    counts = np.zeros(vocab_size, np.int64)
    borders = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
    groups = np.unique(np.searchsorted(borders, np.arange(0, borders[-1] + TOKENS_PER_CHUNK, TOKENS_PER_CHUNK)))
    for low, high in pairwise(groups.tolist()):
        lengths = np.diff(borders[low : high + 1])
        tokens = corpus.gather_tokens(borders[low:high][: len(lengths)], lengths)
        counts += np.bincount(tokens, minlength=vocab_size)
    return counts
