"""Multiple choice: which of several texts goes with a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from polyseme.errors import DataError
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.tasks.base import BaselineFn, Example, Prediction
from polyseme.tasks.baselines.texts import linear_choice, majority_label
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.metrics.standard import accuracy
from polyseme.tasks.readers.rows import (
    JSON_LINES_SUFFIXES,
    Columns,
    RowFormat,
    RowReader,
    data_suffix,
    from_record,
    iter_json_lines,
    parse_text,
    parse_texts,
    read_lines,
    wrong_suffix,
)
from polyseme.tasks.sequence import SequenceTask, require_labels, softmax
from polyseme.tasks.text_templates import TextToTextTemplate


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A text with several choices; the label is the index of the right one, from 0."""

    text: str
    choices: tuple[str, ...]
    label: str | None = None
    id: str = ""
    accepted_answers: tuple[str, ...] = ()  # all texts that are right, where several are

    @property
    def gold(self) -> str | None:
        return self.label


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """The index of the chosen text, and the probability of each."""

    label: str
    probabilities: dict[str, float]

    @property
    def value(self) -> str:
        return self.label


@dataclass(frozen=True)
class MultipleChoiceTask(SequenceTask):
    """Each choice is read with the text, and a softmax over their scores decides (Radford et al. 2018, §3.3)."""

    task_type: ClassVar[str] = "multiple_choice"
    example_type: ClassVar[type[Example]] = ChoiceExample
    default_metric: ClassVar[str] = "accuracy"
    supports_text: ClassVar[bool] = True
    text_prefix: ClassVar[str] = "choice"
    text_fields: ClassVar[str] = "{choices} text: {text}"
    head_type: ClassVar[str] = "choice"
    feature_networks: ClassVar[tuple[str, ...]] = ("esim", "biattentive", "linear", "bilstm")

    @property
    def output_labels(self) -> tuple[str, ...]:
        return ("score",)

    @classmethod
    def iter_rows(cls, path: Path, columns: Columns, needs_labels: bool) -> Iterator[RowReader]:
        """Read JSON lines: a text (or `prompt`), a list of `choices`, and the right one or its index from 0."""
        if data_suffix(path) not in JSON_LINES_SUFFIXES:
            raise wrong_suffix(path, cls.task_type, JSON_LINES_SUFFIXES)
        lines = read_lines(path, columns.encoding)
        return iter_json_lines(
            path, lines, lambda record, location: cls.from_record(record, location, columns, needs_labels)
        )

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: Columns, needs_labels: bool) -> Any:
        text = "prompt" if columns.text not in record and "prompt" in record else columns.text
        names = {"text": text, "choices": "choices", "label": columns.label}

        def build(location: str, values: dict[str, Any]) -> ChoiceExample:
            choices = parse_texts(values["choices"], location, "choices")
            if len(choices) < 2:
                raise DataError(f"{location}: there is one choice, which leaves nothing to choose")
            label = _parse_index(values.get("label"), choices, location, columns.label, needs_labels)
            return ChoiceExample(location, parse_text(values["text"], location, columns.text), choices, label)

        return from_record(record, location, RowFormat(names, () if needs_labels else ("label",), build))

    @classmethod
    def parse_value(cls, value: Any, location: str) -> ChoiceExample:
        if isinstance(value, list | tuple) and len(value) == 2:
            text, choices = value
            if isinstance(choices, list | tuple) and len(choices) > 1:
                return ChoiceExample(location, text, tuple(choices))
        raise DataError(f"{location} is {str(value)[:40]!r}: a text and a list of choices is needed")

    def fit(self, examples: Sequence[ChoiceExample]) -> Self:
        require_labels(examples, min_labels=1)
        return self

    @classmethod
    def from_heads(cls, heads: Mapping[str, HeadConfig]) -> Self | None:
        return cls() if isinstance(heads.get(cls.head_type), ClassificationHeadConfig) else None

    def target(self, example: ChoiceExample) -> int | None:
        return None if example.label is None else int(example.label)

    def text_sequences(self, example: ChoiceExample) -> list[tuple[str, str | None]]:
        return [(example.text, choice) for choice in example.choices]

    def batch_targets(
        self, encoded: Sequence[EncodedExample], ranks: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The label of each row is the row of the right choice."""
        sizes = [len(e.sequence_lengths) for e in encoded]
        firsts = np.cumsum([0, *sizes])
        right = [first + e.target if e.target is not None else IGNORE_INDEX for first, e in zip(firsts, encoded)]
        return ranks, np.repeat(right, sizes)

    def num_rows(self, encoded: EncodedExample) -> int:
        return len(encoded.sequence_lengths)

    def decode_one(self, logits: np.ndarray, example: ChoiceExample) -> ChoicePrediction:
        shares = softmax(logits.T, axis=-1)[0]
        return ChoicePrediction(str(shares.argmax()), {str(i): share for i, share in enumerate(shares.tolist())})

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits, axis=0)

    def score(self, gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
        return {"accuracy": accuracy(gold, predicted)}

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_label, "linear": linear_choice}

    def to_record(self, example: ChoiceExample, prediction: ChoicePrediction) -> dict[str, Any]:
        label, probabilities = int(prediction.label), prediction.probabilities
        return {"text": example.text, "choices": example.choices, "label": label, "probabilities": probabilities}

    def candidate_answers(self, template: TextToTextTemplate, example: ChoiceExample) -> Sequence[str]:
        return template.choice_answers(example.choices)

    def candidate_scores(self, template: TextToTextTemplate, log_probs: np.ndarray) -> np.ndarray:
        return log_probs[:, None]


def _parse_index(label: Any, choices: tuple[str, ...], location: str, column: str, needs_labels: bool) -> str | None:
    """Return the index of the right choice, which a label names by its text or its number."""
    index = None
    if isinstance(label, str) and choices.count(label) == 1:
        index = choices.index(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        index = label
    elif isinstance(label, str) and label.isdecimal():
        index = int(label)
    if label in (None, ""):
        if needs_labels:
            raise DataError(f"{location}: the label ({column}) is missing")
        return None
    if index is None or not 0 <= index < len(choices):
        shown = f"the label is {str(label)[:40]!r}"
        raise DataError(f"{location}: {shown}: one of the choices is needed, or 0 to {len(choices) - 1}")
    return str(index)
