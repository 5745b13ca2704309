"""Contamination: how much of an evaluation set occurs in a corpus.

Compares word n-grams, as was done with eight words for GPT-2 (Radford et al. 2019, §4), by 64-bit hashes. The
probability of a false match between a million n-grams and a corpus of a billion is about 1 in 20,000.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from polyseme.corpus.dedup.external_sort import is_in_sorted
from polyseme.corpus.inspect.word_hashes import Detokenizer, HashedWords, hash_words
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.progress import progress
from polyseme.text.cached_encoder import batch_by_length
from polyseme.text.tokenizer import Tokenizer

SLICE_TOKENS = 1 << 17  # tokens per slice, so that the arrays fit into the processor's cache
BATCH_CHARS = 1 << 20  # characters of an evaluation set encoded at a time


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
    """Return the longest passage of an example that occurs in the corpus.

    It is quoted from the text if the decoded tokens have the same words, else from those.
    """
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
