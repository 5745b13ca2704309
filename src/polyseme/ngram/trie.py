"""N-gram language model as a trie of sorted arrays, queried for many tokens at once.

The id of an n-gram is its index in its level. Its context (the n-gram without its last word) is an id of the level
below, and the n-grams of one context are adjacent and sorted by last word. So one batched binary search per level finds
the longest n-gram that ends at each token of a text. As in an ARPA file, a level holds log10 probabilities and log10
back-off weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from polyseme.corpus.store import memmap_array
from polyseme.errors import DataError, ModelError
from polyseme.io.atomic import write_array
from polyseme.text.cached_encoder import concat_ranges
from polyseme.text.tokenizer import Tokenizer

LOG10_ZERO = -99.0  # log10 of probability 0 in ARPA files
MAX_ORDER = 8
_EMPTY = np.empty(0, np.float32)
_SEARCH_BATCH = 1 << 17  # searches at once: their data stays in the processor's cache


@dataclass(frozen=True, eq=False)
class NgramVocab:
    """Vocabulary of an n-gram model: the tokenizer's ids, with new ids for BOS and EOS if it has none.

    A sentence is enclosed in `bos_id` and `eos_id`. EOS and the unknown token are predicted; BOS and the other special
    tokens are not.
    """

    size: int  # including BOS and EOS
    bos_id: int
    eos_id: int
    is_predicted: np.ndarray  # bool [size]

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> NgramVocab:
        """Derive the vocabulary; SEP and CLS serve as EOS and BOS where these are missing."""
        ids, size = tokenizer.special_token_ids, tokenizer.vocab_size
        eos_id = next((i for i in (ids.eos, ids.sep) if i is not None), size)
        size = max(size, eos_id + 1)
        bos_id = next((i for i in (ids.bos, ids.cls) if i is not None and i != eos_id), size)
        size = max(size, bos_id + 1)
        is_predicted = np.ones(size, bool)
        is_predicted[list(tokenizer.all_special_ids)] = False
        is_predicted[[i for i in (eos_id, ids.unk) if i is not None]] = True
        is_predicted[bos_id] = False
        return cls(size, bos_id, eos_id, is_predicted)

    def add_bos_eos(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Concatenate sentences, each enclosed in BOS and EOS."""
        ends = np.cumsum(lengths + 2)
        stream = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
        stream[ends - 1], stream[ends - lengths - 2] = self.eos_id, self.bos_id
        stream[concat_ranges(ends - lengths - 1, lengths)] = ids
        return stream


class TrieLevel(NamedTuple):
    """N-grams of one length. The first level has one per id, and empty `words` and `child_offsets`."""

    words: np.ndarray = _EMPTY  # last word of each n-gram
    child_offsets: np.ndarray = _EMPTY  # start of the n-grams of each context, and the end
    logp: np.ndarray = _EMPTY  # float32
    backoff: np.ndarray = _EMPTY  # float32; empty in the last level


class NgramTrie:
    """Back-off n-gram model; `levels[n - 1]` holds the n-grams of length n."""

    def __init__(self, vocab: NgramVocab, levels: Sequence[TrieLevel]):
        self.vocab, self.levels = vocab, list(levels)

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.levels)

    @property
    def sizes(self) -> list[int]:
        """Number of n-grams of each length; of 1-grams, those with a probability."""
        return [int((self.levels[0].logp > LOG10_ZERO).sum()), *(len(level.words) for level in self.levels[1:])]

    def log10_probs(self, stream: np.ndarray) -> np.ndarray:
        """Return the log10 probability of each token of a stream from `NgramVocab.add_bos_eos`; 0 for BOS."""
        state = stream.astype(np.int64)
        log_probs = self.levels[0].logp[state].astype(np.float64)
        for lower, level in zip(self.levels, self.levels[1:]):
            context = np.concatenate([[-1], state[:-1]])
            state = find_ngrams(level, context, stream)
            backed_off = np.flatnonzero((state < 0) & (context >= 0))
            log_probs[backed_off] += lower.backoff[context[backed_off]]
            matched = np.flatnonzero(state >= 0)
            log_probs[matched] = level.logp[state[matched]]
        log_probs[stream == self.vocab.bos_id] = 0.0
        return log_probs

    def lookup_state(self, histories: np.ndarray) -> np.ndarray:
        """Return the ids, -1 if none, of the n-grams that end each history: [rows, length] to [rows, order - 1]."""
        state = np.full((len(histories), self.order - 1), -1, np.int64)
        for words in histories[:, max(histories.shape[1] - self.order + 1, 0) :].T:
            state = self.advance(state, words.astype(np.int64))
        return state

    def advance(self, state: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the state after one more word per row."""
        longer_ngrams = (find_ngrams(level, state[:, n], words) for n, level in enumerate(self.levels[1:-1]))
        columns = [words, *longer_ngrams][: self.order - 1]
        return np.stack(columns, axis=1) if columns else state

    def next_log10_probs(self, state: np.ndarray) -> np.ndarray:
        """Return log10 probabilities of every id, float64 [rows, size]: back off all, then set the seen n-grams."""
        log_probs = np.tile(self.levels[0].logp.astype(np.float64), (len(state), 1))
        for lower, level, context in zip(self.levels, self.levels[1:], state.T):
            rows = np.flatnonzero(context >= 0)
            context = context[rows]
            log_probs[rows] += lower.backoff[context].astype(np.float64)[:, None]
            child_starts = level.child_offsets[context].astype(np.int64)
            num_children = level.child_offsets[context + 1].astype(np.int64) - child_starts
            children = concat_ranges(child_starts, num_children)
            log_probs[np.repeat(rows, num_children), level.words[children]] = level.logp[children]
        log_probs[:, ~self.vocab.is_predicted] = -np.inf
        return log_probs

    def start_session(self, prompts: Sequence[Sequence[int]]) -> NgramSession:
        """Start decoding after the prompts."""
        return NgramSession(self, prompts)

    def save(self, folder: Path) -> None:
        """Write each array of each level as an `.npy` file."""
        for order, level in enumerate(self.levels, start=1):
            for name in _array_names(order, self.order):
                array = getattr(level, name)
                write_array(folder / f"{order}.{name}.npy", [array], array.dtype)

    @classmethod
    def open(cls, folder: Path, vocab: NgramVocab, order: int) -> Self:
        """Memory-map the arrays of a folder and check their sizes and types."""
        levels: list[TrieLevel] = []
        num_contexts = vocab.size
        for n in range(1, order + 1):
            arrays = {name: memmap_array(folder / f"{n}.{name}.npy") for name in _array_names(n, order)}
            num_ngrams = len(arrays["words"]) if n > 1 else vocab.size
            for name, array in arrays.items():
                length = num_contexts + 1 if name == "child_offsets" else num_ngrams
                if array.shape != (length,) or array.dtype.kind != ("f" if name in ("logp", "backoff") else "u"):
                    problem = f"its shape is {array.shape} and its type {array.dtype}, expected {length} values"
                    raise ModelError(f"{folder / f'{n}.{name}.npy'} is damaged: {problem}")
                if problem := _find_problem(name, array, vocab.size, num_ngrams):
                    raise ModelError(f"{folder / f'{n}.{name}.npy'} is damaged: {problem}")
            levels.append(TrieLevel(**arrays))
            num_contexts = num_ngrams
        return cls(vocab, levels)


class NgramSession:
    """Decoding session (see `polyseme.generation.session`) that keeps one n-gram state per sequence."""

    def __init__(self, ngrams: NgramTrie, prompts: Sequence[Sequence[int]]):
        self.ngrams, size = ngrams, ngrams.vocab.size
        histories = np.full((len(prompts), ngrams.order - 1), -1, np.int64)
        for row, ids in zip(histories, prompts):
            if invalid_ids := [i for i in ids if not 0 <= i < size]:
                raise DataError(f"a prompt contains the token id {invalid_ids[0]}, expected 0 to {size - 1}")
            recent_ids = ids[max(len(ids) - len(row), 0) :]
            row[len(row) - len(recent_ids) :] = recent_ids
        self._set_state(ngrams.lookup_state(histories))

    def _set_state(self, state: np.ndarray) -> None:
        self.state, self.scores = state, torch.from_numpy(np.log(10) * self.ngrams.next_log10_probs(state))

    def advance(self, tokens: torch.Tensor, row_indices: Sequence[int] | None = None) -> None:
        """Append one token per sequence, after selecting rows."""
        state = self.state if row_indices is None else self.state[list(row_indices)]
        self._set_state(self.ngrams.advance(state, tokens.numpy()))

    def should_compact(self, num_rows: int, num_alive: int) -> bool:
        """Return whether to drop finished sequences; here it costs nothing."""
        return num_alive < num_rows


def _find_problem(name: str, array: np.ndarray, vocab_size: int, num_ngrams: int) -> str:
    """Return what is wrong with the values of an array of a level; an empty string if nothing is."""
    if name == "words" and len(array) and int(array.max()) >= vocab_size:
        return f"it has the id {array.max()}, but the vocabulary has {vocab_size} entries"
    if name == "child_offsets" and (array[[0, -1]].tolist() != [0, num_ngrams] or (array[1:] < array[:-1]).any()):
        return "its offsets are not ascending from 0 to the number of words"
    with np.errstate(invalid="ignore"):
        if array.dtype.kind == "f" and not np.isfinite(array.sum(dtype=np.float64)):
            return f"{np.count_nonzero(~np.isfinite(array)):,} of its {len(array):,} values are NaN or infinite"
    return ""


def _array_names(order: int, max_order: int) -> tuple[str, ...]:
    """Return the names of the arrays that are saved for a level."""
    return (*(("words", "child_offsets") if order > 1 else ()), "logp", *(("backoff",) if order < max_order else ()))


def find_ngrams(level: TrieLevel, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the id of each (context, word) pair; -1 if there is no such n-gram or the context is -1."""
    ngram_ids = np.full(len(contexts), -1, np.int64)
    for batch_start in range(0, len(contexts), _SEARCH_BATCH):
        batch = slice(batch_start, batch_start + _SEARCH_BATCH)
        _bisect(level, contexts[batch], words[batch], ngram_ids[batch])
    return ngram_ids


def _bisect(level: TrieLevel, contexts: np.ndarray, words: np.ndarray, ngram_ids: np.ndarray) -> None:
    """Binary search for each word among the n-grams of its context; most contexts have few."""
    unresolved = np.flatnonzero(contexts >= 0)
    context = contexts[unresolved]
    low = level.child_offsets[context].astype(np.int64)
    count = level.child_offsets[context + 1].astype(np.int64) - low
    word = words[unresolved].astype(level.words.dtype)
    is_open = count > 0
    while is_open.any():
        unresolved, low, count, word = unresolved[is_open], low[is_open], count[is_open], word[is_open]
        half = count >> 1
        middle = low + half
        middle_words = level.words[middle]
        is_match, is_less = middle_words == word, middle_words < word
        ngram_ids[unresolved[is_match]] = middle[is_match]
        low = np.where(is_less, middle + 1, low)
        count = np.where(is_less, count - half - 1, half)
        is_open = (count > 0) & ~is_match
