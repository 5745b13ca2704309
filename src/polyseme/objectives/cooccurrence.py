"""Counting of word co-occurrences in bounded memory: frequent pairs in an array, the others by sorting.

Counts are sums of integers, so they depend neither on the order of the pairs nor on the memory.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from polyseme.corpus.sampling import SampleTable
from polyseme.corpus.store import Corpus

TOKENS_PER_CHUNK = 1 << 17  # tokens whose pairs are counted at once
RANKING_CHUNKS = 16  # chunks from which the ranks of words are estimated


class CooccurrenceTable:
    """Sums by key, with about `max_bytes` in memory and the rest in `folder`, as files with sorted keys."""

    def __init__(self, folder: Path, max_bytes: int):
        self.folder, self.max_entries = folder, max(max_bytes // 64, 1024)  # sorting takes a few times their size
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.num_entries = self.num_runs = 0

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Add a value to each of these keys, which are best sorted."""
        self.keys.append(keys)
        self.values.append(values)
        self.num_entries += len(keys)
        if self.num_entries > self.max_entries:
            self._compact()
            if self.num_entries > self.max_entries // 2:
                self._spill()

    def _compact(self) -> None:
        keys, values = sum_by_key(np.concatenate(self.keys), np.concatenate(self.values))
        self.keys, self.values, self.num_entries = [keys], [values], len(keys)

    def _spill(self) -> None:
        self.add_run(self.keys[0], self.values[0])
        self.keys, self.values, self.num_entries = [], [], 0

    def add_run(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Write sorted unique keys and their values to files."""
        np.save(self.folder / f"keys-{self.num_runs}.npy", keys)
        np.save(self.folder / f"values-{self.num_runs}.npy", values)
        self.num_runs += 1

    def sorted_chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield chunks of sorted keys and their sums."""
        if self.keys:
            self._compact()
            if not self.num_runs:
                yield self.keys[0], self.values[0]
                return
            self._spill()
        keys = [np.load(self.folder / f"keys-{i}.npy", mmap_mode="r") for i in range(self.num_runs)]
        values = [np.load(self.folder / f"values-{i}.npy", mmap_mode="r") for i in range(self.num_runs)]
        starts, chunk_size = [0] * self.num_runs, max(self.max_entries // max(self.num_runs, 1), 16)
        while any(start < len(run) for start, run in zip(starts, keys)):
            max_key = min(run[start : start + chunk_size][-1] for start, run in zip(starts, keys) if start < len(run))
            ends = [int(np.searchsorted(run, max_key, side="right")) for run in keys]
            chunks = [[run[a:b] for run, a, b in zip(runs, starts, ends)] for runs in (keys, values)]
            yield sum_by_key(np.concatenate(chunks[0]), np.concatenate(chunks[1]))
            starts = ends


def sum_by_key(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted unique keys and the sum of the values of each."""
    order = np.argsort(keys, kind="stable")  # Timsort, which merges sorted parts
    return _sum_sorted(keys[order], values[order])


def argsort_random(keys: np.ndarray) -> np.ndarray:
    """Return the order of keys that are in no order: a radix sort, since numpy has one for 16 bits only."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, int(keys.max(initial=0)).bit_length(), 16):
        digits = (keys >> np.uint64(shift)).astype(np.uint16)
        order = order.take(np.argsort(digits.take(order), kind="stable"))
    return order


def _sum_sorted(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(keys):
        return keys, values
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[firsts], np.add.reduceat(values, firsts)


class DenseCells:
    """Sums of the cells whose two words are frequent: those with a small product of ranks, as in the authors' code.

    Words are numbered by frequency. Row i of the matrix has columns from i to `row_ends[i]`; column j is
    `sums[row_offsets[i] + j]`.
    """

    def __init__(self, word_counts: np.ndarray, max_cells: int):
        self.words = np.argsort(-word_counts, kind="stable")
        rows = np.arange(len(self.words))
        self.ranks = np.empty(len(rows), np.int32)
        self.ranks[self.words] = rows

        def find_row_ends(max_product: int) -> np.ndarray:
            return np.clip(max_product // (rows + 1), rows, len(rows))

        max_products = range(1, len(rows) ** 2 + 1)
        num_fitting = bisect_right(max_products, max_cells, key=lambda m: int((find_row_ends(m) - rows).sum()))
        row_ends = find_row_ends(num_fitting)
        self.row_ends, self.row_starts = row_ends.astype(np.int32), np.cumsum(row_ends - rows) - (row_ends - rows)
        self.row_offsets = self.row_starts - rows
        self.sums = np.zeros((row_ends - rows).sum(), np.int64)

    def iter_nonzero(self, chunk_size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the two words and the sum of every cell that is not 0, in chunks."""
        for start in range(0, len(self.sums), chunk_size):
            cells = start + np.flatnonzero(self.sums[start : start + chunk_size])
            num_per_row = np.diff(np.searchsorted(cells, self.row_starts), append=len(cells))
            rows = np.repeat(np.arange(len(self.words)), num_per_row)
            yield self.words[rows], self.words[cells - self.row_offsets[rows]], self.sums[cells]


class CooccurrenceCounter:
    """Counts the pairs of known words in samples of a corpus, 1 / distance each, for distances up to `window`.

    Unknown words are removed before distances are counted. A key is first · vocab_size + second, smaller id first.
    """

    def __init__(self, corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray, window: int):
        self.corpus, self.samples, self.non_special_mask = corpus, samples, non_special_mask
        num_tokens, max_length = int(samples.lengths.sum()), int(samples.lengths.max(initial=0))
        self.scale, self.weights = scale_weights(min(window, max(max_length - 1, 1)), num_tokens)
        self.max_pairs = num_tokens * len(self.weights)
        chunk_ends = np.arange(TOKENS_PER_CHUNK, num_tokens + TOKENS_PER_CHUNK, TOKENS_PER_CHUNK)
        borders = np.searchsorted(np.cumsum(samples.lengths), chunk_ends) + 1
        self.chunks = [slice(low, high) for low, high in pairwise([0, *borders.tolist()])]

    def iter_cells(self, folder: Path, max_bytes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield chunks of sorted keys and their counts, with about `max_bytes` in memory and the rest in `folder`."""
        table = CooccurrenceTable(folder, max_bytes // 2)
        dense = DenseCells(self._estimate_word_counts(), min(max_bytes // 16, self.max_pairs))
        for chunk in self.chunks:
            self._count_chunk(chunk, dense, table)
        for first, second, sums in dense.iter_nonzero(table.max_entries // 2):
            keys = self._pair_keys(first, second)
            order = argsort_random(keys)
            table.add_run(keys[order], sums[order])
        del dense
        for keys, sums in table.sorted_chunks():
            yield keys, sums / self.scale

    def _estimate_word_counts(self) -> np.ndarray:
        """Count the words of some chunks."""
        counts = np.zeros(len(self.non_special_mask), np.int64)
        for chunk in self.chunks[:: len(self.chunks) // RANKING_CHUNKS + 1]:
            counts += np.bincount(self._read_words(chunk)[0], minlength=len(counts))
        return counts

    def _read_words(self, chunk: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the known words of a chunk, and the sample of each."""
        starts, lengths = self.samples.starts[chunk], self.samples.lengths[chunk]
        tokens = self.corpus.gather_tokens(starts, lengths)
        is_known = self.non_special_mask[tokens]
        return tokens[is_known], np.repeat(np.arange(len(starts), dtype=np.int32), lengths)[is_known]

    def _pair_keys(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        keys = np.minimum(first, second).astype(np.uint64) * np.uint64(len(self.non_special_mask))
        return keys + np.maximum(first, second).astype(np.uint64)

    def _count_chunk(self, chunk: slice, dense: DenseCells, table: CooccurrenceTable) -> None:
        words, sample_ids = self._read_words(chunk)
        ranks, rare_keys = dense.ranks[words], []
        for distance, weight in enumerate(self.weights, start=1):
            first, second = ranks[distance:], ranks[:-distance]
            rows, columns = np.minimum(first, second), np.maximum(first, second)
            is_dense = columns < dense.row_ends.take(rows)
            is_pair = sample_ids[distance:] == sample_ids[:-distance]
            cells = dense.row_offsets.take(rows) + columns
            np.add.at(dense.sums, cells[is_dense & is_pair], weight)
            rare = np.flatnonzero(is_pair & ~is_dense)
            rare_keys.append(self._pair_keys(words[distance:][rare], words[rare]))
        keys, values = np.concatenate(rare_keys), np.repeat(self.weights, [len(keys) for keys in rare_keys])
        order = argsort_random(keys)
        table.add(*_sum_sorted(keys[order], values[order]))


def scale_weights(window: int, num_tokens: int) -> tuple[int, np.ndarray]:
    """Return a scale, and scale / distance as an integer for each distance from 1 to `window`.

    The integers are exact if no sum overflows with a scale divisible by all distances: up to a window of 22 in a corpus
    of a billion words. Else they are rounded down, with a scale of at least 2^29 in such a corpus.
    """
    max_scale = (1 << 62) // (num_tokens * (1 + window.bit_length()) + 1)  # the sum of 1 / distance is below 1 + log2
    scale = 1
    for distance in range(2, window + 1):
        scale = math.lcm(scale, distance)
        if scale > max_scale:
            scale = 1 << (max_scale.bit_length() - 1)
            break
    return scale, np.array([scale // distance for distance in range(1, window + 1)], np.int64)
