"""N-gram counting in bounded memory: one order after the other, by external sorting.

Once the n-grams of one length have ids, those that are one longer are pairs (context id, word), so only pairs of
numbers are sorted, whatever the order. Each n-gram has its count; its continuation count (the number of distinct words
before it; Chen & Goodman 1999, §2.7), from the n-grams that are one longer; and the id of its suffix (the n-gram
without its first word), to which its probability backs off.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.dedup.external_sort import ExternalSorter
from polyseme.corpus.store import Corpus, token_dtype
from polyseme.errors import DataError
from polyseme.io.atomic import wrap_os_errors
from polyseme.ngram.trie import NgramVocab, TrieLevel, find_ngrams

BLOCK_SIZE = 1 << 20  # tokens or n-grams at once


class FileArray:
    """Array in a file that is written block by block and then memory-mapped, so the system can evict its pages."""

    def __init__(self, path: Path, dtype: Any):
        self.path, self.dtype = path, np.dtype(dtype)
        with wrap_os_errors(path):
            self.file = open(path, "wb")  # noqa: SIM115 (`to_memmap` closes it)

    def append(self, block: np.ndarray) -> None:
        """Write a block after the previous ones."""
        with wrap_os_errors(self.path):
            self.file.write(np.ascontiguousarray(block, self.dtype).data)

    def to_memmap(self) -> np.ndarray:
        """Close the file and map it for reading and writing."""
        with wrap_os_errors(self.path):
            self.file.close()
            if not self.path.stat().st_size:
                return np.empty(0, self.dtype)
            return np.memmap(self.path, self.dtype, "r+")


def zeros_in_file(path: Path, dtype: Any, length: int) -> np.ndarray:
    """Create an array of zeros in a file, written in full so that a full disk raises here."""
    file_array = FileArray(path, dtype)
    for block_start in range(0, length, BLOCK_SIZE):
        file_array.append(np.zeros(min(BLOCK_SIZE, length - block_start), dtype))
    return file_array.to_memmap()


@dataclass
class NgramCounts:
    """Counts of the n-grams of one length, mapped from files."""

    trie: TrieLevel  # without probabilities
    raw_counts: np.ndarray  # occurrences
    adjusted_counts: np.ndarray  # continuation counts; raw counts in the last level and for n-grams that begin with BOS
    suffix_ids: np.ndarray  # id of each n-gram without its first word
    bos_range: slice  # n-grams that begin with BOS

    def __len__(self) -> int:
        return len(self.raw_counts)


def sentence_streams(corpus: Corpus, vocab: NgramVocab) -> Iterator[np.ndarray]:
    """Yield the corpus in blocks of whole sentences, each enclosed in BOS and EOS."""
    offsets = corpus.sentence_offsets
    first = 0
    while first < corpus.num_sentences:
        last = max(int(np.searchsorted(offsets, offsets[first] + BLOCK_SIZE)), first + 1)
        last = min(last, corpus.num_sentences)
        lengths = np.diff(offsets[first : last + 1])
        yield vocab.add_bos_eos(corpus.gather_tokens(offsets[first:last], lengths), lengths)
        first = last


def count_ngrams(
    streams: Iterable[np.ndarray], vocab: NgramVocab, order: int, work_dir: Path, memory_bytes: int = 1 << 28
) -> list[NgramCounts]:
    """Count the n-grams of all lengths up to `order`, in about `memory_bytes` of memory and files in `work_dir`."""
    stream_file = FileArray(work_dir / "stream", token_dtype(vocab.size))
    raw_counts = np.zeros(vocab.size, np.int64)
    for stream in streams:
        raw_counts += np.bincount(stream, minlength=vocab.size)
        stream_file.append(stream)
    stream = stream_file.to_memmap()
    if not len(stream):
        raise DataError("the corpus has no sentences to count n-grams in")
    index_dtype = np.int32 if len(stream) < 1 << 31 else np.int64
    adjusted_counts = raw_counts.copy()
    adjusted_counts[vocab.bos_id] = 0
    bos_range = slice(vocab.bos_id, vocab.bos_id + 1)
    levels = [NgramCounts(TrieLevel(), raw_counts, adjusted_counts, np.empty(0), bos_range)]
    # The id of the n-gram of the current length that ends at each token, or -1.
    state_file = FileArray(work_dir / "state", index_dtype)
    for _, block in _blocks(stream):
        state_file.append(block)
    states = state_file.to_memmap()
    for length in range(2, order + 1):
        lower, prefix = levels[-1], work_dir / str(length)
        with ExternalSorter(work_dir / "runs", memory_bytes) as sorter:
            for _, contexts, tokens in _context_word_pairs(stream, states, vocab):
                sorter.add(contexts.astype(np.uint64) * np.uint64(vocab.size) + tokens.astype(np.uint64))
            trie, raw_counts = _build_level(sorter, prefix, len(lower), vocab.size, index_dtype)
        suffix_ids = trie.words if length == 2 else _find_suffixes(trie, lower, prefix, index_dtype)
        lower.adjusted_counts = _continuation_counts(lower, suffix_ids, work_dir / str(length - 1))
        if length == 2:
            lower.adjusted_counts[vocab.bos_id] = 0
        bos_range = slice(*trie.child_offsets[[lower.bos_range.start, lower.bos_range.stop]].tolist())
        levels.append(NgramCounts(trie, raw_counts, raw_counts, suffix_ids, bos_range))
        if length < order:
            _advance_states(states, stream, trie, vocab)
    return levels


def context_blocks(child_offsets: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield ranges of contexts and of their n-grams, and the number of n-grams of each of these contexts.

    A block has at most `BLOCK_SIZE` contexts and n-grams, or it is a single context.
    """
    first, end = 0, len(child_offsets) - 1
    while first < end:
        last = int(np.searchsorted(child_offsets, int(child_offsets[first]) + BLOCK_SIZE, side="right")) - 1
        last = min(max(last, first + 1), first + BLOCK_SIZE, end)
        num_children = np.diff(child_offsets[first : last + 1]).astype(np.int64)
        yield slice(first, last), slice(int(child_offsets[first]), int(child_offsets[last])), num_children
        first = last


def _blocks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, len(array), BLOCK_SIZE):
        yield first, array[first : first + BLOCK_SIZE]


def _context_word_pairs(
    stream: np.ndarray, states: np.ndarray, vocab: NgramVocab
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield positions where an n-gram one longer than those of `states` ends, with its context id and last word.

    The caller may change the states of a block before it requests the next one.
    """
    previous_state = -1
    for first, tokens in _blocks(stream):
        state_block = states[first : first + BLOCK_SIZE]
        contexts = np.concatenate([[previous_state], state_block[:-1]])
        previous_state = int(state_block[-1])
        positions = np.flatnonzero((contexts >= 0) & (tokens != vocab.bos_id))
        yield first + positions, contexts[positions], tokens[positions]


def _advance_states(states: np.ndarray, stream: np.ndarray, trie: TrieLevel, vocab: NgramVocab) -> None:
    """Replace ids of n-grams by those of the n-grams that are one longer, in place."""
    for block_index, (positions, contexts, tokens) in enumerate(_context_word_pairs(stream, states, vocab)):
        states[block_index * BLOCK_SIZE : (block_index + 1) * BLOCK_SIZE] = -1
        states[positions] = find_ngrams(trie, contexts, tokens)


def _build_level(
    sorter: ExternalSorter, prefix: Path, num_contexts: int, vocab_size: int, index_dtype: type
) -> tuple[TrieLevel, np.ndarray]:
    """Build a level from (context, word) keys; return it with its raw counts."""
    word_file = FileArray(prefix.with_suffix(".words"), token_dtype(vocab_size))
    count_file = FileArray(prefix.with_suffix(".raw_counts"), np.uint32)
    offset_dtype = np.uint32 if index_dtype is np.int32 else np.uint64
    child_offsets = zeros_in_file(prefix.with_suffix(".child_offsets"), offset_dtype, num_contexts + 1)
    for keys, key_counts in sorter.sorted_counts():
        contexts = (keys // np.uint64(vocab_size)).astype(np.int64)
        word_file.append(keys % np.uint64(vocab_size))
        count_file.append(key_counts)
        first = int(contexts[0])
        counts = np.bincount(contexts - first)
        child_offsets[first + 1 : first + 1 + len(counts)] += counts.astype(child_offsets.dtype)
    np.cumsum(child_offsets, out=child_offsets)
    return TrieLevel(word_file.to_memmap(), child_offsets), count_file.to_memmap()


def _find_suffixes(trie: TrieLevel, lower: NgramCounts, prefix: Path, index_dtype: type) -> np.ndarray:
    """Return the suffix ids: the suffix of (context, word) is (suffix of the context, word)."""
    suffix_file = FileArray(prefix.with_suffix(".suffix_ids"), index_dtype)
    for contexts, ngrams, num_children in context_blocks(trie.child_offsets):
        context_suffixes = np.repeat(lower.suffix_ids[contexts], num_children)
        suffix_file.append(find_ngrams(lower.trie, context_suffixes, trie.words[ngrams]))
    return suffix_file.to_memmap()


def _continuation_counts(lower: NgramCounts, suffix_ids: np.ndarray, prefix: Path) -> np.ndarray:
    """Count the suffixes of the n-grams that are one longer; n-grams that begin with BOS keep raw counts."""
    counts = zeros_in_file(prefix.with_suffix(".adjusted_counts"), np.uint32, len(lower))
    for _, block in _blocks(suffix_ids):
        np.add.at(counts, block, np.uint32(1))
    counts[lower.bos_range] = lower.raw_counts[lower.bos_range]
    return counts
