"""Counts of words that meet, for GloVe (Pennington et al. 2014): made in bounded memory, read in any order."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from polyseme.corpus.sampling import SampleTable, build_samples
from polyseme.errors import DataError
from polyseme.nn.heads.word_vectors import CooccurrenceBatch
from polyseme.nn.model import Model
from polyseme.objectives.base import Objective
from polyseme.objectives.batch import SparseUpdateBatch
from polyseme.objectives.losses import evaluate_sparse_batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

TOKENS_PER_CHUNK = 1 << 18  # tokens whose pairs are made together


@dataclass(frozen=True)
class GloVe(Objective):
    """The logarithm of how often two words meet within `window` words, one at distance d counting for 1/d (§4.2).

    A cell that was counted x times weighs (x / `x_max`)^`alpha`, at most 1 (eq. 9). While counting, about `memory_mb`
    megabytes are held; what is more goes to sorted files.
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

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> _GloVeBatchBuilder:
        return _GloVeBatchBuilder(self, corpus, special_ids, max_len)

    def evaluate(self, model: Model, batch: Any) -> dict[str, tuple[float, int, int]]:
        return evaluate_sparse_batch(model, batch)


def iter_cooccurrences(
    corpus: Corpus, samples: SampleTable, non_special_mask: np.ndarray, window: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Every two known words that meet, the smaller id first, as one number, by their distance; unknown words leave no
    gap."""
    vocab_size = np.uint64(len(non_special_mask))
    borders = (
        np.searchsorted(
            np.cumsum(samples.lengths),
            np.arange(TOKENS_PER_CHUNK, samples.lengths.sum() + TOKENS_PER_CHUNK, TOKENS_PER_CHUNK),
        )
        + 1
    )
    for low, high in zip([0, *borders[:-1]], borders):
        starts, lengths = samples.starts[low:high], samples.lengths[low:high]
        tokens = corpus.gather_tokens(starts, lengths)
        is_known = non_special_mask[tokens]
        owner, tokens = np.repeat(np.arange(len(starts)), lengths)[is_known], tokens[is_known].astype(np.uint64)
        for distance in range(1, window + 1):
            same_sample = owner[distance:] == owner[:-distance]
            later_ids, earlier_ids = tokens[distance:][same_sample], tokens[:-distance][same_sample]
            yield np.minimum(later_ids, earlier_ids) * vocab_size + np.maximum(later_ids, earlier_ids), 1 / distance


def sum_by_key(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal keys once, in rising order, with the sum of their values."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)
    return keys[firsts], np.add.reduceat(values, firsts) if len(firsts) else values


class CooccurrenceTable:
    """Sums by key, of which `memory` bytes or so are held; `folder` gets the rest, as runs with rising keys."""

    def __init__(self, folder: Path, max_bytes: int):
        self.folder, self.max_entries = (
            folder,
            max(max_bytes // 64, 1024),
        )  # entries; to sort them takes a few times their size
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.num_entries = self.num_runs = 0

    def add(self, keys: np.ndarray, value: float) -> None:
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
        """All keys in rising order with their sums, in pieces."""
        if self.keys:
            self._compact()
        if not self.num_runs:
            if self.keys:
                yield self.keys[0], self.values[0]
            return
        if self.keys:
            self._spill()
        keys = [np.load(self.folder / f"keys-{i}.npy", mmap_mode="r") for i in range(self.num_runs)]
        values = [np.load(self.folder / f"values-{i}.npy", mmap_mode="r") for i in range(self.num_runs)]
        starts, chunk_size = [0] * self.num_runs, max(self.max_entries // self.num_runs, 16)
        while any(start < len(run) for start, run in zip(starts, keys)):
            max_key = min(
                run[min(start + chunk_size, len(run)) - 1] for start, run in zip(starts, keys) if start < len(run)
            )
            ends = [int(np.searchsorted(run, max_key, side="right")) for run in keys]
            ranges = list(zip(starts, ends))
            yield sum_by_key(
                np.concatenate([run[a:b] for run, (a, b) in zip(keys, ranges)]),
                np.concatenate([run[a:b] for run, (a, b) in zip(values, ranges)]),
            )
            starts = ends


class _GloVeBatchBuilder(BatchBuilder):
    """Samples are cells: the first half as they are stored, the second half with their two words exchanged."""

    def __init__(self, config: GloVe, corpus: Corpus, special_ids: SpecialIds, max_len: int):
        self.config, self.vocab_size = config, special_ids.vocab_size
        samples = build_samples(corpus, max_len)
        self.temporary_folder = tempfile.TemporaryDirectory(prefix="counts-")  # goes when this object goes
        folder = Path(self.temporary_folder.name)
        table = CooccurrenceTable(folder, config.memory_mb << 20)
        for keys, value in iter_cooccurrences(corpus, samples, special_ids.non_special_mask, config.window):
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
        one = np.ones(1, np.int64)
        super().__init__(SampleTable(one, one, one, one, one, one), 1, 0)

    def __len__(self) -> int:
        return 2 * len(self.keys)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return np.ones(len(ids), np.int64)

    def max_predictions(self, num_tokens: int) -> int:
        return num_tokens

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> SparseUpdateBatch:
        is_swapped, cell = np.divmod(ids, len(self.keys))
        word_pairs = np.stack(np.divmod(self.keys[cell], np.uint64(self.vocab_size))).astype(np.int64)
        is_same = word_pairs[0] == word_pairs[1]
        values = self.values[cell] * (1 + is_same)  # a word that meets itself was counted once instead of twice
        word_pairs = np.where(is_swapped > 0, word_pairs[::-1], word_pairs)
        weights = np.minimum(values / self.config.x_max, 1) ** self.config.alpha * ~(is_same & (is_swapped > 0))
        log_counts, weights = np.log(values).astype(np.float32), weights.astype(np.float32)
        cooccurrences = CooccurrenceBatch(
            *map(torch.from_numpy, (word_pairs[0].copy(), word_pairs[1].copy(), log_counts, weights))
        )
        return SparseUpdateBatch("count", cooccurrences, len(ids), len(ids))
