"""An example as the model reads it: ids with special tokens around them, and where its predictions stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.text.tokenizer import Tokenizer

Target = np.ndarray | int | float | None  # the numbers of an example's labels, or the number to predict


@dataclass(frozen=True, eq=False)
class Written:
    """For a model that answers in text: the mark its targets open with, the mark they end with, and the answers that
    there are, as ids, each with its end mark. There are none where an answer is a stretch of the text."""

    start: int
    end: int
    answers: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class Encoded:
    """For tagging, `rows` are the first pieces of the words not cut off; for spans, the pieces of the context; for
    coreference, [n, 6], the rows of `nn/heads/coreference.py` for each word, and the target is its mentions.

    An example may be several sequences, end to end: `lengths` has theirs. Or it may be several windows, each of which
    stands alone: then `of` is the number of its example.
    """

    ids: np.ndarray  # int64 [n]
    segments: np.ndarray  # int64 [n]
    rows: np.ndarray  # int64, places in this sequence
    target: Target
    lengths: tuple[int, ...] = ()
    cut: bool = False  # whether tokens were left out
    of: int = 0
    offsets: np.ndarray | None = None  # int32 [len(rows), 2], the characters of the context that each row covers
    null: int = 0  # the row that stands for "no answer"
    apart: bool = False  # whether an answer is chosen among `rows` and `null` alone, not among all there are
    written: Written | None = None  # then a target is the number of an answer, or a stretch of `ids`

    @property
    def rivals(self) -> np.ndarray:
        """For spans: the places that a start or an end is chosen among."""
        return np.append(self.rows, self.null) if self.apart else np.arange(len(self.ids))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.lengths or (len(self.ids),)


def wrap(tokenizer: Tokenizer, first: list[int], second: list[int] | None) -> tuple[list[int], list[int]]:
    """Special tokens around a text or a pair.

    Tokenizers of causal models add none: there a pair would run together, so the end-of-text token parts it
    (as GPT's delimiter does, Radford et al. 2018, §3.3), and a text without tokens would be no sequence.
    """
    if tokenizer.num_added(second is not None):
        return tokenizer.wrap(first, second)
    end = end_of(tokenizer)
    ids = first if second is None else [*first, end, *second]
    return ids or [end], [0] * max(len(ids), 1)


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words as pieces, and the word of each. A word without any (zero-width) is unknown."""
    pieces, of = (np.array(a, dtype=np.int64) for a in tokenizer.encode_words(words))
    lost = np.setdiff1d(np.arange(len(words)), of)
    places = np.searchsorted(of, lost)
    unknown = first_of(tokenizer.specials.unk, tokenizer.specials.eos)
    return np.insert(pieces, places, unknown), np.insert(of, places, lost)


def end_of(tokenizer: Tokenizer) -> int:
    """The id that ends a text, where the tokenizer itself puts none."""
    specials = tokenizer.specials
    return first_of(specials.sep, specials.eos, specials.unk)


def first_of(*ids: int | None) -> int:
    return next((i for i in ids if i is not None), 0)
