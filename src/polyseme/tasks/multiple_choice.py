"""Multiple choice: which of several texts goes with a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from polyseme.errors import DataError
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.objectives.batch import IGNORE_INDEX
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import BaselineFn, Example, Prediction, RowsAndLabels, require_labels
from polyseme.tasks.baselines.texts import linear_choice, majority_label
from polyseme.tasks.encoded import Encoded, EncodedExample, Examples, softmax
from polyseme.tasks.metrics.diagnostics import diagnose_choices
from polyseme.tasks.metrics.standard import accuracy
from polyseme.tasks.readers import rows
from polyseme.tasks.sequence import SequenceTask, TextPair
from polyseme.tasks.text_templates import TextToTextTemplate


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A text with several choices; the label is the index of the correct one, from 0."""

    text: str
    choices: tuple[str, ...]
    label: str | None = None
    id: str = ""
    accepted_answers: tuple[str, ...] = ()  # all correct texts, where there are several


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """The index of the chosen text, and the probability of each."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class MultipleChoiceTask(SequenceTask):
    """Each choice is read with the text, and a softmax over their scores decides (Radford et al. 2018, §3.3)."""

    task_type = "multiple_choice"
    verb = "choose"
    usage_example = ("It rained all day.", ("The street is wet.", "The street is dry."))
    pipeline_tag = "multiple-choice"
    example_type = ChoiceExample
    default_metric = "accuracy"
    text_format = "choice {choices} text: {text}"
    head_type = "choice"
    feature_networks = ("esim", "biattentive", "linear", "bilstm")
    output_labels = ("score",)
    record_suffixes = rows.NESTED_SUFFIXES

    @classmethod
    def iter_rows(cls, path: Path, columns: rows.Columns, needs_labels: bool) -> Iterator[rows.RowReader]:
        """Read records: a text (or `prompt`), a list of `choices`, and the correct one or its index from 0."""
        columns.reject(path, cls.task_type, "pair")
        return cls.iter_record_rows(path, columns, needs_labels)

    @classmethod
    def from_record(cls, record: dict[str, Any], location: str, columns: rows.Columns, needs_labels: bool) -> Any:
        text, label_name = columns.text or "text", columns.label or "label"
        text = "prompt" if text not in record and "prompt" in record else text
        names = {"text": text, "choices": "choices", "label": label_name}
        optional = () if needs_labels else ("label",)
        values = rows.from_record(record, location, rows.RowFormat(names, optional, lambda _, values: values))
        choices = rows.parse_texts(values["choices"], location, "choices")
        if len(choices) < 2:
            raise DataError(f"{location}: there is one choice, which leaves nothing to choose")
        label = _parse_index(values.get("label"), choices, location, label_name, needs_labels)
        return ChoiceExample(location, rows.parse_text(values["text"], location, text), choices, label)

    @classmethod
    def parse_value(cls, value: Any, location: str) -> ChoiceExample:
        if isinstance(value, list | tuple) and len(value) == 2:
            text, choices = value
            if isinstance(choices, list | tuple) and len(choices) > 1:
                return ChoiceExample(location, text, tuple(choices))
        raise DataError(f"{location} is {str(value)[:40]!r}: a text and a list of choices is needed")

    def fit(self, examples: Sequence[ChoiceExample]) -> Self:
        require_labels([e.label for e in examples if e.label is not None], examples, min_labels=1)
        return self

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self:
        return cls()

    def target(self, example: ChoiceExample) -> int | None:
        return None if example.label is None else int(example.label)

    def text_sequences(self, example: ChoiceExample) -> list[TextPair]:
        return [(example.text, choice) for choice in example.choices]

    def batch_targets(self, encoded: Encoded, ranks: np.ndarray, starts: np.ndarray) -> RowsAndLabels:
        """Return all rows; the label of each is the row of the correct choice."""
        sizes = [len(e.sequence_lengths) for e in encoded]
        firsts = np.cumsum([0, *sizes])
        correct = [first + e.target if e.target is not None else IGNORE_INDEX for first, e in zip(firsts, encoded)]
        return ranks, np.repeat(correct, sizes)

    def row_groups(self, encoded: Encoded, starts: np.ndarray) -> torch.Tensor:
        """Number the examples; one choice of each is right."""
        sizes = [len(e.sequence_lengths) for e in encoded]
        return torch.from_numpy(np.repeat(np.arange(len(encoded)), sizes))

    def num_rows(self, encoded: EncodedExample) -> int:
        return len(encoded.sequence_lengths)

    def decode_one(self, logits: np.ndarray, example: ChoiceExample) -> ChoicePrediction:
        shares = softmax(logits.T, axis=-1)[0]
        return ChoicePrediction(str(shares.argmax()), {str(i): share for i, share in enumerate(shares.tolist())})

    def to_probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits, axis=0)

    def score(self, gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
        return {"accuracy": accuracy(gold, predicted)}

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_choices(dev, predictions)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_label, "linear": linear_choice}

    def prediction_columns(self, example: ChoiceExample, prediction: ChoicePrediction) -> dict[str, Any]:
        """Return the index of the chosen text, its probability, and those of all, a list."""
        index, probabilities = int(prediction.label), list(prediction.probabilities.values())
        return {"prediction": index, "probability": probabilities[index], "probabilities": probabilities}

    def candidate_answers(self, template: TextToTextTemplate, example: ChoiceExample) -> Sequence[str]:
        return template.choice_answers(example.choices)

    def candidate_scores(self, template: TextToTextTemplate, log_probs: np.ndarray) -> np.ndarray:
        return log_probs[:, None]


def _parse_index(label: Any, choices: tuple[str, ...], location: str, column: str, needs_labels: bool) -> str | None:
    """Return the index of the correct choice, which a label names by its text or its number."""
    if label in (None, ""):
        if needs_labels:
            raise DataError(f"{location}: the label ({column}) is missing")
        return None
    if isinstance(label, str) and choices.count(label) == 1:
        return str(choices.index(label))
    if not str(label).isdecimal() or int(label) >= len(choices):
        shown = f"the label is {str(label)[:40]!r}"
        raise DataError(f"{location}: {shown}: one of the choices is needed, or 0 to {len(choices) - 1}")
    return str(int(label))
