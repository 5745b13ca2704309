"""GloVe (Pennington et al. 2014): co-occurrences of words, counted in bounded memory and read in any order."""

import hashlib
import math
import tempfile
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from polyseme.corpus.sampling import SampleTable, build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import DataError
from polyseme.nn.heads.word_vectors import CooccurrenceBatch
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import SparseUpdateBatch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape

TOKENS_PER_CHUNK = 1 << 18  # tokens whose pairs are counted at once


@dataclass(frozen=True)
class GloVe(Objective):
    """Prediction of log co-occurrence counts within `window` words, where a pair at distance d counts 1/d (§4.2).

    A cell with count x has weight min((x / `x_max`)^`alpha`, 1) (eq. 9). Counting takes about `memory_mb` megabytes of
    memory; the rest is kept in sorted files.
    """

    terms: ClassVar[tuple[str, ...]] = ("count",)
    is_sparse: ClassVar[bool] = True
    has_static_shapes: ClassVar[bool] = True
    window: int = 10
    x_max: float = 100.0
    alpha: float = 0.75
    memory_mb: int = 512

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "window", "memory_mb", "x_max")
        self.check_range(0, math.inf, "alpha")

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _GloVeBatchBuilder(self, corpus, special_ids, max_len)


def iter_cooccurrences(
    corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray, window: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the pairs of known words at each distance as keys, first · vocab_size + second, smaller id first.

    Unknown words are removed before distances are counted. The second value is the count of a pair, 1 / distance.
    """
    vocab_size = np.uint64(len(non_special_mask))
    chunk_ends = np.arange(TOKENS_PER_CHUNK, samples.lengths.sum() + TOKENS_PER_CHUNK, TOKENS_PER_CHUNK)
    borders = np.searchsorted(np.cumsum(samples.lengths), chunk_ends) + 1
    for low, high in zip([0, *borders[:-1]], borders):
        starts, lengths = samples.starts[low:high], samples.lengths[low:high]
        tokens = corpus.gather_tokens(starts, lengths)
        is_known = non_special_mask[tokens]
        owner, tokens = np.repeat(np.arange(len(starts)), lengths)[is_known], tokens[is_known].astype(np.uint64)
        for distance in range(1, window + 1):
            same_sample = owner[distance:] == owner[:-distance]
            pairs = tokens[distance:][same_sample], tokens[:-distance][same_sample]
            yield np.minimum(*pairs) * vocab_size + np.maximum(*pairs), 1 / distance


def sum_by_key(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted unique keys and the sum of the values of each."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)
    return keys[firsts], np.add.reduceat(values, firsts) if len(firsts) else values


class CooccurrenceTable:
    """Sums by key, with about `max_bytes` in memory and the rest in `folder`, as files with sorted keys."""

    def __init__(self, folder: Path, max_bytes: int):
        self.folder, self.max_entries = folder, max(max_bytes // 64, 1024)  # sorting takes a few times their size
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.num_entries = self.num_runs = 0

    def add(self, keys: np.ndarray, value: float) -> None:
        """Add `value` to each of these keys."""
        self.keys.append(keys)
        self.values.append(np.full(len(keys), value))
        self.num_entries += len(keys)
        if self.num_entries > self.max_entries:
            self._compact()
            if self.num_entries > self.max_entries // 2:
                self._spill()

    def _compact(self) -> None:
        keys, values = sum_by_key(np.concatenate(self.keys), np.concatenate(self.values))
        self.keys, self.values, self.num_entries = [keys], [values], len(keys)

    def _spill(self) -> None:
        np.save(self.folder / f"keys-{self.num_runs}.npy", self.keys[0])
        np.save(self.folder / f"values-{self.num_runs}.npy", self.values[0])
        self.keys, self.values, self.num_entries = [], [], 0
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


class CellFiles:
    """The cells of a co-occurrence matrix, sorted, in files that are deleted with this object."""

    def __init__(self, config: GloVe, corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray):
        self.temporary_folder = tempfile.TemporaryDirectory(prefix="counts-")
        folder = Path(self.temporary_folder.name)
        table = CooccurrenceTable(folder, config.memory_mb << 20)
        for keys, value in iter_cooccurrences(corpus, samples, non_special_mask, config.window):
            table.add(keys, value)
        with open(folder / "keys", "wb") as cells, open(folder / "values", "wb") as counts:
            for keys, values in table.sorted_chunks():
                cells.write(keys.data)
                counts.write(values.astype(np.float32).data)
        if not (folder / "keys").stat().st_size:
            raise DataError("no two known words meet in the corpus")
        self.keys = np.memmap(folder / "keys", np.uint64, "r")
        self.values = np.memmap(folder / "values", np.float32, "r")
        for run in folder.glob("*.npy"):
            run.unlink()


# Counting takes minutes, and a process may train on the same text several times: the cells that were counted last
_last_cells: list[tuple[Hashable, CellFiles]] = []


def count_cells(config: GloVe, corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray) -> CellFiles:
    """Count the cells of a corpus, or return those that were counted last if they are the same."""
    if not isinstance(corpus, Corpus):
        return CellFiles(config, corpus, samples, non_special_mask)
    arrays = (corpus.document_ids, samples.starts, samples.lengths, non_special_mask)
    hashes = tuple(hashlib.sha256(np.ascontiguousarray(array).data).digest() for array in arrays)
    key = str(corpus.path.resolve()), corpus.manifest_hash, config.window, *hashes
    if not _last_cells or _last_cells[0][0] != key:
        _last_cells[:] = [(key, CellFiles(config, corpus, samples, non_special_mask))]
    return _last_cells[0][1]


class _GloVeBatchBuilder(BatchBuilder):
    """Samples are cells of the co-occurrence matrix: first as stored, then with their two words swapped."""

    def __init__(self, config: GloVe, corpus: Corpus, special_ids: SpecialIds, max_len: int):
        self.config, self.vocab_size = config, special_ids.vocab_size
        self.cells = count_cells(config, corpus, build_samples(corpus, max_len), special_ids.non_special_mask)
        self.keys, self.values = self.cells.keys, self.cells.values
        one = np.ones(1, np.int64)
        super().__init__(SampleTable(one, one, one, one, one, one), 1)

    def __len__(self) -> int:
        return 2 * len(self.keys)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return np.ones(len(ids), np.int64)

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> SparseUpdateBatch:
        is_swapped, cell = np.divmod(ids, len(self.keys))
        word_pairs = np.stack(np.divmod(self.keys[cell], np.uint64(self.vocab_size))).astype(np.int64)
        is_same = word_pairs[0] == word_pairs[1]
        values = self.values[cell] * (1 + is_same)  # a pair of equal words was counted once instead of twice
        word_pairs = np.where(is_swapped > 0, word_pairs[::-1], word_pairs)
        weights = np.minimum(values / self.config.x_max, 1) ** self.config.alpha * ~(is_same & (is_swapped > 0))
        log_counts, weights = np.log(values).astype(np.float32), weights.astype(np.float32)
        arrays = word_pairs[0].copy(), word_pairs[1].copy(), log_counts, weights
        return SparseUpdateBatch("count", CooccurrenceBatch(*map(torch.from_numpy, arrays)), len(ids), len(ids))
