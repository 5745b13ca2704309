"""Counting n-grams in files, in bounded memory: one order after the other, each by sorting numbers.

Once the n-grams of a length have numbers, those that are one longer are pairs (context, word), so a pair of numbers is
all that is ever sorted, whatever the order. Three things are known of every n-gram: how often it occurs; how many
words stand before it (its continuation count; Chen & Goodman 1999, §2.7), from the n-grams that are one longer; and the
number of its suffix, the n-gram without its first word, to which its probability backs off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.dedup.external_sort import Runs
from polyseme.corpus.store import Corpus, token_type
from polyseme.errors import UserError
from polyseme.io.files import told
from polyseme.ngram.trie import Level, Words, find

MEMORY = 1 << 28  # bytes, about
BLOCK = 1 << 20  # tokens or n-grams at once
_NONE = np.empty(0)


class Column:
    """An array in a file, written piece by piece, then mapped: its pages are the system's, to drop and read again."""

    def __init__(self, path: Path, dtype: Any):
        self.path, self.dtype = path, np.dtype(dtype)
        with told(path):
            self.file = open(path, "wb")  # noqa: SIM115 (`mapped` closes it)

    def add(self, piece: np.ndarray) -> None:
        with told(self.path):
            self.file.write(np.ascontiguousarray(piece, self.dtype).data)

    def mapped(self) -> np.ndarray:
        """All that was added, to read and to change."""
        with told(self.path):
            self.file.close()
            if not self.path.stat().st_size:
                return np.empty(0, self.dtype)
            return np.memmap(self.path, self.dtype, "r+")


def zeros(path: Path, dtype: Any, length: int) -> np.ndarray:
    """Written out, so that a full disk is met here and not when a page is touched."""
    column = Column(path, dtype)
    for first in range(0, length, BLOCK):
        column.add(np.zeros(min(BLOCK, length - first), dtype))
    return column.mapped()


@dataclass
class Counts:
    """The n-grams of one length, in files: what `Level` has but no probabilities."""

    words: np.ndarray
    begins: np.ndarray
    raw: np.ndarray  # how often each occurs
    suffix: np.ndarray  # the number of each without its first word
    adjusted: np.ndarray  # what it counts for: its continuation count, or `raw` in the last level and behind a start
    opening: slice  # those that begin with the start of a sentence

    @property
    def level(self) -> Level:
        return Level(self.words, self.begins, _NONE, _NONE)

    def __len__(self) -> int:
        return len(self.raw)


def sentences(corpus: Corpus, words: Words) -> Iterator[np.ndarray]:
    """The corpus as `Words.stream`, whole sentences at a time, a block or a little more of tokens."""
    begins = corpus.sentences
    first = 0
    while first < corpus.num_sentences:
        last = max(int(np.searchsorted(begins, begins[first] + BLOCK)), first + 1)
        last = min(last, corpus.num_sentences)
        lengths = np.diff(begins[first : last + 1])
        yield words.stream(corpus.gather(begins[first:last], lengths), lengths)
        first = last


def count(streams: Iterable[np.ndarray], words: Words, order: int, work: Path, memory: int = MEMORY) -> list[Counts]:
    """The n-grams of all lengths up to `order`. `work` is a folder for the files, which the result is mapped from."""
    column = Column(work / "stream", token_type(words.size))
    raw = np.zeros(words.size, np.int64)
    for stream in streams:
        raw += np.bincount(stream, minlength=words.size)
        column.add(stream)
    stream = column.mapped()
    if not len(stream):
        raise UserError("there is no sentence to count n-grams in")
    index = np.int32 if len(stream) < 1 << 31 else np.int64
    adjusted = raw.copy()
    adjusted[words.start] = 0
    levels = [Counts(_NONE, _NONE, raw, _NONE, adjusted, slice(words.start, words.start + 1))]
    state = Column(work / "state", index)  # the number of the n-gram of the last length that ends at each token, or -1
    for _, piece in _pieces(stream):
        state.add(piece)
    states = state.mapped()
    for length in range(2, order + 1):
        below = levels[-1]
        with Runs(work / "runs", memory) as runs:
            for _, contexts, tokens in _pairs(stream, states, words):
                runs.add(contexts.astype(np.uint64) * np.uint64(words.size) + tokens.astype(np.uint64))
            level = _collect(runs.merged(), work, length, len(below), words.size, index)
        _find_suffixes(level, levels, work, length, index)
        _adjust(below, level, words, work, length)
        begins = level.begins
        level.opening = slice(int(begins[below.opening.start]), int(begins[below.opening.stop]))
        levels.append(level)
        if length < order:
            _move_on(states, stream, level, words)
    return levels


def slices(begins: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Runs of contexts, and of what follows them: a block of either at most, or one context."""
    first, end = 0, len(begins) - 1
    while first < end:
        last = int(np.searchsorted(begins, int(begins[first]) + BLOCK, side="right")) - 1
        last = min(max(last, first + 1), first + BLOCK, end)
        yield slice(first, last), slice(int(begins[first]), int(begins[last]))
        first = last


def _pieces(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, len(array), BLOCK):
        yield first, array[first : first + BLOCK]


def _pairs(stream: np.ndarray, states: np.ndarray, words: Words) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Places in the stream where an n-gram ends that is one longer than those of `states`: contexts and words.

    The states of a block may be changed before the next is asked for.
    """
    before = -1
    for first, tokens in _pieces(stream):
        piece = states[first : first + BLOCK]
        contexts = np.concatenate([[before], piece[:-1]])
        before = int(piece[-1])
        places = np.flatnonzero((contexts >= 0) & (tokens != words.start))
        yield first + places, contexts[places], tokens[places]


def _move_on(states: np.ndarray, stream: np.ndarray, level: Counts, words: Words) -> None:
    """From the numbers of n-grams to those of the n-grams that are one longer, in place."""
    for number, (places, contexts, tokens) in enumerate(_pairs(stream, states, words)):
        states[number * BLOCK : (number + 1) * BLOCK] = -1
        states[places] = find(level.level, contexts, tokens)


def _collect(pieces: Iterable[np.ndarray], work: Path, length: int, below: int, size: int, index: type) -> Counts:
    """Sorted pairs to n-grams with their counts, ordered by context and then word."""
    words = Column(work / f"{length}.words", token_type(size))
    raw = Column(work / f"{length}.raw", np.uint32)
    behind = zeros(work / f"{length}.begins", np.uint32 if index is np.int32 else np.uint64, below + 1)
    for keys, times in _counted(pieces):
        contexts = (keys // np.uint64(size)).astype(np.int64)
        words.add(keys % np.uint64(size))
        raw.add(times)
        first = int(contexts[0])
        counts = np.bincount(contexts - first)
        behind[first + 1 : first + 1 + len(counts)] += counts.astype(behind.dtype)
    np.cumsum(behind, out=behind)
    return Counts(words.mapped(), behind, raw.mapped(), _NONE, _NONE, slice(0, 0))


def _counted(pieces: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each number of an ascending sequence once, and how often it is there; equal ones may be in several pieces."""
    key, times = np.empty(0, np.uint64), np.empty(0, np.int64)  # the last number, which may go on
    for piece in pieces:
        if not len(piece):
            continue
        firsts = np.flatnonzero(np.append(True, piece[1:] != piece[:-1]))
        counts = np.diff(np.append(firsts, len(piece)))
        if len(key) and key[0] == piece[0]:
            counts[0] += times[0]
        elif len(key):
            yield key, times
        yield from [(piece[firsts[:-1]], counts[:-1])] if len(firsts) > 1 else []
        key, times = piece[firsts[-1:]].copy(), counts[-1:]
    if len(key):
        yield key, times


def _find_suffixes(level: Counts, levels: list[Counts], work: Path, length: int, index: type) -> None:
    """The suffix of (context, word) is (suffix of the context, word)."""
    if length == 2:
        level.suffix = level.words
        return
    below = levels[-1]
    column = Column(work / f"{length}.suffix", index)
    for contexts, ngrams in slices(level.begins):
        behind = np.diff(level.begins[contexts.start : contexts.stop + 1]).astype(np.int64)
        column.add(find(below.level, np.repeat(below.suffix[contexts], behind), level.words[ngrams]))
    level.suffix = column.mapped()


def _adjust(below: Counts, level: Counts, words: Words, work: Path, length: int) -> None:
    """Below the highest order an n-gram counts for the words it was seen behind; nothing stands before a start."""
    continuations = zeros(work / f"{length - 1}.adjusted", np.uint32, len(below))
    for _, suffix in _pieces(level.suffix):
        np.add.at(continuations, suffix, np.uint32(1))
    continuations[below.opening] = below.raw[below.opening]
    if length == 2:
        continuations[words.start] = 0
    below.adjusted, level.adjusted = continuations, level.raw
