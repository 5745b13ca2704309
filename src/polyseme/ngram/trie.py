"""N-grams in arrays: a trie whose levels are sorted, asked about many tokens at once.

An n-gram has a number: its place in its level. Its context, the n-gram without its last word, is a number of the level
below, and what follows a context stands side by side, by word. So the longest n-gram that ends at each token of a text
is found with one search a level for all tokens together. A level holds, as an ARPA file does, log10 of the probability
and of the weight that a word gets which was not seen behind the n-gram (its back-off).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyseme.corpus.store import map_array
from polyseme.errors import UserError
from polyseme.io.files import write_array
from polyseme.text.cached_encoder import ranges
from polyseme.text.tokenizer import Tokenizer

ZERO = -99.0  # log10 of a probability that is none, as ARPA files write it
MOST = 8  # the highest order
_TOGETHER = 1 << 17  # searches at once: what they touch stays in the processor's cache


@dataclass(frozen=True, eq=False)
class Words:
    """What n-grams are made of: the tokenizer's ids and two marks, which are its own where it has some.

    A sentence is read between `start` and `end`. The end is predicted, the start is not; nor are the tokenizer's other
    special tokens, but for the one that stands for the unknown.
    """

    size: int  # ids, those of the marks included
    start: int
    end: int
    can_follow: np.ndarray  # bool [size]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Words:
        marks, size = tokenizer.specials, tokenizer.vocab_size
        end = next((mark for mark in (marks.eos, marks.sep) if mark is not None), size)
        size = max(size, end + 1)
        start = next((mark for mark in (marks.bos, marks.cls) if mark not in (None, end)), None)
        start = size if start is None else start
        size = max(size, start + 1)
        can = np.ones(size, bool)
        can[list(tokenizer.special_ids)] = False
        can[[i for i in (end, marks.unk) if i is not None]] = True
        can[start] = False
        return cls(size, start, end, can)

    def stream(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Sentences end to end, each between its marks."""
        ends = np.cumsum(lengths + 2)
        found = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
        found[ends - 1], found[ends - lengths - 2] = self.end, self.start
        found[ranges(ends - lengths - 1, lengths)] = ids
        return found


class Level(NamedTuple):
    """The n-grams of one length. The first level has one for each id, and no words and begins."""

    words: np.ndarray  # the last word of each n-gram
    begins: np.ndarray  # where what follows each n-gram of the level below begins, and the end
    logp: np.ndarray  # float32
    backoff: np.ndarray  # float32; none in the last level


class Ngrams:
    """A model of n-grams. `levels[n - 1]` has those of length n."""

    def __init__(self, words: Words, levels: Sequence[Level]):
        self.words, self.levels = words, list(levels)

    @property
    def order(self) -> int:
        return len(self.levels)

    @property
    def sizes(self) -> list[int]:
        """How many n-grams there are of each length; the first counts what has a probability."""
        return [int((self.levels[0].logp > ZERO).sum()), *(len(level.words) for level in self.levels[1:])]

    def log10(self, stream: np.ndarray) -> np.ndarray:
        """Log10 of the probability of each token of `Words.stream` after those before it; 0 for a start."""
        state = stream.astype(np.int64)
        found = self.levels[0].logp[state].astype(np.float64)
        for below, level in zip(self.levels, self.levels[1:]):
            context = np.concatenate([[-1], state[:-1]])
            state = find(level, context, stream)
            missed = np.flatnonzero((state < 0) & (context >= 0))
            found[missed] += below.backoff[context[missed]]
            seen = np.flatnonzero(state >= 0)
            found[seen] = level.logp[state[seen]]
        found[stream == self.words.start] = 0.0
        return found

    def distribution(self, histories: np.ndarray) -> np.ndarray:
        """Probabilities of every id, float64 [rows, size], after the histories [rows, length], -1 before they begin."""
        return 10.0 ** self.behind(self.state(histories))

    def state(self, histories: np.ndarray) -> np.ndarray:
        """What counts of the histories [rows, length], -1 before they begin: their last words, looked up.

        Column n, of order - 1, has the number of the n-gram that the last n + 1 words are, -1 where there is none.
        """
        found = np.full((len(histories), self.order - 1), -1, np.int64)
        for words in histories[:, max(histories.shape[1] - self.order + 1, 0) :].T:
            found = self.read(found, words.astype(np.int64))
        return found

    def read(self, state: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The state when each row has one word more."""
        longer = (find(level, state[:, n], words) for n, level in enumerate(self.levels[1:-1]))
        columns = [words, *longer][: self.order - 1]
        return np.stack(columns, axis=1) if columns else state

    def behind(self, state: np.ndarray) -> np.ndarray:
        """Log10 of the probability of every id, float64 [rows, size]: all backed off, then what was seen is set."""
        logs = np.tile(self.levels[0].logp.astype(np.float64), (len(state), 1))
        for below, level, context in zip(self.levels, self.levels[1:], state.T):
            rows = np.flatnonzero(context >= 0)
            context = context[rows]
            logs[rows] += below.backoff[context].astype(np.float64)[:, None]
            first = level.begins[context].astype(np.int64)
            count = level.begins[context + 1].astype(np.int64) - first
            places = ranges(first, count)
            logs[np.repeat(rows, count), level.words[places]] = level.logp[places]
        logs[:, ~self.words.can_follow] = -np.inf
        return logs

    def begin(self, prompts: Sequence[Sequence[int]]) -> NgramWriting:
        """The prompts read, for a search (`polyseme.decode`) to go on with."""
        return NgramWriting(self, prompts)

    def contexts(self, order: int) -> np.ndarray:
        """The number of the context of each n-gram of a level above the first."""
        begins = self.levels[order - 1].begins.astype(np.int64)
        return np.repeat(np.arange(len(begins) - 1), np.diff(begins))

    def save(self, folder: Path) -> None:
        for order, level in enumerate(self.levels, start=1):
            for part, array in level._asdict().items():
                if part in parts(order, self.order):
                    write_array(folder / array_file(order, part), [array], array.dtype)

    @classmethod
    def open(cls, folder: Path, words: Words, order: int) -> Ngrams:
        """Map the arrays of a folder; what they hold is checked as far as sizes tell."""
        levels: list[Level] = []
        below = words.size
        for n in range(1, order + 1):
            found: dict[str, Any] = {part: np.empty(0) for part in Level._fields}
            for part in parts(n, order):
                found[part] = map_array(folder / array_file(n, part))
            level = Level(**found)
            length = len(level.words) if n > 1 else words.size
            if n > 1:
                _check(folder / array_file(n, "begins"), level.begins, below + 1, "u")
                _check(folder / array_file(n, "words"), level.words, length, "u")
                if level.begins[0] != 0 or level.begins[-1] != length:
                    raise UserError(f"{folder / array_file(n, 'begins')} is damaged: it does not fit the words")
            for part in {"logp", "backoff"} & set(parts(n, order)):
                _check(folder / array_file(n, part), getattr(level, part), length, "f")
            levels.append(level)
            below = length
        return cls(words, levels)


class NgramWriting:
    """Sequences under way, as `polyseme.generation.session` wants them: of each only its state is kept."""

    def __init__(self, ngrams: Ngrams, prompts: Sequence[Sequence[int]]):
        self.ngrams = ngrams
        histories = np.full((len(prompts), ngrams.order - 1), -1, np.int64)
        for row, ids in zip(histories, prompts):
            if wrong := [token for token in ids if not 0 <= token < ngrams.words.size]:
                raise UserError(f"a prompt has the token {wrong[0]}, expected one from 0 to {ngrams.words.size - 1}")
            last = ids[max(len(ids) - len(row), 0) :]
            row[len(row) - len(last) :] = last
        self._at(ngrams.state(histories))

    def _at(self, state: np.ndarray) -> None:
        self.state, self.scores = state, torch.from_numpy(np.log(10) * self.ngrams.behind(state))

    def go(self, tokens: torch.Tensor, chosen: Sequence[int] | None = None) -> None:
        state = self.state if chosen is None else self.state[list(chosen)]
        self._at(self.ngrams.read(state, tokens.numpy()))

    def spares(self, rows: int, alive: int) -> bool:
        return alive < rows


def array_file(order: int, part: str) -> str:
    return f"{order}.{part}.npy"


def parts(order: int, highest: int) -> tuple[str, ...]:
    """The arrays that a level has."""
    return (*(("words", "begins") if order > 1 else ()), "logp", *(("backoff",) if order < highest else ()))


def _check(path: Path, array: np.ndarray, length: int, kind: str) -> None:
    if array.shape != (length,) or array.dtype.kind != kind:
        raise UserError(f"{path} is damaged: it has {array.dtype} of shape {array.shape} where {length} were written")


def find(level: Level, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The number of each n-gram, its context and last word given; -1 where there is none, or no context."""
    found = np.full(len(contexts), -1, np.int64)
    for first in range(0, len(contexts), _TOGETHER):
        part = slice(first, first + _TOGETHER)
        _bisect(level, contexts[part], words[part], found[part])
    return found


def _bisect(level: Level, contexts: np.ndarray, words: np.ndarray, found: np.ndarray) -> None:
    """Halve the range behind each context until its word is met; most have few words behind them."""
    open_ = np.flatnonzero(contexts >= 0)
    context = contexts[open_]
    low = level.begins[context].astype(np.int64)
    count = level.begins[context + 1].astype(np.int64) - low
    word = words[open_].astype(level.words.dtype)
    going = count > 0
    while going.any():
        open_, low, count, word = open_[going], low[going], count[going], word[going]
        half = count >> 1
        middle = low + half
        met = level.words[middle]
        equal, less = met == word, met < word
        found[open_[equal]] = middle[equal]
        low = np.where(less, middle + 1, low)
        count = np.where(less, count - half - 1, half)
        going = (count > 0) & ~equal
