"""Counts of words that meet, for GloVe (Pennington et al. 2014): made in bounded memory, read in any order."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from polyseme.config import Spec
from polyseme.corpus.sampling import Samples, cut_samples
from polyseme.errors import UserError
from polyseme.nn.heads.glove import Cells
from polyseme.nn.packing import Layout
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.packing import Bound, Shape, Vocabulary

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

READ = 1 << 18  # tokens whose pairs are made together


@dataclass(frozen=True)
class Counts(Spec):
    """The logarithm of how often two words meet within `window` words, one at distance d counting for 1/d (§4.2).

    A cell that was counted x times weighs (x / `top`)^`power`, at most 1 (eq. 9). While counting, about `memory`
    megabytes are held; what is more goes to sorted files.
    """

    terms: ClassVar[tuple[str, ...]] = ("count",)
    window: int = 10
    top: float = 100.0
    power: float = 0.75
    memory: int = 512

    def __post_init__(self) -> None:
        self.within(1, math.inf, "window", "memory", "top")
        self.within(0, math.inf, "power")

    def bind(self, corpus: Corpus, vocabulary: Vocabulary, max_len: int, seed: int = 0) -> _Counts:
        return _Counts(self, corpus, vocabulary, max_len)


def pairs(corpus: Corpus, samples: Samples, ordinary: np.ndarray, window: int) -> Iterator[tuple[np.ndarray, float]]:
    """Every two known words that meet, the smaller id first, as one number, by their distance; unknown words leave no
    gap."""
    size = np.uint64(len(ordinary))
    borders = np.searchsorted(np.cumsum(samples.lengths), np.arange(READ, samples.lengths.sum() + READ, READ)) + 1
    for low, high in zip([0, *borders[:-1]], borders):
        starts, lengths = samples.starts[low:high], samples.lengths[low:high]
        tokens = corpus.gather(starts, lengths)
        known = ordinary[tokens]
        owner, tokens = np.repeat(np.arange(len(starts)), lengths)[known], tokens[known].astype(np.uint64)
        for away in range(1, window + 1):
            together = owner[away:] == owner[:-away]
            one, two = tokens[away:][together], tokens[:-away][together]
            yield np.minimum(one, two) * size + np.maximum(one, two), 1 / away


def add_up(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal keys once, in rising order, with the sum of their values."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.int64)
    return keys[firsts], np.add.reduceat(values, firsts) if len(firsts) else values


class Table:
    """Sums by key, of which `memory` bytes or so are held; `folder` gets the rest, as runs with rising keys."""

    def __init__(self, folder: Path, memory: int):
        self.folder, self.limit = folder, max(memory // 64, 1024)  # entries; to sort them takes a few times their size
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.held = self.runs = 0

    def add(self, keys: np.ndarray, value: float) -> None:
        self.keys.append(keys)
        self.values.append(np.full(len(keys), value))
        self.held += len(keys)
        if self.held > self.limit:
            self._tidy()
            if self.held > self.limit // 2:
                self._spill()

    def _tidy(self) -> None:
        keys, values = add_up(np.concatenate(self.keys), np.concatenate(self.values))
        self.keys, self.values, self.held = [keys], [values], len(keys)

    def _spill(self) -> None:
        np.save(self.folder / f"keys-{self.runs}.npy", self.keys[0])
        np.save(self.folder / f"values-{self.runs}.npy", self.values[0])
        self.keys, self.values, self.held = [], [], 0
        self.runs += 1

    def merged(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All keys in rising order with their sums, in pieces."""
        if self.keys:
            self._tidy()
        if not self.runs:
            if self.keys:
                yield self.keys[0], self.values[0]
            return
        if self.keys:
            self._spill()
        keys = [np.load(self.folder / f"keys-{i}.npy", mmap_mode="r") for i in range(self.runs)]
        values = [np.load(self.folder / f"values-{i}.npy", mmap_mode="r") for i in range(self.runs)]
        at, block = [0] * self.runs, max(self.limit // self.runs, 16)
        while any(place < len(run) for place, run in zip(at, keys)):
            bound = min(run[min(place + block, len(run)) - 1] for place, run in zip(at, keys) if place < len(run))
            ends = [int(np.searchsorted(run, bound, side="right")) for run in keys]
            parts = list(zip(at, ends))
            yield add_up(
                np.concatenate([run[a:b] for run, (a, b) in zip(keys, parts)]),
                np.concatenate([run[a:b] for run, (a, b) in zip(values, parts)]),
            )
            at = ends


class _Counts(Bound):
    """Samples are cells: the first half as they are stored, the second half with their two words exchanged."""

    def __init__(self, spec: Counts, corpus: Corpus, vocabulary: Vocabulary, max_len: int):
        self.spec, self.size = spec, vocabulary.size
        samples = cut_samples(corpus, max_len)
        self.folder = tempfile.TemporaryDirectory(prefix="counts-")  # goes when this object goes
        folder = Path(self.folder.name)
        table = Table(folder, spec.memory << 20)
        for keys, value in pairs(corpus, samples, vocabulary.ordinary, spec.window):
            table.add(keys, value)
        with open(folder / "keys", "wb") as cells, open(folder / "values", "wb") as counts:
            for keys, values in table.merged():
                cells.write(keys.data)
                counts.write(values.astype(np.float32).data)
        if not (folder / "keys").stat().st_size:
            raise UserError("no two known words meet in the corpus")
        self.keys = np.memmap(folder / "keys", np.uint64, "r")
        self.values = np.memmap(folder / "values", np.float32, "r")
        for run in folder.glob("*.npy"):
            run.unlink()
        one = np.ones(1, np.int64)
        super().__init__(Samples(one, one, one, one, one, one), 1, 0)

    def __len__(self) -> int:
        return 2 * len(self.keys)

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return np.ones(len(ids), np.int64)

    def rows(self, num_tokens: int) -> int:
        return num_tokens

    def batch(self, ids: np.ndarray, epoch: int, shape: Shape | None = None) -> Batch:
        turned, which = np.divmod(ids, len(self.keys))
        both = np.stack(np.divmod(self.keys[which], np.uint64(self.size))).astype(np.int64)
        same = both[0] == both[1]
        values = self.values[which] * (1 + same)  # a word that meets itself was counted once instead of twice
        both = np.where(turned > 0, both[::-1], both)
        weights = np.minimum(values / self.spec.top, 1) ** self.spec.power * ~(same & (turned > 0))
        logs, weights = np.log(values).astype(np.float32), weights.astype(np.float32)
        cells = Cells(*map(torch.from_numpy, (both[0].copy(), both[1].copy(), logs, weights)))
        none = torch.zeros(0, dtype=torch.int64)
        return Batch(none, Layout.of([]), None, {"count": Targets(none, none, len(ids))}, len(ids), near=cells)
