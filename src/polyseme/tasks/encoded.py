"""An example as the model reads it: ids with special tokens around them, and where its predictions stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.text.tokenizer import Tokenizer

Target = np.ndarray | int | float | None  # the numbers of an example's labels, or the number to predict


@dataclass(frozen=True, eq=False)
class TextTargets:
    """For a model that answers in text: the mark its targets open with, the mark they end with, and the answers that
    there are, as ids, each with its end mark. There are none where an answer is a stretch of the text."""

    start_id: int
    end_id: int
    answer_ids: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """For tagging, `positions` are the first pieces of the words not cut off; for spans, the pieces of the context; for
    coreference, [n, 6], the rows of `nn/heads/coreference.py` for each word, and the target is its mentions.

    An example may be several sequences, end to end: `lengths` has theirs. Or it may be several windows, each of which
    stands alone: then `example_index` is the number of its example.
    """

    ids: np.ndarray  # int64 [n]
    segments: np.ndarray  # int64 [n]
    positions: np.ndarray  # int64, places in this sequence
    target: Target
    lengths: tuple[int, ...] = ()
    is_truncated: bool = False  # whether tokens were left out
    example_index: int = 0
    offsets: np.ndarray | None = None  # int32 [len(rows), 2], the characters of the context that each row covers
    null_position: int = 0  # the row that stands for "no answer"
    restrict_to_context: bool = (
        False  # whether an answer is chosen among `rows` and `null` alone, not among all there are
    )
    text_targets: TextTargets | None = None  # then a target is the number of an answer, or a stretch of `ids`

    @property
    def candidate_positions(self) -> np.ndarray:
        """For spans: the places that a start or an end is chosen among."""
        return np.append(self.positions, self.null_position) if self.restrict_to_context else np.arange(len(self.ids))

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return self.lengths or (len(self.ids),)


def add_special_tokens(tokenizer: Tokenizer, first: list[int], second: list[int] | None) -> tuple[list[int], list[int]]:
    """Special tokens around a text or a pair.

    Tokenizers of causal models add none: there a pair would run together, so the end-of-text token parts it
    (as GPT's delimiter does, Radford et al. 2018, §3.3), and a text without tokens would be no sequence.
    """
    if tokenizer.num_special_tokens_to_add(second is not None):
        return tokenizer.build_inputs_with_special_tokens(first, second)
    end = separator_id(tokenizer)
    ids = first if second is None else [*first, end, *second]
    return ids or [end], [0] * max(len(ids), 1)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words as pieces, and the word of each. A word without any (zero-width) is unknown."""
    pieces, word_index = (np.array(a, dtype=np.int64) for a in tokenizer.encode_words(words))
    missing_words = np.setdiff1d(np.arange(len(words)), word_index)
    places = np.searchsorted(word_index, missing_words)
    unknown = first_not_none(tokenizer.special_token_ids.unk, tokenizer.special_token_ids.eos)
    return np.insert(pieces, places, unknown), np.insert(word_index, places, missing_words)


def separator_id(tokenizer: Tokenizer) -> int:
    """The id that ends a text, where the tokenizer itself puts none."""
    specials = tokenizer.special_token_ids
    return first_not_none(specials.sep, specials.eos, specials.unk)


def first_not_none(*ids: int | None) -> int:
    return next((i for i in ids if i is not None), 0)
