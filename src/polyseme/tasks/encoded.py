"""Examples as a model reads them: token ids with special tokens, and the positions that are predicted."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from torch import Tensor

from polyseme.errors import ConfigError, DataError
from polyseme.families.family import Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.layers.frozen_features import FeatureStore
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.nn.trunks.base import TrunkConfig
from polyseme.objectives.batch import Batch
from polyseme.text.tokenizer import Tokenizer

Target = np.ndarray | int | float | None  # the ids of an example's labels, or the number to predict
Examples = Sequence[Any]


@dataclass(frozen=True, eq=False)
class TextTargets:
    """Targets of a model that answers in text: start token, end token, and the candidate answers with the end token.

    There are no candidates where the answer is a span of the text.
    """

    start_id: int
    end_id: int
    answer_ids: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """Token ids, and what the task needs to build targets and predictions.

    `positions` are, for tagging, the piece that predicts each word that was not cut off; for question answering, the
    pieces of the context; for coreference, [n, 6], the rows of `nn/heads/coreference.py` for each word.

    An example may be several concatenated sequences of `lengths` tokens, or several windows with one `example_index`.
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
    regions: np.ndarray | None = None  # [regions, values] of the image that the text is about

    @property
    def candidate_positions(self) -> np.ndarray:
        """The positions that the start or end of an answer is chosen among."""
        return np.append(self.positions, self.null_position) if self.restrict_to_context else np.arange(len(self.ids))

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """The length of each sequence of the example."""
        return self.lengths or (len(self.ids),)

    def select_tokens(self, ids: np.ndarray, index: np.ndarray) -> Self:
        """Return the example, without a target, with only the tokens at some positions, which have these ids now."""
        is_selected = np.isin(self.positions, index)
        return replace(
            self,
            ids=ids,
            segments=self.segments[index],
            positions=np.searchsorted(index, self.positions[is_selected]),
            target=None,
            offsets=None if self.offsets is None else self.offsets[is_selected],
            null_position=int(np.searchsorted(index, self.null_position)),
        )


@dataclass(frozen=True)
class AnswerCells:
    """Where the logits of an encoded example, [rows, labels], have the score of an answer.

    There is one cell per column, in the row of the token at its position; without positions there is one row. A cell is
    a log-probability among the `labels` of its row or among the `tokens` of its column, or a `number`; cells are added.
    """

    name: str
    columns: tuple[int, ...]
    positions: tuple[int, ...] = ()
    kind: Literal["labels", "tokens", "number"] = "labels"

    def score(self, logits: Tensor, encoded: EncodedExample, index: np.ndarray) -> Tensor:
        """Return the score in the logits of an example that `select_tokens` selected by this index."""
        rows = np.searchsorted(index, self.positions) if self.positions else np.array([0])
        if self.kind == "tokens":
            logits = logits - logits[encoded.candidate_positions.tolist()].logsumexp(0)
        elif self.kind == "labels":
            rows = np.searchsorted(encoded.positions, rows) if self.positions else rows
            logits = logits.log_softmax(-1)
        return logits[rows.tolist(), list(self.columns)].double().sum()


Encoded = Sequence[EncodedExample]
IdsAndSegments = tuple[list[int], list[int]]  # token ids with special tokens, and their segments


class RowScores(NamedTuple):
    """Scores of the rows of one encoded example, [rows, labels], and the best label of each row, [rows]."""

    logits: np.ndarray
    labels: np.ndarray


class Codec(ABC):
    """How examples are put to a model as token ids, and how its scores become predictions."""

    scores_tokens: ClassVar[bool] = False  # whether models have to read the same tokens to be averaged
    max_windows: ClassVar[int | None] = None  # encoded examples whose scores are held at a time; None: all

    allows_lm_loss: ClassVar[bool] = False  # whether GPT is fine-tuned on such tasks with an auxiliary LM loss
    supports_attribution: bool = False  # whether `answer_logits`, `input_texts` and `locate_answer` are implemented

    def compares_pairs(self, examples: Sequence[Any]) -> bool:
        """Return whether neither text of a pair comes before the other, as far as the task can tell."""
        return False

    def with_pair_order(self, reads_both_orders: bool) -> Self:
        """Return the task with `symmetric_pairs` set, if it has that setting and it is None."""
        return self

    @property
    @abstractmethod
    def head_name(self) -> str:
        """The name in a model of the head that is trained."""

    @abstractmethod
    def heads(self, family: Family, trunk: TrunkConfig) -> dict[str, HeadConfig]:
        """Return the heads that are put on a trunk of the family."""

    def target(self, example: Any) -> Target:
        """Encode the gold answer; None if there is none."""
        raise NotImplementedError

    def encode(
        self, examples: Examples, tokenizer: Tokenizer, max_len: int, truncate: bool = False, use_labels: bool = True
    ) -> Iterable[EncodedExample]:
        """Encode examples as token ids; one example may give several windows.

        An example that is longer than `max_len` is an error, or is cut if `truncate` is set. Without `use_labels` there
        are no targets, and labels that are present are ignored.
        """
        targets = [self.target(e) if use_labels else None for e in examples]
        if max_len - tokenizer.num_special_tokens_to_add(pair=True) < 2:
            raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
        encoded = list(self.encode_truncated(examples, targets, tokenizer, max_len))
        long = [(example, length) for example, (_, length) in zip(examples, encoded) if length > max_len]
        if long and not truncate:
            first, length = long[0]
            raise ConfigError(
                f"{len(long)} of {len(examples)} examples are longer than {max_len} tokens, the first at "
                f"{first.location} with {length}: truncate them, or use a model that reads more"
            )
        return [replace(e, is_truncated=n > max_len, example_index=i) for i, (e, n) in enumerate(encoded)]

    def encode_truncated(
        self, examples: Examples, targets: Sequence[Target], tokenizer: Tokenizer, max_len: int
    ) -> Iterator[tuple[EncodedExample, int]]:
        """Yield each example cut to `max_len` tokens, and its length before that; `encode` checks the lengths."""
        raise NotImplementedError

    @abstractmethod
    def collate(self, encoded: Encoded) -> tuple[Batch, list[int]]:
        """Pack encoded examples, sorted by length; also return which of them stands at each position."""

    def row_groups(self, encoded: Encoded, starts: np.ndarray) -> Tensor | None:
        """Return the number of the softmax that each row is part of, -1 if of none; None if each row has its own."""
        return None

    def collate_step(self, encoded: Encoded, max_tokens: int) -> list[Batch]:
        """Return the micro-batches of a training step, each of at most `max_tokens` tokens."""
        parts = token_budget_batches([len(e.ids) for e in encoded], max_tokens)
        return [self.collate([encoded[i] for i in part])[0] for part in parts]

    def num_tokens(self, encoded: EncodedExample) -> int:
        """Return how much of a batch's token budget an encoded example takes when it is scored."""
        return len(encoded.ids)

    @abstractmethod
    def predict(self, model: Model, encoded: Encoded) -> list[Any]:
        """Return the raw scores of each encoded example, read as one batch."""

    @abstractmethod
    def decode(self, scored: Iterable[tuple[EncodedExample, Any]], examples: Sequence[Any]) -> list[Any]:
        """Turn scores into one prediction for each example; windows of one example are merged."""

    def answer_logits(self, model: Model, encoded: Encoded) -> list[Tensor]:
        """Return the logits [rows, labels] of each encoded example, with gradients, as `locate_answer` counts them."""
        raise NotImplementedError

    def input_texts(self, example: Any) -> Sequence[str | tuple[str, ...]]:
        """Return the texts of an example, or its words, in the order of the user's arguments."""
        raise NotImplementedError

    def locate_answer(self, answer: str | None, example: Any, encoded: EncodedExample, prediction: Any) -> AnswerCells:
        """Return where the logits of an encoded example have the score of an answer, by default of the prediction."""
        raise NotImplementedError

    def locate_contrast(
        self, contrast: str, answer: AnswerCells, example: Any, encoded: EncodedExample, prediction: Any
    ) -> AnswerCells:
        """Return where the score of another answer to the same question is."""
        return self.locate_answer(contrast, example, encoded, prediction)

    @abstractmethod
    def average(self, scores: Sequence[Sequence[Any]], models: Sequence[Model], encoded: Encoded) -> list[Any]:
        """Combine the scores that several models give to the same examples into scores that `decode` reads."""

    @property
    @abstractmethod
    def ensemble_key(self) -> tuple[Any, ...]:
        """What models of an ensemble must have in common."""


def add_special_tokens(tokenizer: Tokenizer, first: list[int], second: list[int] | None = None) -> IdsAndSegments:
    """Add special tokens to a text or a pair.

    Tokenizers of causal models add none. For them the end-of-text token separates a pair, like GPT's delimiter (Radford
    et al. 2018, §3.3), and stands for an empty text.
    """
    if tokenizer.num_special_tokens_to_add(second is not None):
        return tokenizer.build_inputs_with_special_tokens(first, second)
    end = separator_id(tokenizer)
    ids = first if second is None else [*first, end, *second]
    return ids or [end], [0] * max(len(ids), 1)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode words as pieces, and return the word of each piece. A word without pieces (zero-width) is unknown."""
    pieces, word_of = (np.array(a, dtype=np.int64) for a in tokenizer.encode_words(words))
    lost = np.setdiff1d(np.arange(len(words)), word_of)
    places = np.searchsorted(word_of, lost)
    special = tokenizer.special_token_ids
    unknown = special.unk if special.unk is not None else special.eos or 0
    return np.insert(pieces, places, unknown), np.insert(word_of, places, lost)


def separator_id(tokenizer: Tokenizer) -> int:
    """Return the id that ends a text if the tokenizer adds none."""
    special = tokenizer.special_token_ids
    return next((i for i in (special.sep, special.eos, special.unk) if i is not None), 0)


def truncate_longest(texts: Sequence[list[int]], max_tokens: int, message: str = "no room for text") -> None:
    """Drop tokens from the end, always of the longest text, the last of several, as BERT's code does one by one."""

    def total(level: int) -> int:
        return sum(min(len(text), level) for text in texts)

    level = bisect_right(range(max(map(len, texts)) + 1), max_tokens, key=total) - 1
    if level < 1:
        raise DataError(message)
    num_longer = max_tokens - total(level)  # texts that keep one token more
    for text in texts:
        is_longer = len(text) > level and num_longer > 0
        del text[level + is_longer :]
        num_longer -= is_longer


def softmax(logits: np.ndarray, axis: int) -> np.ndarray:
    """Return probabilities in double precision."""
    logits = logits.astype(np.float64)
    powers = np.exp(logits - logits.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def mean_rows(scores: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Average over models; where one cut more words off than another, over the rows that all have."""
    means = []
    for each in zip(*scores, strict=True):
        size = min(map(len, each))
        means.append(np.mean([one[:size] for one in each], axis=0))
    return means
