"""What a document is recognised by: 16 bytes of its text, and 128 small numbers of its runs of five words.

Two documents share about as many of their numbers as they share of their shingles (MinHash, Broder 1997).
One permutation does for all numbers (Li, Owen, Zhang 2012): a shingle's hash says which of 128 bins it falls
into, each bin keeps its least hash, and an empty bin takes that of another, drawn for it (Shrivastava 2017).
Everything runs over arrays of many documents at once; a document's numbers depend on its text alone.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

import numpy as np

from polyseme.corpus.sampling import GOLDEN, mix
from polyseme.text.cached_encoder import powers

SIZE = 128  # numbers in a signature, a power of two
SHINGLE = 5  # words
BATCH = 1 << 17  # characters worked on at once: more leave the cache
_DOCUMENTS = 2048  # in a batch at most
_FEW = 16  # full bins
_SHIFT = np.uint64(65 - SIZE.bit_length())  # leaves the bits that say the bin
_EMPTY = np.uint64(2**64 - 1)
_STEP = np.uint64(0xA0761D6478BD642F)
_ALONE = 1 << 31  # marks characters that are a word each
# Blocks of scripts written without spaces: Thai and Lao, Burmese, Khmer, Tai Le to Tai Tham, Balinese,
# kana, Han, Yi, Javanese, further Burmese and Tai, halfwidth kana, and the planes of kana and Han.
SPACELESS = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F)),
    *((0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA48F)),
    *((0xA980, 0xA9FF), (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3347F)),
)


def fingerprints(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """For each text a hash of it, uint64 [n, 2], and its signature, uint16 [n, SIZE].

    No number of a signature is 0, but for a text without a word, which has nothing else.
    """
    signatures = np.zeros((len(texts), SIZE), dtype=np.uint16)
    for low, high in _batches(texts):
        signatures[low:high] = _signatures(texts[low:high])
    return exact_hashes(texts), signatures


def exact_hashes(texts: Sequence[str]) -> np.ndarray:
    """A hash of each text, uint64 [n, 2]."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def jaccard(a: str, b: str) -> float:
    """What the share of equal numbers in two signatures estimates, counted."""
    first, second = _shingles(a), _shingles(b)
    return len(first & second) / len(first | second) if first and second else 0.0


def split_words(text: str) -> list[str]:
    """The words of a text, without case, as shingles are made of them."""
    words = [""]
    for char in text:
        folded, alone = _fold(char)
        if alone or not folded:
            words += [folded, ""]
        else:
            words[-1] += folded
    return [word for word in words if word]


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = split_words(text)
    return {tuple(words[i : i + SHINGLE]) for i in range(max(len(words) - SHINGLE + 1, min(len(words), 1)))}


@lru_cache(4096)
def _fold(char: str) -> tuple[str, bool]:
    """A character as words have it, without case; empty if it is part of none. And whether it is one alone."""
    if not char.isalnum() and unicodedata.category(char)[0] != "M":
        return "", False
    alone = any(low <= ord(char) <= high for low, high in SPACELESS)
    return next((one for one in (char.casefold(), char.lower()) if len(one) == 1), char), alone


@cache
def _table() -> np.ndarray:
    """For each code point the folded one, marked if it is a word alone; 0 for what separates words."""
    table = np.zeros(0x110000, dtype=np.uint32)
    large = [(low, high) for low, high in SPACELESS if high - low > 1000]  # those without case, not one by one
    codes = np.arange(0x33480, dtype=np.uint32)
    for low, high in large:
        alnum = [chr(code).isalnum() for code in range(low, high + 1)]
        table[low : high + 1] = np.where(alnum, codes[low : high + 1] | np.uint32(_ALONE), 0)
        codes[low : high + 1] = 0
    table[0xAC00:0xD7A4] = codes[0xAC00:0xD7A4]  # Hangul has no case either
    codes[0xAC00:0xD7A4] = codes[0xD800:0xF900] = 0  # surrogates and private use are no letters
    for code in (*codes[codes > 0].tolist(), *range(0xE0100, 0xE01F0)):
        folded, alone = _fold.__wrapped__(chr(code))
        table[code] = ord(folded) | (_ALONE if alone else 0) if folded else 0
    return table


@cache
def _donors() -> tuple[np.ndarray, np.ndarray]:
    """For each bin all bins in a drawn order, [SIZE, SIZE]: the first that is not empty gives to it.

    And the same the other way round: for each bin its rank with all others, times SIZE, plus itself.
    """
    order = np.argsort(mix(np.arange(SIZE * SIZE, dtype=np.uint64) * GOLDEN).reshape(SIZE, SIZE), axis=1)
    ranks = np.argsort(order, axis=1).T * SIZE + np.arange(SIZE)[:, None]
    return order, ranks.astype(np.uint16)


def _batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Ranges of documents with at most `BATCH` characters together; a longer document is alone."""
    low = size = 0
    for number, text in enumerate(texts):
        if number > low and (size + len(text) > BATCH or number - low == _DOCUMENTS):
            yield low, number
            low, size = number, 0
        size += len(text)
    if low < len(texts):
        yield low, len(texts)


def _signatures(texts: Sequence[str]) -> np.ndarray:
    if len(texts) == 1:
        words = np.concatenate([_words(piece)[0] for piece in _pieces(texts[0])])
        firsts = np.array([0, len(words)])
    else:
        words, starts = _words("\n".join(texts))
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        firsts = np.append(0, np.searchsorted(starts, np.cumsum(lengths + 1)))
    least = _least(words, firsts)
    _densify(least)
    bins = np.arange(SIZE, dtype=np.uint64) * GOLDEN
    # Mixed with its bin: the copies of one hash are no copies of one number, which few documents could share
    # by chance, but 128 numbers that all speak for the same hash.
    found = np.maximum(mix(least + bins).astype(np.uint16), np.uint16(1))
    found[firsts[1:] == firsts[:-1]] = 0
    return found


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that fit into a batch, cut at spaces where there are some."""
    low = 0
    while len(text) - low > BATCH:
        cut = text.rfind(" ", low, low + BATCH)
        cut = low + BATCH if cut <= low else cut
        yield text[low:cut]
        low = cut
    yield text[low:]


def _words(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The hash of each word of a text, and where it begins.

    A word is a polynomial in the base over its characters. One running sum holds them all: what separates
    words adds nothing to it, and a word's place in the text is taken out by the inverse power.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    folded = _table()[codes]
    begins = folded != 0
    joins = begins & (folded < _ALONE)
    begins[1:] &= ~(joins[1:] & joins[:-1])
    starts = np.flatnonzero(begins)
    factors, inverses = powers((BATCH + _DOCUMENTS).bit_length())
    sums = np.empty(len(codes) + 1, dtype=np.uint64)
    sums[0] = 0
    np.cumsum(folded * factors[: len(codes)], out=sums[1:])
    hashes = sums[np.append(starts, len(codes))]
    hashes = (hashes[1:] - hashes[:-1]) * inverses[starts]
    return mix(hashes), starts


def _least(words: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """The least shingle of each document in each bin, uint64 [n, SIZE]; a hash's top bits are its bin."""
    num = len(firsts) - 1
    least = np.full(num * SIZE, _EMPTY)
    for low in range(0, len(words) - SHINGLE + 1, BATCH):
        high = min(low + BATCH, len(words) - SHINGLE + 1)
        hashes = words[low:high].copy()
        for step in range(1, SHINGLE):
            hashes *= _STEP
            hashes += words[low + step : high + step]
        # The last four words of each document begin no shingle.
        begins = np.clip(firsts[:-1], low, high) - low
        counts = np.maximum(np.clip(firsts[1:] - SHINGLE + 1, low, high) - low - begins, 0)
        owner = np.repeat(np.arange(num), counts)
        places = np.arange(len(owner)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        _put(least, owner, mix(hashes[places]))
    short = np.flatnonzero(np.diff(firsts) < SHINGLE)
    short = short[firsts[short] < firsts[short + 1]]
    hashes = np.zeros(len(short), dtype=np.uint64)
    for step in range(SHINGLE - 1):
        there = firsts[short] + step < firsts[short + 1]
        hashes[there] = hashes[there] * _STEP + words[firsts[short[there]] + step]
    _put(least, short, mix(hashes))
    return least.reshape(num, SIZE)


def _put(least: np.ndarray, owner: np.ndarray, hashes: np.ndarray) -> None:
    np.minimum.at(least, owner * SIZE + (hashes >> _SHIFT).view(np.int64), hashes)


def _densify(least: np.ndarray) -> None:
    """Fill the empty bins of documents that have any, from bins that were not empty before."""
    donors, ranks = _donors()
    empty = least == _EMPTY
    filled = SIZE - np.count_nonzero(empty, axis=1)
    few = np.flatnonzero((filled > 0) & (filled <= _FEW))
    if len(few):  # ask the few full bins which of them comes first for each bin
        _, bins = np.nonzero(~empty[few])
        first = np.minimum.reduceat(ranks[bins], np.cumsum(filled[few]) - filled[few], axis=0) % SIZE
        given = np.take_along_axis(least[few], first.astype(np.int64), axis=1)
        least[few] = np.where(empty[few], given, least[few])
    rows, bins = np.nonzero(empty & (filled > _FEW)[:, None])
    given = least.copy()
    for turn in range(SIZE):
        if not len(rows):
            return
        found = given[rows, donors[bins, turn]]
        full = found != _EMPTY
        least[rows[full], bins[full]] = found[full]
        rows, bins = rows[~full], bins[~full]
