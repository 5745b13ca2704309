"""GloVe (Pennington et al. 2014): co-occurrences of words, counted in bounded memory and read in any order."""

import hashlib
import math
import tempfile
from collections.abc import Hashable
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
from polyseme.objectives.cooccurrence import CooccurrenceCounter
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape


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


class CellFiles:
    """The cells of a co-occurrence matrix, sorted, in files that are deleted with this object."""

    def __init__(self, config: GloVe, corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray):
        self.temporary_folder = tempfile.TemporaryDirectory(prefix="counts-")
        folder = Path(self.temporary_folder.name)
        counter = CooccurrenceCounter(corpus, samples, non_special_mask, config.window)
        with open(folder / "keys", "wb") as cells, open(folder / "values", "wb") as counts:
            for keys, values in counter.iter_cells(folder, config.memory_mb << 20):
                cells.write(keys.data)
                counts.write(values.astype(np.float32).data)
        if not (folder / "keys").stat().st_size:
            raise DataError("no two known words meet in the corpus")
        self.keys = np.memmap(folder / "keys", np.uint64, "r")
        self.values = np.memmap(folder / "values", np.float32, "r")
        for run in folder.glob("*.npy"):
            run.unlink()


# Counting takes a while, and a process may train on the same text several times: the cells that were counted last
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
