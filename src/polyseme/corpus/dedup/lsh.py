"""Which documents repeat an earlier one, exactly or nearly, found through sorted tables on disk.

The rule is one pass in input order: a document goes if it equals a kept one before it, or is as similar to it
as the threshold says; else it is kept. So the answer depends on the input alone. What makes it quick: only
documents that agree in all rows of some band of their signatures are compared (Indyk and Motwani 1998), and
in a bucket of many, as templates make them, each only with the first 16 and the 4 before it. A pair that no
bucket holds within that bound is not seen.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from polyseme.corpus.dedup.external_sort import Runs
from polyseme.corpus.dedup.minhash import SIZE
from polyseme.corpus.sampling import GOLDEN, mix
from polyseme.errors import UserError

FIRST, BEFORE = 16, 4  # with whom of its bucket a document is compared
RECALL = 0.99
_SLICE = 1024  # pairs compared at once: each may map two pages of the signatures and their neighbours
Advance = Callable[[float], None]


def bands(threshold: float, size: int = SIZE) -> tuple[int, int]:
    """How many bands of how many rows: the most rows that still find 99 % of the pairs at the threshold."""
    if not 0 < threshold <= 1:
        raise UserError(f"the threshold of near duplicates is {threshold}: it must be above 0 and at most 1")
    fit = [rows for rows in range(1, size + 1) if 1 - (1 - threshold**rows) ** (size // rows) >= RECALL]
    rows = max(fit, default=1)
    return size // rows, rows


def find_duplicates(
    exact: Sequence[np.ndarray],
    signatures: Sequence[np.ndarray] | None,
    alive: np.ndarray,
    threshold: float,
    work: Path,
    memory: int = 64 << 20,
    advance: Advance | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """For each document -1, or the number of the kept document it repeats; and whether that is an exact copy.

    `exact` and `signatures` are what `fingerprints` gave, part by part, best memory-mapped; documents are
    numbered through. Those not `alive` take no part; without `signatures` only exact copies are found.
    `advance` is told of documents done, which add up to all. Besides the answer, memory holds about `memory`
    bytes; `work` takes 8 bytes a document and band, and the pairs.
    """
    number, rows = bands(threshold)
    if sum(map(len, exact)) != len(alive) or (signatures and sum(map(len, signatures)) != len(alive)):
        raise ValueError("the parts and `alive` are not of the same documents")
    if len(alive) > 1 << 32:
        raise UserError(f"{len(alive)} documents are more than 2^32: prepare them in several corpora")
    advance = advance or (lambda amount: None)
    found = np.full(len(alive), -1, dtype=np.int64)
    _find_copies(_Table(exact), alive, found, work / "copies.runs", memory, advance, 1 if signatures is None else 0.25)
    copies = found >= 0
    if signatures is not None:
        table = _Table(signatures)
        with Runs(work / "pairs.runs", memory // 2, unique=True) as pairs:
            with Runs(work / "bands.runs", memory // 2) as records:
                _add_bands(records, table, alive & ~copies, number, rows, memory, advance)
                for pair in _pairs(records, len(alive), advance):
                    pairs.add(pair)
            _remove(pairs, table, threshold * SIZE, found, advance)
        _follow(found, copies)
    return found, copies


class _Table:
    """Rows of several arrays under one numbering."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = [part for part in parts if len(part)]
        self.firsts = np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def slices(self, length: int) -> Iterator[tuple[int, np.ndarray]]:
        """All rows in turn, and the number of the first of each slice."""
        for first, part in zip(self.firsts.tolist(), self.parts):
            for low in range(0, len(part), length):
                yield first + low, part[low : low + length]
                self.let_go()

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        owner = np.searchsorted(self.firsts, numbers, side="right") - 1
        if len(numbers) and (owner == owner[0]).all():
            return np.asarray(self.parts[owner[0]][numbers - self.firsts[owner[0]]])
        found = np.empty((len(numbers), *self.parts[0].shape[1:]), dtype=self.parts[0].dtype)
        for part in np.unique(owner):
            mine = owner == part
            found[mine] = self.parts[part][numbers[mine] - self.firsts[part]]
        return found

    def let_go(self) -> None:
        """Give back the memory of mapped pages that were read; the system has them still."""
        for part in self.parts:
            if isinstance(part, np.memmap) and part.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
                part._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _pack(keys: np.ndarray, first: int, total: int) -> np.ndarray:
    """Keys with the number of their document, `first` and on, in the low bits: sorting groups and orders."""
    bits = _bits(total)
    numbers = np.arange(first, first + len(keys), dtype=np.uint64)
    return (keys >> bits << bits) | numbers.reshape(-1, *[1] * (keys.ndim - 1))


def _bits(total: int) -> np.uint64:
    return np.uint64(max(total - 1, 1).bit_length())


def _buckets(
    records: Runs, total: int, carry: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Documents sorted by key, the place of each one's bucket, and how many places were seen before.

    A bucket may reach over several pieces: what `carry` leaves of its documents comes first in the next.
    """
    bits = _bits(total)
    left = np.empty(0, dtype=np.uint64)
    for piece in records.merged():
        if not len(piece):
            continue
        old = len(left)
        piece = np.concatenate([left, piece])
        keys = piece >> bits
        begins = np.append(True, keys[1:] != keys[:-1])
        documents = (piece & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
        yield documents, np.maximum.accumulate(np.where(begins, np.arange(len(piece)), 0)), old
        last = int(np.flatnonzero(begins)[-1])
        left = piece[last:][carry(documents[last:])]


def _find_copies(
    table: _Table, alive: np.ndarray, found: np.ndarray, path: Path, memory: int, advance: Advance, share: float
) -> None:
    """Note for each document with the hash of an earlier one the first that has it."""
    with Runs(path, memory // 2) as records:
        for first, rows in table.slices(max(memory // 256, 64)):
            records.add(_pack(rows[:, 0], first, len(table))[alive[first : first + len(rows)]])
            advance(share * len(rows))
        for documents, begins, _ in _buckets(records, len(table), lambda documents: found[documents] < 0):
            several = np.append(begins[1:] == begins[:-1], False)
            several[1:] |= several[:-1]  # all of a bucket of two or more
            members = documents[several]
            if not len(members):
                continue
            rows = table.rows(members)
            order = np.lexsort((members, rows[:, 1], rows[:, 0]))
            members, rows = members[order], rows[order]
            new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
            firsts = members[np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
            found[members[~new]] = firsts[~new]
            table.let_go()


def _add_bands(
    records: Runs, table: _Table, takes: np.ndarray, number: int, rows: int, memory: int, advance: Advance
) -> None:
    """One record for each band of each document that takes part and has a word."""
    places = np.arange(number * rows, dtype=np.uint64).reshape(number, rows)
    factors = mix((places + np.uint64(1)) * GOLDEN) | np.uint64(1)
    for first, part in table.slices(max(memory // (number * 64), 16)):
        values = np.asarray(part)[:, : number * rows].reshape(len(part), number, rows)
        keys = np.zeros((len(part), number), dtype=np.uint64)
        for row in range(rows):
            keys += values[:, :, row] * factors[:, row]
        keep = takes[first : first + len(part)] & (values[:, 0, 0] != 0)
        records.add(_pack(mix(keys), first, len(table))[keep].ravel())
        advance(0.25 * len(part))


def _carry(documents: np.ndarray) -> np.ndarray:
    """Which of a bucket's documents those to come are compared with."""
    places = np.arange(len(documents))
    return (places < FIRST) | (places >= len(documents) - BEFORE)


def _pairs(records: Runs, total: int, advance: Advance) -> Iterator[np.ndarray]:
    """Pairs of documents in one bucket, as later · 2^32 + earlier; a pair may come once for each band."""
    for documents, begins, old in _buckets(records, total, _carry):
        later = np.flatnonzero(begins < np.arange(len(begins)))
        later = later[later >= old]
        first = begins[later]
        ranks = later - first
        for rank in range(min(FIRST, int(ranks.max(initial=0)))):
            some = ranks > rank
            yield _pair(documents[first[some] + rank], documents[later[some]])
        for back in range(1, BEFORE + 1):
            some = ranks - back >= FIRST
            yield _pair(documents[later[some] - back], documents[later[some]])
        advance(0.25 * total * (len(documents) - old) / records.total)
    if not records.total:
        advance(0.25 * total)


def _pair(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    return (later.astype(np.uint64) << np.uint64(32)) | earlier.astype(np.uint64)


def similar(table: _Table, earlier: np.ndarray, later: np.ndarray, least: float) -> np.ndarray:
    """Of which pairs at least so many numbers of the signatures are equal."""
    return np.count_nonzero(table.rows(earlier) == table.rows(later), axis=1) >= least


def _remove(pairs: Runs, table: _Table, least: float, found: np.ndarray, advance: Advance) -> None:
    """The rule, in the order of the later document: it goes with the first kept one that is similar to it.

    Pairs with a document that is gone are not compared, so a cluster costs about one comparison a document.
    """
    done = 0.0
    for piece in pairs.merged():
        for low in range(0, len(piece), _SLICE):
            part = piece[low : low + _SLICE]
            later = (part >> np.uint64(32)).astype(np.int64)
            earlier = (part & np.uint64(0xFFFFFFFF)).astype(np.int64)
            open_ = (found[later] < 0) & (found[earlier] < 0)
            later, earlier = later[open_], earlier[open_]
            alike = similar(table, earlier, later, least)
            for one, other in zip(earlier[alike].tolist(), later[alike].tolist()):
                if found[one] < 0 and found[other] < 0:
                    found[other] = one
            table.let_go()
        if len(piece):
            reached = 0.25 * int(piece[-1] >> np.uint64(32))
            advance(reached - done)
            done = reached
    advance(0.25 * len(found) - done)


def _follow(found: np.ndarray, copies: np.ndarray) -> None:
    """A copy of a document that went for another repeats that one, and not exactly."""
    for low in range(0, len(found), 1 << 16):
        part = slice(low, low + (1 << 16))
        named = found[part]
        next_ = np.where(copies[part], found[named], -1)
        copies[part] &= next_ < 0
        found[part] = np.where(next_ >= 0, next_, named)
