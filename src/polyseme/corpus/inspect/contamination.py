"""Contamination: how much of an evaluation set stands in a corpus already.

Word n-grams are compared, as was done with eight words for GPT-2's text (Radford et al. 2019, §4), in the form of
64-bit hashes: a million of them against a billion of the corpus meet by chance once in some 20,000 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from polyseme.corpus.inspect.word_hashes import Words, Writer, read_words
from polyseme.corpus.store import Corpus
from polyseme.errors import UserError
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer

SLICE = 1 << 17  # tokens looked at together: the arrays stay in the processor's cache
BATCH = 1 << 20  # characters of an evaluation set encoded together


@dataclass(frozen=True)
class Match:
    """An example with n-grams that are in the corpus."""

    example: int  # its number in the set, from 1
    grams: int
    found: int
    stretch: str  # the longest run of it that is in the corpus
    text: str


@dataclass(frozen=True)
class Overlap:
    """What of one evaluation set is in a corpus. An n-gram counts as often as it occurs in the set."""

    name: str
    n: int
    examples: int
    short: int  # examples of fewer than n words: nothing to compare
    compared: int  # examples with an n-gram to compare
    grams: int
    unknown: int  # further n-grams, left out as the tokenizer cannot write one of their words
    found: int  # n-grams that are in the corpus
    touched: int  # examples with at least one of those
    half: int  # examples with at least half of theirs
    worst: tuple[Match, ...]

    @property
    def shares(self) -> dict[str, float | None]:
        """Of the n-grams and of the examples that can be compared; None where there is none."""
        of = {"found": self.grams, "touched": self.compared, "half": self.compared}
        return {name: getattr(self, name) / count if count else None for name, count in of.items()}


def overlap(corpus: Corpus, sets: dict[str, Iterable[str]], n: int = 8, show: int = 3) -> list[Overlap]:
    """How many of each set's n-grams occur in the corpus, and the `show` examples that have most of theirs there.

    An n-gram lies within one document or example; case, accents and punctuation do not count. Where a script has no
    spaces (Chinese, Japanese, Thai, …) each character is a word. The corpus is read once, a slice at a time; the sets
    are held in memory.
    """
    if n < 1:
        raise UserError(f"n is {n}: an n-gram has at least one word")
    writer = Writer(Tokenizer.load(corpus.path / "tokenizer"))
    read = {name: _read_set(texts, writer, n) for name, texts in sets.items()}
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *(each.grams for each in read.values())]))
    there = wanted[_search(corpus, writer, wanted, n)]
    return [_measure(name, each, writer, there, n, show) for name, each in read.items()]


@dataclass(frozen=True, eq=False)
class _Set:
    texts: list[str]
    sizes: np.ndarray  # int64: words of each example
    grams: np.ndarray  # uint64, without those with an unknown word
    example: np.ndarray  # int64: the example of each
    unknown: int


def _read_set(texts: Iterable[str], writer: Writer, n: int) -> _Set:
    kept: list[str] = []
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    unknown = 0
    for batch in _batches(texts):
        text, lengths = writer.encode(batch)
        words = read_words(text)
        example = np.flatnonzero(lengths)[words.document]
        hashes, whole, lost = words.grams(n)
        unknown += int((whole & lost).sum())
        usable = whole & ~lost
        of = example[: len(hashes)][usable] + len(kept)
        parts.append((np.bincount(example, minlength=len(batch)), hashes[usable], of))
        kept += batch
    sizes, grams, owners = (np.concatenate(each) for each in zip(*parts))
    return _Set(kept, sizes, grams, owners, unknown)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _search(corpus: Corpus, writer: Writer, wanted: np.ndarray, n: int) -> np.ndarray:
    """Which of the sorted hashes occur in the corpus.

    A table of the first bits of those that are still looked for turns nearly all others away; it is made anew when
    a good part has been found.
    """
    found = np.zeros(len(wanted), bool)
    if not wanted.size:
        return found
    bits = min(max((8 * len(wanted)).bit_length(), 16), 30)
    first, due = np.uint64(64 - bits), 0
    with progress("overlap", corpus.num_tokens, "tokens") as bar:
        for words, tokens in _slices(corpus, writer, n):
            if np.count_nonzero(found) >= due:
                perhaps = np.zeros(1 << bits, bool)
                perhaps[wanted[~found] >> first] = True
                due = int(np.count_nonzero(found)) + len(wanted) // 16 + 1
            hashes, whole, lost = words.grams(n)
            whole &= ~lost
            whole &= perhaps[(hashes >> first).astype(np.int64)]
            hashes = hashes[whole]
            places = np.searchsorted(wanted[:-1], hashes)
            found[places[wanted[places] == hashes]] = True
            bar.advance(tokens)
    return found


def _slices(corpus: Corpus, writer: Writer, n: int) -> Iterator[tuple[Words, int]]:
    """The words of the corpus, some documents at a time, and how many tokens they are."""
    borders = corpus.sentences[corpus.documents]
    first = 0
    while first < corpus.num_documents:
        last = int(np.searchsorted(borders, borders[first] + SLICE, side="right")) - 1
        if last > first:
            words = writer.words(corpus, borders[first:last], np.diff(borders[first : last + 1]))
            yield words, int(borders[last] - borders[first])
            first = last
        else:
            yield from _long(corpus, writer, int(borders[first]), int(borders[first + 1]), n)
            first += 1


def _long(corpus: Corpus, writer: Writer, start: int, end: int, n: int) -> Iterator[tuple[Words, int]]:
    """A document longer than a slice, in stretches that share so many words that no n-gram is lost.

    The words at a cut are left out, as they may be parts of words; so two stretches must have n - 1 whole words in
    common, and one more at either end.
    """

    def read(a: int, b: int) -> Words:
        return writer.words(corpus, np.array([a]), np.array([b - a]))

    at, size = start, SLICE
    while True:
        stop = min(at + size, end)
        yield read(at, stop).inner(at > start, stop < end), stop - at
        if stop == end:
            return
        back = 4 * n
        while 2 * back <= size and len(read(stop - back, stop).hashes) < n + 2:
            back *= 2
        if 2 * back <= size:
            at, size = stop - back, SLICE
        else:  # hardly a word in all of this
            size *= 2


def _measure(name: str, each: _Set, writer: Writer, there: np.ndarray, n: int, show: int) -> Overlap:
    count = len(each.texts)
    hit = _among(each.grams, there)
    grams = np.bincount(each.example, minlength=count)
    hits = np.bincount(each.example[hit], minlength=count)
    order = np.lexsort((-hits, -hits / np.maximum(grams, 1)))[:show]
    worst = [
        Match(int(i) + 1, int(grams[i]), int(hits[i]), _stretch(each.texts[i], writer, there, n), each.texts[i])
        for i in order
        if hits[i]
    ]
    return Overlap(
        name=name,
        n=n,
        examples=count,
        short=int((each.sizes < n).sum()),
        compared=int((grams > 0).sum()),
        grams=len(each.grams),
        unknown=each.unknown,
        found=int(hit.sum()),
        touched=int((hits > 0).sum()),
        half=int(((2 * hits >= grams) & (grams > 0)).sum()),
        worst=tuple(worst),
    )


def _among(hashes: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which of the hashes are in a sorted array."""
    if not there.size:
        return np.zeros(len(hashes), bool)
    return np.asarray(there[np.searchsorted(there[:-1], hashes)] == hashes)


def _stretch(text: str, writer: Writer, there: np.ndarray, n: int) -> str:
    """The longest run of an example that is in the corpus, as the text has it if its tokens have the same words."""
    written = writer.encode([text])[0]
    words = read_words(written)
    hashes, _, lost = words.grams(n)
    turns = np.diff(np.concatenate([[0], _among(hashes, there) & ~lost, [0]]))
    begins, ends = np.flatnonzero(turns == 1), np.flatnonzero(turns == -1)
    longest = int(np.argmax(ends - begins))
    first, last = int(begins[longest]), int(ends[longest]) + n - 1
    own = read_words(text)
    place = own.hashes.tobytes().find(words.hashes[first:last].tobytes())
    if place >= 0:
        words, written = own, text
        first, last = place // 8, place // 8 + last - first
    stops = np.append(words.starts, len(written))
    return " ".join(written[stops[first] : stops[last]].split())
