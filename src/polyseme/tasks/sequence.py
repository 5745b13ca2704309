"""Tasks with one answer per text or pair of texts: what classification, regression and multiple choice share."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.tasks.base import Example, RowsAndLabels, TaskConfig, Words
from polyseme.tasks.encoded import Codec, Encoded, EncodedExample, RowScores, add_special_tokens, truncate_longest
from polyseme.tasks.metrics.occlusion import PredictFn, Weights, occlude_words
from polyseme.tasks.readers import rows
from polyseme.tasks.readers.lines import iter_lines
from polyseme.tasks.readers.records import RECORD_FORMATS
from polyseme.tasks.text_templates import TextToTextTemplate
from polyseme.tasks.text_to_text import TextToText
from polyseme.text.tokenizer import Tokenizer

TextPair = tuple[str, str | None]


@dataclass(frozen=True)
class TextExample(Example):
    """A text or a pair of texts, and its label as it is written."""

    text: str
    pair: str | None = None
    label: str | None = None
    id: str = ""


@dataclass(frozen=True)
class SequenceTask(TaskConfig):
    """One answer per example, read from one pooled vector for each of its sequences."""

    head_type = "classify"
    allows_lm_loss = True
    pipeline_tag = "text-classification"
    feature_networks: ClassVar[tuple[str, ...]] = ("bilstm_max", "biattentive", "linear", "bilstm")
    target_dtype: ClassVar[Any] = np.int64
    no_target: ClassVar[float] = IGNORE_INDEX

    @property
    def reads_both_orders(self) -> bool:
        """Whether a pair is read twice, with either text first, and the two states are added (`symmetric_pairs`)."""
        return bool(getattr(self, "symmetric_pairs", None))

    def with_pair_order(self, reads_both_orders: bool) -> Self:
        is_unset = hasattr(self, "symmetric_pairs") and self.symmetric_pairs is None
        return self.replace(symmetric_pairs=reads_both_orders) if is_unset else self

    @abstractmethod
    def text_sequences(self, example: Any) -> list[TextPair]:
        """Return the texts of each sequence that an example is read as."""

    def encode_truncated(
        self, examples: Sequence[Any], targets: Sequence[Any], tokenizer: Tokenizer, max_len: int
    ) -> Iterator[tuple[EncodedExample, int]]:
        sequences = [self.text_sequences(e) for e in examples]
        texts = [text for pairs in sequences for pair in pairs for text in pair if text is not None]
        token_ids = iter(tokenizer.encode_batch(texts))
        for pairs, target in zip(sequences, targets):
            parts, longest = [], 0
            for pair in pairs:
                ids = [next(token_ids).tolist() for text in pair if text is not None]
                length = len(add_special_tokens(tokenizer, *ids)[0])
                if length > max_len:
                    truncate_longest(ids, sum(map(len, ids)) + max_len - length)
                parts.append(add_special_tokens(tokenizer, *ids))
                longest = max(longest, length)
            joined, segments = (np.array([*chain(*part)], dtype=np.int64) for part in zip(*parts))
            sizes = tuple(len(part) for part, _ in parts) if len(parts) > 1 else ()
            yield EncodedExample(joined, segments, np.arange(0), target, sizes), longest

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        labels = [self.no_target if e.target is None else e.target for e in encoded]
        return ranks, np.array(labels, self.target_dtype)

    def decode(self, scored: Iterable[tuple[EncodedExample, RowScores]], examples: Sequence[Any]) -> list[Any]:
        return [self.decode_one(scores.logits, example) for (_, scores), example in zip(scored, examples)]

    @abstractmethod
    def decode_one(self, logits: np.ndarray, example: Any) -> Any:
        """Turn the scores of one example into its prediction."""

    def attribute(self, example: Any, prediction: Any, predict: PredictFn) -> Weights:
        if self.answer_strength(prediction, prediction.value) is None:
            return (), ()
        fields = [name for name in ("text", "pair") if getattr(example, name, None)]

        def strength(other: Any) -> float:
            return self.answer_strength(other, prediction.value) or 0.0

        return occlude_words(example, fields, prediction, predict, strength)

    def answer_strength(self, prediction: Any, answer: Any) -> float | None:
        """Return how strongly a prediction stands for an answer, by default its probability; None if it has none."""
        share: float | None = getattr(prediction, "probabilities", {}).get(answer)
        return share

    def input_texts(self, example: Any) -> list[str]:
        return [text for pair in self.text_sequences(example)[:1] for text in pair if text is not None]

    def word_sequences(self, example: Any) -> list[tuple[Words, ...]]:
        pairs = self.text_sequences(example)
        sequences = [tuple(rows.split_words(text) for text in pair if text is not None) for pair in pairs]
        if not all(map(all, sequences)):
            raise DataError(f"{example.location}: a text has no words")
        return sequences

    def feature_head(self) -> HeadConfig:
        return ClassificationHeadConfig(self.output_labels, "pooled")

    @property
    def codec(self) -> Codec:
        return self if self.text_template is None else TextToText(self)

    def with_text_template(self, name: str, examples: Sequence[Any]) -> Self:
        if self.reads_both_orders:
            raise ConfigError("symmetric_pairs adds two states, and a model that answers in text has none to add")
        default_name, _, text_fields = self.text_format.partition(" ")
        return self.replace(text_template=TextToTextTemplate.find(name or default_name, text_fields))

    def candidate_answers(self, template: TextToTextTemplate, example: Any) -> Sequence[str]:
        """Return the texts that a text-to-text model chooses from, if the task has a `text_format`."""
        raise NotImplementedError

    def candidate_target(self, template: TextToTextTemplate, example: Any) -> int | None:
        """Return the index of the correct one of `candidate_answers`."""
        target = self.target(example)
        return None if target is None else int(target)

    def candidate_scores(self, template: TextToTextTemplate, log_probs: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of `candidate_answers` as scores that `decode_one` reads."""
        return log_probs[None]


@dataclass(frozen=True)
class TextTask(SequenceTask):
    """One answer per `TextExample`, read from tables or JSON lines."""

    example_type = TextExample
    record_suffixes = tuple(RECORD_FORMATS)
    pair_column: ClassVar[Literal["absent", "optional", "required"]] = "absent"

    def select_usage_example(self, train: Sequence[TextExample]) -> Any:
        text = "The film was a delight."
        return text if all(example.pair is None for example in train) else (text, "I liked the film.")

    def text_sequences(self, example: TextExample) -> list[TextPair]:
        text, other = example.text, example.pair
        if other is None and (self.pair_column == "required" or self.reads_both_orders):
            raise DataError(f"{example.location}: this task reads pairs, and there is no second text")
        return [(text, other), (other, text)] if self.reads_both_orders and other else [(text, other)]

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        pooled_rows, labels = super().batch_targets(encoded, ranks, starts)
        return (pooled_rows.reshape(-1, 2) if self.reads_both_orders else pooled_rows), labels

    @classmethod
    def iter_rows(cls, path: Path, columns: rows.Columns, needs_labels: bool) -> Iterator[rows.RowReader]:
        format = cls.record_format(path, columns)
        if not format:
            raise rows.wrong_suffix(path, cls.task_type, cls.record_suffixes)
        if cls.pair_column == "absent":
            columns.reject(path, f"{cls.task_type}, which reads one text", "pair")
        return rows.iter_row_format(path, columns, format, partial(cls.row_format, needs_labels=needs_labels))

    @classmethod
    def record_format(cls, path: Path, columns: rows.Columns) -> str:
        """Return the format of a file; `.txt` is a table if its first line is a header, else lines of text."""
        format = super().record_format(path, columns)
        if format != "text" or columns.format:
            return format
        top = next(iter_lines(path, columns.encoding))
        names = ("text", columns.text, columns.remembered and columns.remembered.text)
        return "tsv" if "\t" in top or top in names or not columns.has_header else "text"

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: rows.Columns, needs_labels: bool) -> Any:
        return rows.from_record(record, location, cls.row_format(columns, needs_labels))

    @classmethod
    def row_format(cls, columns: rows.Columns, needs_labels: bool) -> rows.RowFormat:
        """Return the columns of the task, and how a row of them becomes an example."""
        names = {role: getattr(columns, role) or role for role in ("text", "pair", "label")}
        if cls.pair_column == "absent":
            del names["pair"]
        if columns.id:
            names["id"] = columns.id
        optional: tuple[str, ...] = () if needs_labels else ("label",)
        if cls.pair_column == "optional" and not columns.pair:  # a pair column that was chosen is required
            optional += ("pair",)

        def build(location: str, values: dict[str, Any]) -> TextExample:
            text, pair = rows.parse_text(values["text"], location, names["text"]), None
            if "pair" in values and (values["pair"] not in ("", None) or "pair" not in optional):
                pair = rows.parse_text(values["pair"], location, names["pair"])
            label = rows.parse_label(values.get("label"), location, names["label"], needs_labels)
            cls.check_label(label, location)
            return TextExample(location, text, pair, label, str(values["id"]) if "id" in values else "")

        return rows.RowFormat(names, optional, build)

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

    def prediction_columns(self, example: TextExample, prediction: Any) -> dict[str, Any]:
        probabilities = getattr(prediction, "probabilities", {})
        if not probabilities:
            return {"prediction": prediction.value}
        share = probabilities[prediction.value]
        return {"prediction": prediction.value, "probability": share, "probabilities": probabilities}
