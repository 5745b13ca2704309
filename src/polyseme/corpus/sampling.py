"""Which stretches of a corpus are samples, and in what order they are read.

The sample table is fixed once a corpus is opened, so a sample has a number, and everything random about it is
a hash of that number. The order is a keyed permutation of those numbers: the place of a run in its data is
three integers, any place can be reached without reading what comes before it, and no place depends on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from math import isqrt
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from polyseme.errors import UserError

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

WINDOW = 8192
ROUNDS = 4
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: splitmix64's step
_ORDER = 0x6F72646572  # keeps the order's keys apart from those of the draws


def mix(state: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 (Steele, Lea, Flood 2014): all input bits move all output bits."""
    state = state ^ (state >> np.uint64(30))
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def fold(state: np.ndarray, number: int | np.ndarray) -> np.ndarray:
    """A hash of what `state` is a hash of, and one number more."""
    if isinstance(number, int):
        number = np.array([number % 2**64], dtype=np.uint64)
    return mix(state + (number.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def permute(indices: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Where a keyed permutation of range(n) sends `indices`: a bijection for every n, computed for any part
    alone.

    A Feistel network over two digits of radix about √n; its domain is less than n + √n numbers, and those
    that land outside range(n) are sent on until they are inside (cycle walking; Black and Rogaway 2002, §3).
    """
    high = isqrt(n - 1) + 1 if n > 1 else 1
    low = -(-n // high)
    keys = [fold(key, turn) for turn in range(2 * ROUNDS)]

    def once(values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, np.uint64(low))
        for even, odd in zip(keys[::2], keys[1::2]):
            left = (left + mix(right + even) % np.uint64(high)) % np.uint64(high)
            right = (right + mix(left + odd) % np.uint64(low)) % np.uint64(low)
        return left * np.uint64(low) + right

    values = once(indices.astype(np.uint64))
    while (outside := np.flatnonzero(values >= np.uint64(n))).size:
        values[outside] = once(values[outside])
    return values.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Samples:
    """The sample table. Samples tile the corpus in its own order, each inside one document unless cut across them.

    A sample is a run of units (sentences, or pieces of a sentence too long): `borders` are the token offsets
    of all units and the end, `first` the unit each sample begins with and the end. `limits` is the length a
    sample aimed at, its own where its document ended before that.
    """

    starts: np.ndarray  # int64 [n]: global token offset
    lengths: np.ndarray  # int64 [n], without special tokens
    document: np.ndarray  # int64 [n], the first where there are more
    borders: np.ndarray  # int64 [units + 1]
    first: np.ndarray  # int64 [n + 1]
    limits: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.starts)


def cut_samples(
    corpus: Corpus,
    max_len: int,
    at: Literal["sentence", "length"] = "sentence",
    least: int = 1,
    limits: Callable[[np.ndarray], np.ndarray] | None = None,
    closing: int = 0,
    across: bool = False,
) -> Samples:
    """Cut a corpus into samples of at most `max_len` tokens.

    At sentences: the longest runs of whole sentences of one document; a sentence longer than `max_len` is cut
    there. Where a run needs `least` units or more, a sentence longer than `max_len // least` is first cut
    into equal pieces no longer than that, so that `least` units always fit together and a run has fewer only
    at its document's end. `limits(units)` may give a smaller length to aim at for the run that begins with a
    unit. With `across` a run goes on into the documents after its own, each of which counts for one token
    more: what parts it from the one before. At length: documents sliced at exactly `max_len`; `closing` tokens
    more are counted to each document, for the mark of its end, which the corpus does not store.
    """
    documents = np.asarray(corpus.sentences)[np.asarray(corpus.documents)]
    if at == "length":
        added = np.concatenate(([0], np.cumsum((np.diff(documents) > 0) * closing)))
        borders = _pieces(documents + added, max_len)
        document = np.searchsorted(documents + added, borders[:-1], side="right") - 1
        first = np.arange(len(borders))
        starts, aims = borders[:-1] - added[document], np.full(len(document), max_len)
        return Samples(starts, np.diff(borders), document, borders, first, aims)

    borders = _pieces(np.asarray(corpus.sentences), max_len // least, even=least > 1)
    units = np.arange(len(borders) - 1)
    document = np.searchsorted(documents, borders[:-1], side="right") - 1
    aims = np.full(len(units), max_len) if limits is None else limits(units)
    document_ends = np.searchsorted(borders, documents)[document + 1]
    if across:
        document_ends = np.full(len(units), len(units))
        parted = np.cumsum(np.diff(document, prepend=document[:1]) > 0)
        ends = np.searchsorted(borders[1:] + parted, borders[:-1] + parted + aims, side="right")
    else:
        ends = np.searchsorted(borders, borders[:-1] + aims, side="right") - 1
    ends = np.minimum(np.maximum(ends, units + least), document_ends)
    first = np.append(np.fromiter(_follow(ends), dtype=np.int64), len(units))
    begins = first[:-1]
    lengths = np.diff(borders[first])
    aims = np.where(first[1:] == document_ends[begins], lengths, aims[begins])
    return Samples(borders[begins], lengths, document[begins], borders, first, aims)


def _pieces(offsets: np.ndarray, longest: int, even: bool = False) -> np.ndarray:
    """Offsets of the same stretches with those longer than `longest` cut, and the empty ones left out."""
    lengths = np.diff(offsets)
    counts = -(-lengths // longest)
    if (counts == 1).all():
        return offsets.astype(np.int64)
    ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    inside = np.repeat(lengths, counts) * ranks // np.repeat(counts, counts) if even else longest * ranks
    return np.append(np.repeat(offsets[:-1], counts) + inside, offsets[-1]).astype(np.int64)


def _follow(ends: np.ndarray) -> Iterator[int]:
    """The chain 0, ends[0], ends[ends[0]], …: each sample starts where the one before it ended.

    Once per run and some 0.1 µs a sample, whatever the shape of the documents (one of a million sentences
    too).
    """
    view, unit = ends.data, 0
    while unit < len(view):
        yield unit
        unit = view[unit]


class Source(Protocol):
    """What the order has to know of samples: how many there are, and how long they come out with marks."""

    longest: int

    def __len__(self) -> int: ...

    def lengths(self, ids: np.ndarray, epoch: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Cursor:
    """A place in the order: the next bin to be read."""

    epoch: int = 0
    window: int = 0
    bin: int = 0


START = Cursor()


@dataclass(frozen=True, eq=False)
class Bin:
    """The samples of one micro-batch, from short to long, so that equal lengths are neighbours."""

    epoch: int
    ids: np.ndarray
    opens: bool = False  # of lanes: their first stretches
    length: int = 0  # of lanes: how long their stretches are


class Order:
    """Every sample once an epoch, in bins of at most `bin_tokens` tokens, `bins_per_step` bins a step.

    Over the first `ramp` steps their number grows from one to that: early gradients agree so well that few tokens do.

    Window w of an epoch holds the samples at places w·8192 and on of that epoch's permutation; they are
    filled in order into bins, each closed when the next sample does not fit (or at `bin_sequences` samples,
    where given).
    """

    def __init__(
        self,
        source: Source,
        bin_tokens: int,
        bins_per_step: int = 1,
        seed: int = 0,
        window: int = WINDOW,
        bin_sequences: int = 0,
        ramp: int = 0,
    ):
        if not len(source):
            raise UserError("the corpus has no text to read")
        if source.longest > bin_tokens:
            raise UserError(f"a sample of {source.longest} tokens does not fit into a micro-batch of {bin_tokens}")
        self.source, self.seed = source, seed
        self.bin_tokens, self.bins_per_step, self.bin_sequences = bin_tokens, bins_per_step, bin_sequences
        self.window_samples, self.ramp = window, ramp
        self.num_windows = -(-len(source) // window)
        self._window = lru_cache(maxsize=2)(self._fill_window)

    def steps(
        self, cursor: Cursor = START, rank: int = 0, world: int = 1, done: int = 0
    ) -> Iterator[tuple[list[Bin], Cursor]]:
        """One rank's bins of each step after the `done` ones, without end, and the cursor of the step after it."""
        if self.bins_per_step % world:
            raise UserError(f"{self.bins_per_step} micro-batches a step cannot be shared by {world} ranks evenly")
        reader = self.bins(cursor)
        for number in count(done):
            step = [next(reader) for _ in range(self.bins_at(number, world))]
            yield [found for found, _ in step[rank::world]], step[-1][1]

    def bins_at(self, step: int, world: int = 1) -> int:
        """How many bins a step takes, counted from 0: a multiple of the number of ranks."""
        if step >= self.ramp:
            return self.bins_per_step
        return world * (1 + (self.bins_per_step // world - 1) * step // self.ramp)

    def bins(self, cursor: Cursor = START) -> Iterator[tuple[Bin, Cursor]]:
        """Every bin from a cursor on, without end, each with the cursor of the one after it."""
        epoch, window, at = cursor.epoch, cursor.window, cursor.bin
        if window >= self.num_windows or at >= len(self._window(epoch, window)):
            raise UserError(f"{cursor} is no place in this corpus: its data or the size of a bin have changed")
        while True:
            found = self._window(epoch, window)
            for number in range(at, len(found)):
                if number + 1 < len(found):
                    after = Cursor(epoch, window, number + 1)
                else:
                    after = Cursor(epoch, window + 1) if window + 1 < self.num_windows else Cursor(epoch + 1)
                yield found[number], after
            epoch, window, at = after.epoch, after.window, 0

    def fill(self, epoch: int = 0, window: int = 0) -> float:
        """The share of its bins' capacity that a window uses."""
        found = self._window(epoch, window)
        used = sum(int(self.source.lengths(each.ids, epoch).sum()) for each in found)
        return used / (len(found) * self.bin_tokens)

    def _fill_window(self, epoch: int, window: int) -> list[Bin]:
        size, start = len(self.source), window * self.window_samples
        key = fold(fold(fold(np.zeros(1, np.uint64), _ORDER), self.seed), epoch)
        ids = permute(np.arange(start, min(start + self.window_samples, size)), size, key)
        lengths = self.source.lengths(ids, epoch)
        ends = np.cumsum(lengths)
        borders = [0]
        while (at := borders[-1]) < len(ids):
            before = int(ends[at - 1]) if at else 0
            stop = int(np.searchsorted(ends, before + self.bin_tokens, side="right"))
            borders.append(min(stop, at + self.bin_sequences) if self.bin_sequences else stop)
        owner = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
        ids = ids[np.lexsort((lengths, owner))]
        return [Bin(epoch, ids[low:high]) for low, high in pairwise(borders)]


class Stream(Source, Protocol):
    """What lanes are cut from."""

    def cuts(self, length: int, epoch: int) -> np.ndarray: ...


class Lanes:
    """Samples that go on: a stream in equal lanes, of which each step reads the next stretch of every one.

    Bin i of a step holds the same lanes at every step, so what a model remembers of them can be handed on. Where
    stretches end may differ from epoch to epoch, not from lane to lane. What is left over at the end of the corpus is
    not read. The place is the step in the epoch.
    """

    def __init__(self, source: Stream, bin_tokens: int, bins_per_step: int = 1):
        if source.longest > bin_tokens:
            raise UserError(f"a sample of {source.longest} tokens does not fit into a micro-batch of {bin_tokens}")
        if len(source) < bins_per_step:
            raise UserError(f"the corpus has {len(source)} segments, fewer than micro-batches in a step")
        self.bins_per_step, self.bin_tokens, self.longest = bins_per_step, bin_tokens, source.longest
        self.lanes = min(bin_tokens // source.longest * bins_per_step, len(source))
        self.length = len(source) // self.lanes * source.longest  # of a lane, in tokens
        self.cuts = lru_cache(maxsize=2)(lambda epoch: source.cuts(self.length, epoch))

    def steps(
        self, cursor: Cursor = START, rank: int = 0, world: int = 1, done: int = 0
    ) -> Iterator[tuple[list[Bin], Cursor]]:
        """One rank's bins of each step, without end, and the cursor of the step after it; `ids` are places."""
        if self.bins_per_step % world:
            raise UserError(f"{self.bins_per_step} micro-batches a step cannot be shared by {world} ranks evenly")
        epoch, step = cursor.epoch, cursor.bin
        if step + 1 >= len(self.cuts(epoch)):
            raise UserError(f"{cursor} is no place in this corpus: its data or the size of a bin have changed")
        while True:
            start, end = self.cuts(epoch)[step : step + 2].tolist()
            parts = np.array_split(np.arange(self.lanes) * self.length + start, self.bins_per_step)
            bins = [Bin(epoch, ids, opens=step == 0, length=end - start) for ids in parts[rank::world]]
            epoch, step = (epoch, step + 1) if end < self.length else (epoch + 1, 0)
            yield bins, Cursor(epoch, 0, step)

    def bins_at(self, step: int, world: int = 1) -> int:
        return self.bins_per_step

    def fill(self) -> float:
        """The share of its bins' capacity that a step uses."""
        used = self.lanes * self.length / (len(self.cuts(0)) - 1)
        return used / (self.bins_per_step * self.bin_tokens)
