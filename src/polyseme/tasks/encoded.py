"""An example as a model reads it: token ids with special tokens around them, and where its predictions stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.nn.layers.frozen_features import FeatureStore
from polyseme.text.tokenizer import Tokenizer

Target = np.ndarray | int | float | None  # the ids of an example's labels, or the number to predict


@dataclass(frozen=True, eq=False)
class TextTargets:
    """For a model that answers in text: the token that targets start with, the one they end with, and the answers that
    there are, each with its end token. There are none where an answer is a span of the text."""

    start_id: int
    end_id: int
    answer_ids: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """Token ids, and what the task needs to make targets and predictions of them.

    `positions` are, for tagging, the first pieces of the words that were not cut off; for question answering, the
    pieces of the context; for coreference, [n, 6], the rows of `nn/heads/coreference.py` for each word.

    An example may be several sequences, end to end: `lengths` has theirs. Or it may be several windows, each of which
    stands alone and has the `example_index` of its example.
    """

    ids: np.ndarray  # int64 [n]
    segments: np.ndarray  # int64 [n]
    positions: np.ndarray  # int64
    target: Target
    lengths: tuple[int, ...] = ()
    is_truncated: bool = False
    example_index: int = 0
    offsets: np.ndarray | None = None  # int64 [len(positions), 2], the characters of the context that each covers
    null_position: int = 0  # the position that stands for "no answer"
    restrict_to_context: bool = False  # whether an answer is chosen among `positions` and `null_position` alone
    text_targets: TextTargets | None = None  # then a target is the index of an answer, or a span of `ids`
    features: FeatureStore | None = None  # then `ids` are positions of this store

    @property
    def candidate_positions(self) -> np.ndarray:
        """The positions that the start or end of an answer is chosen among."""
        return np.append(self.positions, self.null_position) if self.restrict_to_context else np.arange(len(self.ids))

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return self.lengths or (len(self.ids),)


def check_room(tokenizer: Tokenizer, max_len: int) -> None:
    """Raise an error if special tokens leave no room for text."""
    if max_len - tokenizer.num_special_tokens_to_add(pair=True) < 2:
        raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")


def check_lengths(
    examples: Sequence[Any],
    encoded: Sequence[EncodedExample],
    lengths: Sequence[int],
    max_len: int,
    truncate: bool,
) -> list[EncodedExample]:
    """Number encoded examples and mark those that were cut; without `truncate` these are an error.

    `lengths` are the numbers of tokens before truncation.
    """
    long = [(example, length) for example, length in zip(examples, lengths) if length > max_len]
    if long and not truncate:
        first, length = long[0]
        raise ConfigError(
            f"{len(long)} of {len(examples)} examples are longer than {max_len} tokens, the first at "
            f"{first.location} with {length}: truncate them, or use a model that reads more"
        )
    return [
        replace(one, is_truncated=length > max_len, example_index=i)
        for i, (one, length) in enumerate(zip(encoded, lengths))
    ]


def label_id(label: str, label_ids: Mapping[str, int], location: str) -> int:
    """Return the index of a label; one that is not among those of training is an error."""
    if label not in label_ids:
        known = suggest(label, label_ids)
        raise DataError(f"{location}: the label {label!r} was never seen in training; {known}")
    return label_ids[label]


def add_special_tokens(tokenizer: Tokenizer, first: list[int], second: list[int] | None) -> tuple[list[int], list[int]]:
    """Add special tokens to a text or a pair.

    Tokenizers of causal models add none: there a pair would run together, so the end-of-text token parts it
    (as GPT's delimiter does, Radford et al. 2018, §3.3), and a text without tokens would be no sequence.
    """
    if tokenizer.num_special_tokens_to_add(second is not None):
        return tokenizer.build_inputs_with_special_tokens(first, second)
    end = separator_id(tokenizer)
    ids = first if second is None else [*first, end, *second]
    return ids or [end], [0] * max(len(ids), 1)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode words as pieces, and return the word of each. A word without any (zero-width) is unknown."""
    pieces, word_of = (np.array(a, dtype=np.int64) for a in tokenizer.encode_words(words))
    lost = np.setdiff1d(np.arange(len(words)), word_of)
    places = np.searchsorted(word_of, lost)
    unknown = first_not_none(tokenizer.special_token_ids.unk, tokenizer.special_token_ids.eos)
    return np.insert(pieces, places, unknown), np.insert(word_of, places, lost)


def separator_id(tokenizer: Tokenizer) -> int:
    """Return the id that ends a text, where the tokenizer itself puts none."""
    special = tokenizer.special_token_ids
    return first_not_none(special.sep, special.eos, special.unk)


def first_not_none(*ids: int | None) -> int:
    return next((i for i in ids if i is not None), 0)
