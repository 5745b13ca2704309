"""Contamination: how much of an evaluation set occurs in a corpus.

Compares word n-grams, as was done with eight words for GPT-2 (Radford et al. 2019, §4), by 64-bit hashes. The
probability of a false match between a million n-grams and a corpus of a billion is about 1 in 20,000. The hashes are
keyed with random bytes of the process, so nobody can write text that seems to contain an evaluation set.

Tokens are decoded and split into words: runs of letters and digits, without case, accents and punctuation. The
comparison therefore does not depend on how the tokenizer splits words, or on byte-level BPE having different tokens
for a word at the start of a text and after a space.
"""

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from polyseme.corpus.dedup.external_sort import is_in_sorted
from polyseme.corpus.dedup.minhash import SCRIPTS_WITHOUT_SPACES
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.progress import progress
from polyseme.rng import splitmix64
from polyseme.text.cached_encoder import batch_by_length
from polyseme.text.span_hash import SpanHasher
from polyseme.text.tokenizer import Tokenizer

SLICE_TOKENS = 1 << 17  # tokens per slice, so that the arrays fit into the processor's cache
BATCH_CHARS = 1 << 20  # characters of an evaluation set encoded at a time
DOCUMENT_BREAK = "\U0010ffff"  # precedes each document; a Unicode noncharacter
_REPLACEMENT_CHAR = 0xFFFD  # stands for unknown tokens and invalid bytes
_HASHER = SpanHasher(secrets.token_bytes(16))
# Character classes: between words, part of a word, a word by itself, ignored
_SEPARATOR, _WORD, _SINGLE_CHAR_WORD, _IGNORED = range(4)


class HashedWords(NamedTuple):
    """Hashes of the words of some documents, in order."""

    hashes: np.ndarray  # uint64
    starts: np.ndarray  # int64: first character of each word
    document_ids: np.ndarray  # int64: index of its document
    has_unknown: np.ndarray  # bool: contains an unknown token
    touches_edges: tuple[bool, bool]  # whether a word touches the start and the end of the text

    def drop_edge_words(self, at_start: bool, at_end: bool) -> "HashedWords":
        """Drop the words that touch the start or end of the text, which may be incomplete where it was cut."""
        starts, ends = int(at_start and self.touches_edges[0]), int(at_end and self.touches_edges[1])
        arrays = (array[starts : len(array) - ends] for array in self[:4])
        return HashedWords._make([*arrays, self.touches_edges])

    def hash_ngrams(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each n-gram its hash, whether it lies within one document, and whether it contains an unknown."""
        count = max(len(self.hashes) - n + 1, 0)
        num_unknown = np.concatenate([[0], np.cumsum(self.has_unknown)])
        hashes = splitmix64(_HASHER.hash_spans(self.hashes, slice(count), slice(n, None)))
        return hashes, self.document_ids[:count] == self.document_ids[n - 1 :], num_unknown[n:] > num_unknown[:count]


def hash_words(text: str) -> HashedWords:
    """Hash the words of a text in which `DOCUMENT_BREAK` separates documents. Separators add 0 to a hash."""
    classes, values = _character_classes()
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
    char_classes, positions = classes[codes], None
    if (char_classes == _IGNORED).any():
        positions = np.flatnonzero(char_classes != _IGNORED)
        codes, char_classes = codes[positions], char_classes[positions]
    starts_word = char_classes != _SEPARATOR
    starts_word[1:] &= (char_classes[1:] != _WORD) | (char_classes[:-1] != _WORD)
    starts = np.flatnonzero(starts_word)
    has_unknown = np.zeros(len(starts), bool)
    has_unknown[np.searchsorted(starts, np.flatnonzero(codes == _REPLACEMENT_CHAR), side="right") - 1] = True
    breaks = np.flatnonzero(codes == ord(DOCUMENT_BREAK))
    first = int(breaks.size > 0 and breaks[0] == 0)
    edges = char_classes[first : first + 1], char_classes[-1:]
    touches_edges = bool((edges[0] != _SEPARATOR).any()), bool((edges[1] != _SEPARATOR).any())
    document_ids = np.searchsorted(breaks, starts) - first
    hashes = splitmix64(_HASHER.hash_spans(values[codes], starts, np.append(starts, len(codes))[1:]))
    starts = starts if positions is None else positions[starts]
    return HashedWords(hashes, starts, document_ids, has_unknown, touches_edges)


@lru_cache(maxsize=1)
def _character_classes() -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each code point, and a random value that is equal for a, A and Á."""
    classes = np.full(0x110000, _SEPARATOR, np.uint8)
    bases = np.arange(0x110000)
    for code in range(0x20000):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf" or unicodedata.combining(character) >= 200:  # joiners, direction marks; accents
            classes[code] = _IGNORED
        elif category[0] in "LMN":
            classes[code] = _WORD
            base, *marks = list(unicodedata.normalize("NFD", character))
            base_char = base if all(unicodedata.combining(mark) >= 200 for mark in marks) else character
            bases[code] = ord(base_char.lower()[0])
    for start, end in SCRIPTS_WITHOUT_SPACES:
        part = classes[start : end + 1]
        part[(part == _WORD) | (start >= 0x20000)] = _SINGLE_CHAR_WORD
    classes[_REPLACEMENT_CHAR] = _WORD
    values = _HASHER.char_values[bases]
    values[classes == _SEPARATOR] = 0
    return classes, values


class Detokenizer:
    """Decodes tokens to text. Where tokens carry no spaces (BERT), inserts one before each word."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        pieces = piece_bytes(tokenizer)
        self.vocab_size = len(pieces)
        self.has_spaces = any(b" " in piece for piece in pieces)
        self.pieces = np.empty(3 * self.vocab_size, object)
        self.pieces[:] = [mark + piece for mark in (b"", b" ", DOCUMENT_BREAK.encode()) for piece in pieces]

    def decode(self, ids: np.ndarray, word_starts: np.ndarray | None, lengths: np.ndarray) -> str:
        """Decode documents of the given lengths, with `DOCUMENT_BREAK` before each."""
        if ids.size and (largest := int(ids.max())) >= self.vocab_size:
            raise DataError(f"the corpus is damaged: token {largest} is not in its vocabulary of {self.vocab_size}")
        rows = ids.astype(np.int64)
        if word_starts is not None:
            rows += word_starts * self.vocab_size
        document_starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        rows[document_starts] = ids[document_starts] + np.int64(2 * self.vocab_size)
        return b"".join(self.pieces[rows].tolist()).decode("utf-8", "replace")

    def round_trip(self, texts: Sequence[str]) -> tuple[str, np.ndarray]:
        """Encode and decode texts; return the decoded text and the number of tokens of each."""
        valid_texts = [text.encode("utf-8", "replace").decode().replace(DOCUMENT_BREAK, " ") for text in texts]
        encoded = self.tokenizer.encode_corpus(valid_texts)
        word_starts = None if self.has_spaces else encoded.word_starts
        return self.decode(encoded.ids, word_starts, encoded.lengths), encoded.lengths

    def hash_corpus_words(self, corpus: Corpus, starts: np.ndarray, lengths: np.ndarray) -> HashedWords:
        """Hash the words of token ranges of a corpus, each treated as a document."""
        word_starts = None if self.has_spaces else corpus.gather_word_starts(starts, lengths)
        return hash_words(self.decode(corpus.gather_tokens(starts, lengths), word_starts, lengths))


def piece_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each vocabulary entry, with its spaces. An entry may be part of a character."""
    tokenizer_json = json.loads(tokenizer.backend.to_str())
    model, specials = tokenizer_json["model"], tokenizer.special_token_ids
    if '"ByteLevel"' in json.dumps([tokenizer_json["pre_tokenizer"], tokenizer_json["decoder"]]):
        byte_values = _byte_level_alphabet()

        def to_bytes(piece: str) -> bytes:
            return bytes(byte_values[char] for char in piece) if byte_values.keys() >= set(piece) else piece.encode()
    else:
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

        def to_bytes(piece: str) -> bytes:
            if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", piece):
                return bytes([int(piece[3:5], 16)])
            space = " " if suffix and piece.endswith(suffix) else ""
            return (piece.removeprefix(prefix).removesuffix(suffix).replace("▁", " ") + space).encode()

    token_bytes = [to_bytes(piece) for piece in tokenizer.vocabulary]
    if specials.unk is not None and specials.unk not in (specials.bos, specials.eos):
        token_bytes[specials.unk] = chr(_REPLACEMENT_CHAR).encode()
    return token_bytes


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: a printable byte stands for itself, others for characters from U+0100 on."""
    printable_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = [byte for byte in range(256) if byte not in printable_bytes]
    return {chr(byte): byte for byte in printable_bytes} | {chr(0x100 + i): byte for i, byte in enumerate(other_bytes)}


@dataclass(frozen=True)
class ContaminatedExample:
    """An example with n-grams that occur in the corpus."""

    example_number: int  # from 1
    num_ngrams: int
    num_matched: int
    longest_match: str  # longest passage that occurs in the corpus
    text: str


@dataclass(frozen=True)
class ContaminationResult:
    """Contamination of one evaluation set. An n-gram counts as often as it occurs in the set."""

    name: str
    n: int
    num_examples: int
    num_too_short: int  # examples with fewer than n words
    num_compared: int  # examples with an n-gram to compare
    num_ngrams: int
    num_unknown: int  # n-grams ignored because the tokenizer does not know one of their words
    num_matched: int  # n-grams that occur in the corpus
    num_contaminated: int  # examples with at least one matched n-gram
    num_half_contaminated: int  # examples with at least half of their n-grams matched
    worst_examples: tuple[ContaminatedExample, ...]

    @property
    def rates(self) -> dict[str, float | None]:
        """Shares of the n-grams and of the examples that can be compared; None if there are none."""
        totals = {"num_matched": self.num_ngrams, "num_contaminated": self.num_compared}
        totals["num_half_contaminated"] = self.num_compared
        return {name: getattr(self, name) / count if count else None for name, count in totals.items()}


def measure_contamination(
    corpus: Corpus, evaluation_sets: dict[str, Iterable[str]], n: int = 8, num_shown: int = 3
) -> list[ContaminationResult]:
    """Count the n-grams of each evaluation set that occur in the corpus, and list the `num_shown` worst examples.

    An n-gram lies within one document or example. Case, accents and punctuation are ignored. In scripts without spaces
    (Chinese, Japanese, Thai, …) each character is a word. The corpus is read once, in slices; the sets are held in
    memory.
    """
    if n < 1:
        raise ConfigError(f"n is {n}; it must be at least 1")
    detokenizer = Detokenizer(Tokenizer.load(corpus.path / "tokenizer"))
    sets = [_load_evaluation_set(name, texts, detokenizer, n) for name, texts in evaluation_sets.items()]
    ngram_hashes = np.unique(np.concatenate([np.zeros(0, np.uint64), *(loaded.ngrams for loaded in sets)]))
    matched_hashes = ngram_hashes[_find_in_corpus(corpus, detokenizer, ngram_hashes, n)]
    return [_measure_set(loaded, detokenizer, matched_hashes, n, num_shown) for loaded in sets]


@dataclass(frozen=True, eq=False)
class _EvaluationSet:
    name: str
    texts: list[str]
    num_words: np.ndarray  # int64: words per example
    ngrams: np.ndarray  # uint64 hashes, without n-grams that contain an unknown word
    example_ids: np.ndarray  # int64: the example of each n-gram
    num_unknown: int


def _load_evaluation_set(name: str, texts: Iterable[str], detokenizer: Detokenizer, n: int) -> _EvaluationSet:
    all_texts: list[str] = []
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    num_unknown = 0
    for batch in batch_by_length(texts, BATCH_CHARS, len):
        text, lengths = detokenizer.round_trip(batch)
        words = hash_words(text)
        word_examples = np.flatnonzero(lengths)[words.document_ids]
        hashes, is_whole, has_unknown = words.hash_ngrams(n)
        num_unknown += int((is_whole & has_unknown).sum())
        is_usable = is_whole & ~has_unknown
        ngram_examples = word_examples[: len(hashes)][is_usable] + len(all_texts)
        parts.append((np.bincount(word_examples, minlength=len(batch)), hashes[is_usable], ngram_examples))
        all_texts += batch
    num_words, ngrams, example_ids = (np.concatenate(arrays) for arrays in zip(*parts))
    return _EvaluationSet(name, all_texts, num_words, ngrams, example_ids, num_unknown)


def _find_in_corpus(corpus: Corpus, detokenizer: Detokenizer, ngram_hashes: np.ndarray, n: int) -> np.ndarray:
    """Return which of the sorted hashes occur in the corpus.

    A bitmap of the leading bits of the hashes still to find rejects nearly all others. It is rebuilt whenever another
    sixteenth has been found.
    """
    is_matched = np.zeros(len(ngram_hashes), bool)
    if not ngram_hashes.size:
        return is_matched
    bits = min(max((8 * len(ngram_hashes)).bit_length(), 16), 30)
    shift, rebuild_at = np.uint64(64 - bits), 0
    with progress("contamination", corpus.num_tokens, "tokens") as bar:
        for words, num_tokens in _word_slices(corpus, detokenizer, n):
            if np.count_nonzero(is_matched) >= rebuild_at:
                prefilter = np.zeros(1 << bits, bool)
                prefilter[ngram_hashes[~is_matched] >> shift] = True
                rebuild_at = int(np.count_nonzero(is_matched)) + len(ngram_hashes) // 16 + 1
            hashes, is_whole, has_unknown = words.hash_ngrams(n)
            is_whole &= ~has_unknown
            is_whole &= prefilter[(hashes >> shift).astype(np.int64)]
            hashes = hashes[is_whole]
            positions = np.searchsorted(ngram_hashes[:-1], hashes)
            is_matched[positions[ngram_hashes[positions] == hashes]] = True
            bar.advance(num_tokens)
    return is_matched


def _word_slices(corpus: Corpus, detokenizer: Detokenizer, n: int) -> Iterator[tuple[HashedWords, int]]:
    """Yield the words of some documents at a time, and their number of tokens."""
    document_starts = corpus.sentence_offsets[corpus.document_offsets]
    first = 0
    while first < corpus.num_documents:
        last = int(np.searchsorted(document_starts, document_starts[first] + SLICE_TOKENS, side="right")) - 1
        if last > first:
            lengths = np.diff(document_starts[first : last + 1])
            yield detokenizer.hash_corpus_words(corpus, document_starts[first:last], lengths), int(lengths.sum())
            first = last
        else:
            start, end = document_starts[first : first + 2].tolist()
            yield from _long_document_slices(corpus, detokenizer, start, end, n)
            first += 1


def _long_document_slices(
    corpus: Corpus, detokenizer: Detokenizer, start: int, end: int, n: int
) -> Iterator[tuple[HashedWords, int]]:
    """Yield the words of a document longer than a slice, in slices that overlap so that no n-gram is lost.

    The word at each cut is dropped, as it may be incomplete, so consecutive slices must share n - 1 whole words plus
    one at either end.
    """

    def read(a: int, b: int) -> HashedWords:
        return detokenizer.hash_corpus_words(corpus, np.array([a]), np.array([b - a]))

    low, size = start, SLICE_TOKENS
    while True:
        high = min(low + size, end)
        yield read(low, high).drop_edge_words(low > start, high < end), high - low
        if high == end:
            return
        overlap = 4 * n  # in tokens
        while 2 * overlap <= size and len(read(high - overlap, high).hashes) < n + 2:
            overlap *= 2
        if 2 * overlap <= size:
            low, size = high - overlap, SLICE_TOKENS
        else:  # hardly any words in this slice
            size *= 2


def _measure_set(
    loaded: _EvaluationSet, detokenizer: Detokenizer, matched_hashes: np.ndarray, n: int, num_shown: int
) -> ContaminationResult:
    num_examples = len(loaded.texts)
    is_matched = is_in_sorted(loaded.ngrams, matched_hashes)
    ngram_counts = np.bincount(loaded.example_ids, minlength=num_examples)
    match_counts = np.bincount(loaded.example_ids[is_matched], minlength=num_examples)
    order = np.lexsort((-match_counts, -match_counts / np.maximum(ngram_counts, 1)))[:num_shown]
    worst_examples = []
    for i in order[match_counts[order] > 0].tolist():
        match = _longest_match(loaded.texts[i], detokenizer, matched_hashes, n)
        counts = int(ngram_counts[i]), int(match_counts[i])
        worst_examples.append(ContaminatedExample(i + 1, *counts, match, loaded.texts[i]))
    return ContaminationResult(
        name=loaded.name,
        n=n,
        num_examples=num_examples,
        num_too_short=int((loaded.num_words < n).sum()),
        num_compared=int((ngram_counts > 0).sum()),
        num_ngrams=len(loaded.ngrams),
        num_unknown=loaded.num_unknown,
        num_matched=int(is_matched.sum()),
        num_contaminated=int((match_counts > 0).sum()),
        num_half_contaminated=int(((2 * match_counts >= ngram_counts) & (ngram_counts > 0)).sum()),
        worst_examples=tuple(worst_examples),
    )


def _longest_match(text: str, detokenizer: Detokenizer, matched_hashes: np.ndarray, n: int) -> str:
    """Return the longest passage that occurs in the corpus, from the text or, if its words differ, as decoded."""
    decoded_text = detokenizer.round_trip([text])[0]
    words = hash_words(decoded_text)
    hashes, _, has_unknown = words.hash_ngrams(n)
    changes = np.diff(np.concatenate([[0], is_in_sorted(hashes, matched_hashes) & ~has_unknown, [0]]))
    begins, ends = np.flatnonzero(changes == 1), np.flatnonzero(changes == -1)
    longest = int(np.argmax(ends - begins))
    first, last = int(begins[longest]), int(ends[longest]) + n - 1
    text_words = hash_words(text)
    byte_offset = text_words.hashes.tobytes().find(words.hashes[first:last].tobytes())
    if byte_offset >= 0:
        words, decoded_text = text_words, text
        first, last = byte_offset // 8, byte_offset // 8 + last - first
    word_offsets = np.append(words.starts, len(decoded_text))
    return " ".join(decoded_text[word_offsets[first] : word_offsets[last]].split())
