"""Tasks with one answer per text or pair of texts: what classification, regression and multiple choice share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.io.atomic import write_text
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.tasks.base import Example, RowScores, TaskConfig, Words
from polyseme.tasks.encoded import EncodedExample, add_special_tokens, check_lengths, check_room
from polyseme.tasks.readers.rows import (
    Columns,
    RowFormat,
    RowReader,
    flatten_cell,
    from_record,
    iter_table_or_json,
    parse_label,
    parse_text,
)
from polyseme.tasks.readers.words import split_words
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.tasks.text_to_text import TextToText
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextExample(Example):
    """A text or a pair of texts, and its label as it is written."""

    text: str
    pair: str | None = None
    label: str | None = None
    id: str = ""

    @property
    def gold(self) -> str | None:
        return self.label


@dataclass(frozen=True)
class SequenceTask(TaskConfig):
    """One answer per example, read from one pooled vector for each of its sequences."""

    head_type: ClassVar[str] = "classify"
    feature_networks: ClassVar[tuple[str, ...]] = ("biattentive", "linear", "bilstm")
    text_prefix: ClassVar[str] = ""  # how the task is written as text: its name, and its fields
    text_fields: ClassVar[str] = ""
    target_dtype: ClassVar[Any] = np.int64
    no_target: ClassVar[float] = IGNORE_INDEX

    @property
    def reads_both_orders(self) -> bool:
        """Whether a pair is read twice, with either text first, and the two states are added."""
        return False

    @abstractmethod
    def text_sequences(self, example: Any) -> list[tuple[str, str | None]]:
        """Return the texts of each sequence that an example is read as."""

    def encode(
        self,
        examples: Sequence[Any],
        tokenizer: Tokenizer,
        max_len: int,
        truncate: bool = False,
        use_labels: bool = True,
    ) -> list[EncodedExample]:
        targets = [self.target(e) if use_labels else None for e in examples]
        check_room(tokenizer, max_len)
        sequences = [self.text_sequences(e) for e in examples]
        texts = [text for each in sequences for pair in each for text in pair if text is not None]
        ids = iter(tokenizer.encode_batch(texts))
        encoded, lengths = [], []
        for each, target in zip(sequences, targets):
            parts, longest = [], 0
            for _, other in each:
                first = next(ids).tolist()
                second = None if other is None else next(ids).tolist()
                length = len(add_special_tokens(tokenizer, first, second)[0])
                _truncate_longer(first, second, length - max_len)
                parts.append(add_special_tokens(tokenizer, first, second))
                longest = max(longest, length)
            joined, segments = (np.array(list(chain.from_iterable(part)), dtype=np.int64) for part in zip(*parts))
            sizes = tuple(len(part) for part, _ in parts) if len(parts) > 1 else ()
            encoded.append(EncodedExample(joined, segments, np.arange(0), target, sizes))
            lengths.append(longest)
        return check_lengths(examples, encoded, lengths, max_len, truncate)

    def batch_targets(
        self, encoded: Sequence[EncodedExample], ranks: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        labels = [self.no_target if e.target is None else e.target for e in encoded]
        return ranks, np.array(labels, self.target_dtype)

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Sequence[Any]) -> list[Any]:
        return [self.decode_one(scores.logits, example) for (_, scores), example in zip(scored, examples)]

    @abstractmethod
    def decode_one(self, logits: np.ndarray, example: Any) -> Any:
        """Turn the scores of one example into its prediction."""

    def average(self, scores: Sequence[Sequence[RowScores]], models: Any, encoded: Any) -> list[RowScores]:
        each = [[self.to_probabilities(s.logits) for s in one] for one in scores]
        return [RowScores(self.from_probabilities(p), np.empty(0)) for p in mean_rows(each)]

    def average_predictions(self, probabilities: Sequence[Sequence[np.ndarray]], examples: Sequence[Any]) -> list[Any]:
        """Return one prediction for each example from the probabilities of several models, [rows, labels] each.

        ULMFiT averages one that reads forward and one that reads backward (Howard and Ruder 2018, §3.4).
        """
        means = mean_rows(probabilities)
        return [self.decode_one(self.from_probabilities(mean), e) for mean, e in zip(means, examples, strict=True)]

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return scores as numbers that can be averaged: probabilities over labels."""
        return softmax(logits, axis=-1)

    def from_probabilities(self, probabilities: np.ndarray) -> np.ndarray:
        """Reverse `to_probabilities`."""
        logits: np.ndarray = np.log(np.maximum(probabilities, 1e-300))
        return logits

    def word_sequences(self, example: Any) -> list[tuple[Words, ...]]:
        sequences = []
        for pair in self.text_sequences(example):
            texts = tuple(split_words(text) for text in pair if text is not None)
            if not all(texts):
                raise DataError(f"{example.location}: a text has no words")
            sequences.append(texts)
        return sequences

    def feature_head(self) -> HeadConfig:
        return ClassificationHeadConfig(self.output_labels, "pooled")

    @property
    def codec(self) -> Any:
        return self if self.text_template is None else TextToText(self)

    def with_text_template(self, name: str, examples: Sequence[Any]) -> Self:
        if self.reads_both_orders:
            raise ConfigError("symmetric_pairs adds two states, and a model that answers in text has none to add")
        return self.replace(text_template=TextToTextTemplate.find(name or self.text_prefix, self.text_fields))

    def candidate_answers(self, template: TextToTextTemplate, example: Any) -> Sequence[str]:
        """Return the texts that a text-to-text model chooses from, if the task `supports_text`."""
        raise UnsupportedError(f"{self.task_type} cannot be answered in text")

    def candidate_target(self, template: TextToTextTemplate, example: Any) -> int | None:
        """Return the index of the right one of `candidate_answers`."""
        target = self.target(example)
        return None if target is None else int(target)

    def candidate_scores(self, template: TextToTextTemplate, log_probs: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of `candidate_answers` as scores that `decode_one` reads."""
        return log_probs[None]


@dataclass(frozen=True)
class TextTask(SequenceTask):
    """One answer per `TextExample`, read from tables or JSON lines."""

    example_type: ClassVar[type[Example]] = TextExample
    output_suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".tsv")
    pair_column: ClassVar[Literal["absent", "optional", "required"]] = "absent"

    def text_sequences(self, example: TextExample) -> list[tuple[str, str | None]]:
        text, other = example.text, example.pair
        if other is None and (self.pair_column == "required" or self.reads_both_orders):
            raise DataError(f"{example.location}: there is no second text, which this task reads")
        return [(text, other), (other, text)] if self.reads_both_orders and other else [(text, other)]

    def batch_targets(
        self, encoded: Sequence[EncodedExample], ranks: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = super().batch_targets(encoded, ranks, starts)
        return (rows.reshape(-1, 2) if self.reads_both_orders else rows), labels

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        return iter_table_or_json(path, columns, cls.task_type, cls.row_format(columns, needs_labels))

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: Columns, needs_labels: bool) -> Any:
        return from_record(record, location, cls.row_format(columns, needs_labels))

    @classmethod
    def row_format(cls, columns: Columns, needs_labels: bool) -> RowFormat:
        """Return the columns of the task, and how a row of them becomes an example."""
        names = {"text": columns.text, "pair": columns.pair, "label": columns.label}
        if cls.pair_column == "absent":
            del names["pair"]
        optional: tuple[str, ...] = () if needs_labels else ("label",)
        if cls.pair_column == "optional" and columns.pair == Columns().pair:  # unless it was asked for
            optional += ("pair",)

        def build(location: str, values: dict[str, Any]) -> TextExample:
            if "pair" in optional and values.get("pair") in ("", None):
                values = {role: value for role, value in values.items() if role != "pair"}
            text, *pair = (
                parse_text(values[role], location, names[role]) for role in ("text", "pair") if role in values
            )
            label = parse_label(values.get("label"), location, names["label"], needs_labels)
            cls.check_label(label, location)
            return TextExample(location, text, pair[0] if pair else None, label)

        return RowFormat(names, optional, build)

    @classmethod
    def check_label(cls, label: str | None, location: str) -> None:
        """Raise an error if a label cannot be one of this task."""

    @classmethod
    def parse_value(cls, value: Any, location: str) -> TextExample:
        parts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
        if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
            raise DataError(f"{location} is {str(value)[:40]!r}: a text or a pair of texts is needed")
        if len(parts) > 2:
            raise DataError(f"{location} has {len(parts)} parts: the model reads a text or a pair of texts")
        return TextExample(location, *parts)

    def write_as(self, path: Path, examples: Sequence[TextExample], predictions: Sequence[Any]) -> None:
        has_pairs = any(e.pair is not None for e in examples)
        table = [["text", *(["pair"] if has_pairs else []), "label", *self.extra_columns(predictions)]]
        for example, prediction in zip(examples, predictions, strict=True):
            texts = [example.text, *([example.pair or ""] if has_pairs else [])]
            table.append([*map(flatten_cell, texts), str(prediction.value), *self.extra_cells(prediction)])
        write_text(path, "".join("\t".join(row) + "\n" for row in table))

    def extra_columns(self, predictions: Sequence[Any]) -> list[str]:
        """Return the columns of a table beside the label."""
        return []

    def extra_cells(self, prediction: Any) -> list[str]:
        return []


def require_labels(examples: Sequence[Any], min_labels: int = 2) -> list[str]:
    """Return the distinct labels of a training set in order; too few leave nothing to learn."""
    labels = sorted({e.label for e in examples if e.label is not None})
    if len(labels) < min_labels:
        shown = f"only the label {labels[0]!r}" if labels else "no labels"
        raise DataError(f"the training data has {shown} ({examples[0].location} …): there is nothing to learn")
    return labels


def softmax(logits: np.ndarray, axis: int) -> np.ndarray:
    """Probabilities in double precision."""
    logits = logits.astype(np.float64)
    powers = np.exp(logits - logits.max(axis, keepdims=True))
    probabilities: np.ndarray = powers / powers.sum(axis, keepdims=True)
    return probabilities


def mean_rows(scores: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Average over models; where one cut more words off than another, over the rows that all have."""
    means = []
    for each in zip(*scores, strict=True):
        size = min(map(len, each))
        means.append(np.mean([one[:size] for one in each], axis=0))
    return means


def _truncate_longer(first: list[int], second: list[int] | None, excess: int) -> None:
    """Drop tokens from the end, one by one, always of the longer side, as BERT's code does."""
    for _ in range(excess):
        (first if second is None or len(first) > len(second) else second).pop()
