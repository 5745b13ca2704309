"""Fingerprints of documents: a 16-byte hash of the text, and a MinHash signature of its 5-word shingles.

The share of equal numbers in two signatures estimates the Jaccard similarity of the shingles (MinHash, Broder 1997).
Signatures use one permutation (Li, Owen, Zhang 2012): the hash of a shingle determines one of 128 bins, each bin keeps
its smallest hash, and an empty bin copies that of another bin, chosen at random but fixed (Shrivastava 2017).
Everything is vectorized over many documents; the signature of a document depends on its text and a key alone.

With a fixed hash anyone could write nonsense that has the signature of another document and so displace it. `prepare`
derives the key from all of its input (decision 033), which nobody knows while writing a part of it.
"""

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

import numpy as np

from polyseme.rng import GOLDEN_GAMMA, splitmix64
from polyseme.text.span_hash import SpanHasher

SIGNATURE_SIZE = 128  # a power of two
SHINGLE_WORDS = 5
BATCH_CHARS = 1 << 17  # characters per batch: more do not fit into the cache
_MAX_BATCH_DOCUMENTS = 2048
_MAX_SPARSE_BINS = 16  # signatures with at most this many full bins are densified from the full bins
_BIN_SHIFT = np.uint64(65 - SIGNATURE_SIZE.bit_length())  # leaves the bits of the bin
_EMPTY_BIN = np.uint64(2**64 - 1)
_SHINGLE_BASE = np.uint64(0xA0761D6478BD642F)
_SINGLE_CHAR_WORD = 1 << 31  # marks a character that is a word by itself
# Blocks of scripts written without spaces: Thai and Lao, Burmese, Khmer, Tai Le to Tai Tham, Balinese,
# kana, Han, Yi, Javanese, further Burmese and Tai, halfwidth kana, and the planes of kana and Han.
SCRIPTS_WITHOUT_SPACES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F)),
    *((0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA48F)),
    *((0xA980, 0xA9FF), (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3347F)),
)


def minhash_signatures(texts: Sequence[str], key: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
    """Return a hash (uint64 [n, 2]) and a signature (uint16 [n, SIGNATURE_SIZE]; 0 only without words) of each text.

    Only signatures with the same key can be compared. The hash needs no key: it is cryptographic.
    """
    signatures = np.zeros((len(texts), SIGNATURE_SIZE), dtype=np.uint16)
    for low, high in _batches(texts):
        signatures[low:high] = _minhash_batch(texts[low:high], key)
    return hash_texts(texts), signatures


def hash_texts(texts: Sequence[str]) -> np.ndarray:
    """Return a hash of each text, uint64 [n, 2]."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


@cache
def _code_point_table() -> np.ndarray:
    """Return the case-folded code point of each code point, marked if a word by itself; 0 for separators."""
    table = np.zeros(0x110000, dtype=np.uint32)
    for code in (*range(0x33480), *range(0xE0100, 0xE01F0)):  # letters, digits and marks are in these ranges
        char = chr(code)
        if char.isalnum() or unicodedata.category(char)[0] == "M":
            table[code] = next((ord(c) for c in (char.casefold(), char.lower()) if len(c) == 1), code)
    for low, high in SCRIPTS_WITHOUT_SPACES:
        table[low : high + 1] |= np.where(table[low : high + 1], np.uint32(_SINGLE_CHAR_WORD), np.uint32(0))
    return table


@lru_cache(maxsize=2)
def _keyed_char_values(key: bytes) -> tuple[SpanHasher, np.ndarray]:
    """Return a hasher and the random value of each code point: odd for a word by itself, 0 for separators."""
    hasher, table = SpanHasher(key), _code_point_table()
    values = hasher.char_values[table & np.uint32(_SINGLE_CHAR_WORD - 1)] & ~np.uint64(1)
    values |= table >= _SINGLE_CHAR_WORD
    values[table == 0] = 0
    return hasher, values


@cache
def _densification_order() -> tuple[np.ndarray, np.ndarray]:
    """Return for each bin a random order of all bins, [SIZE, SIZE]; an empty bin copies from the first full one.

    Also returns the inverse: for each bin its rank in the orders of all bins, times SIZE, plus itself.
    """
    random_keys = splitmix64(np.arange(SIGNATURE_SIZE * SIGNATURE_SIZE, dtype=np.uint64) * GOLDEN_GAMMA)
    order = np.argsort(random_keys.reshape(SIGNATURE_SIZE, SIGNATURE_SIZE), axis=1)
    ranks = np.argsort(order, axis=1).T * SIGNATURE_SIZE + np.arange(SIGNATURE_SIZE)[:, None]
    return order, ranks.astype(np.uint16)


def _batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of documents with at most `BATCH_CHARS` characters in total; a longer document is alone."""
    low = size = 0
    for number, text in enumerate(texts):
        if number > low and (size + len(text) > BATCH_CHARS or number - low == _MAX_BATCH_DOCUMENTS):
            yield low, number
            low, size = number, 0
        size += len(text)
    if low < len(texts):
        yield low, len(texts)


def _minhash_batch(texts: Sequence[str], key: bytes) -> np.ndarray:
    if len(texts) == 1:
        words = np.concatenate([_hash_words(chunk, key)[0] for chunk in _split_chunks(texts[0])])
        document_starts = np.array([0, len(words)])
    else:
        words, starts = _hash_words("\n".join(texts), key)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        document_starts = np.append(0, np.searchsorted(starts, np.cumsum(lengths + 1)))
    min_hashes = _min_shingle_hashes(words, document_starts)
    _densify_signatures(min_hashes)
    bins = np.arange(SIGNATURE_SIZE, dtype=np.uint64) * GOLDEN_GAMMA
    # Mix each hash with its bin, so that copies of one hash become different 16-bit numbers. Otherwise short documents
    # would be distinguished by 16 bits only.
    signatures = np.maximum(splitmix64(min_hashes + bins).astype(np.uint16), np.uint16(1))
    signatures[document_starts[1:] == document_starts[:-1]] = 0
    return signatures


def _split_chunks(text: str) -> Iterator[str]:
    """Yield a long text in chunks that fit into a batch, split at spaces if possible."""
    low = 0
    while len(text) - low > BATCH_CHARS:
        cut = text.rfind(" ", low, low + BATCH_CHARS)
        cut = low + BATCH_CHARS if cut <= low else cut
        yield text[low:cut]
        low = cut
    yield text[low:]


def _hash_words(text: str, key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash and the start of each word of a text. Separators after a word add 0 to its hash."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    hasher, char_values = _keyed_char_values(key)
    values = char_values[codes]
    starts_word = values != 0
    continues_word = starts_word & (values & np.uint64(1) == 0)
    starts_word[1:] &= ~(continues_word[1:] & continues_word[:-1])
    starts = np.flatnonzero(starts_word)
    return splitmix64(hasher.hash_spans(values, starts, np.append(starts, len(codes))[1:])), starts


def _min_shingle_hashes(word_hashes: np.ndarray, document_starts: np.ndarray) -> np.ndarray:
    """Return the smallest shingle hash of each document in each bin, uint64 [n, SIZE]. The top bits are the bin."""
    num_documents = len(document_starts) - 1
    min_hashes = np.full(num_documents * SIGNATURE_SIZE, _EMPTY_BIN)
    for low in range(0, len(word_hashes) - SHINGLE_WORDS + 1, BATCH_CHARS):
        high = min(low + BATCH_CHARS, len(word_hashes) - SHINGLE_WORDS + 1)
        hashes = word_hashes[low:high].copy()
        for step in range(1, SHINGLE_WORDS):
            hashes *= _SHINGLE_BASE
            hashes += word_hashes[low + step : high + step]
        # No shingle starts at the last four words of a document.
        begins = np.clip(document_starts[:-1], low, high) - low
        counts = np.maximum(np.clip(document_starts[1:] - SHINGLE_WORDS + 1, low, high) - low - begins, 0)
        document_ids = np.repeat(np.arange(num_documents), counts)
        positions = np.arange(len(document_ids)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        _update_min_hashes(min_hashes, document_ids, splitmix64(hashes[positions]))
    num_words = np.diff(document_starts)
    short_documents = np.flatnonzero((num_words > 0) & (num_words < SHINGLE_WORDS))
    hashes = np.zeros(len(short_documents), dtype=np.uint64)
    for step in range(SHINGLE_WORDS - 1):
        has_word = step < num_words[short_documents]
        words = word_hashes[document_starts[short_documents[has_word]] + step]
        hashes[has_word] = hashes[has_word] * _SHINGLE_BASE + words
    _update_min_hashes(min_hashes, short_documents, splitmix64(hashes))
    return min_hashes.reshape(num_documents, SIGNATURE_SIZE)


def _update_min_hashes(min_hashes: np.ndarray, document_ids: np.ndarray, hashes: np.ndarray) -> None:
    np.minimum.at(min_hashes, document_ids * SIGNATURE_SIZE + (hashes >> _BIN_SHIFT).view(np.int64), hashes)


def _densify_signatures(min_hashes: np.ndarray) -> None:
    """Fill the empty bins of documents that have a full one, from the originally full bins."""
    donors, ranks = _densification_order()
    is_empty = min_hashes == _EMPTY_BIN
    num_filled = SIGNATURE_SIZE - np.count_nonzero(is_empty, axis=1)
    sparse_documents = np.flatnonzero((num_filled > 0) & (num_filled <= _MAX_SPARSE_BINS))
    if len(sparse_documents):  # find which of the few full bins comes first in the order of each bin
        hashes, bins = min_hashes[sparse_documents], np.nonzero(~is_empty[sparse_documents])[1]
        bin_counts = num_filled[sparse_documents]
        first = np.minimum.reduceat(ranks[bins], np.cumsum(bin_counts) - bin_counts, axis=0) % SIGNATURE_SIZE
        donor_hashes = np.take_along_axis(hashes, first.astype(np.int64), axis=1)
        min_hashes[sparse_documents] = np.where(is_empty[sparse_documents], donor_hashes, hashes)
    rows, bins = np.nonzero(is_empty & (num_filled > _MAX_SPARSE_BINS)[:, None])
    donor_hashes = min_hashes.copy()
    for rank in range(SIGNATURE_SIZE):
        if not len(rows):
            return
        candidates = donor_hashes[rows, donors[bins, rank]]
        is_filled = candidates != _EMPTY_BIN
        min_hashes[rows[is_filled], bins[is_filled]] = candidates[is_filled]
        rows, bins = rows[~is_filled], bins[~is_filled]
