"""Classification: one label for a text, or for a pair of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from polyseme.errors import ConfigError, suggest
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import BaselineFn, LabelSetTask, Prediction, require_labels
from polyseme.tasks.baselines.texts import linear_classifier, majority_label
from polyseme.tasks.encoded import AnswerCells, EncodedExample, Examples, softmax
from polyseme.tasks.metrics.diagnostics import diagnose_labels
from polyseme.tasks.metrics.standard import classification_metrics, default_positive_label
from polyseme.tasks.sequence import TextExample, TextTask
from polyseme.tasks.text_templates import TextToTextTemplate


@dataclass(frozen=True)
class Classification(Prediction):
    """A label and the probability of each."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class LabelTask(LabelSetTask, TextTask):
    """What both kinds of classification share.

    The metric `f1` is that of the `positive_label`, by default the second of two labels in alphabetical order; of more
    labels there is none, unless it is set.
    """

    default_metric = "accuracy"
    supports_attribution = True
    verb = "classify"

    positive_label: str = field(default="", kw_only=True)

    def fit(self, examples: Sequence[TextExample]) -> Self:
        labels = sorted({e.label for e in examples if e.label is not None})
        require_labels(labels, examples)
        if self.positive_label and self.positive_label not in labels:
            hint = suggest(self.positive_label, labels)
            raise ConfigError(f"`positive_label` is {self.positive_label!r}, which is no label of the data; {hint}")
        return self.replace(labels=tuple(labels))

    @property
    def f1_label(self) -> str:
        """The label whose F1 is reported; empty if there is none."""
        return self.positive_label or default_positive_label(self.labels)

    def describe_data(self, train: Sequence[TextExample], dev: Sequence[TextExample]) -> dict[str, Any]:
        return {"positive_label": self.f1_label} if self.f1_label else {}

    def target(self, example: TextExample) -> int | None:
        return None if example.label is None else self.label_id(example.label, example.location)

    def decode_one(self, logits: np.ndarray, example: TextExample) -> Classification:
        shares = softmax(logits, axis=-1)[0]
        return Classification(self.labels[shares.argmax()], dict(zip(self.labels, shares.tolist())))

    def locate_answer(
        self, answer: str | None, example: TextExample, encoded: EncodedExample, prediction: Classification
    ) -> AnswerCells:
        label = prediction.label if answer is None else answer
        return AnswerCells(label, (self.label_id(label),))

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return classification_metrics(gold, predicted, self.labels, positive_label=self.positive_label)

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_labels([e.label for e in train if e.label is not None], dev, predictions, self.labels)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_label, "linear": linear_classifier}

    def candidate_answers(self, template: TextToTextTemplate, example: TextExample) -> Sequence[str]:
        return [template.label_words.get(label, label) for label in self.labels]


@dataclass(frozen=True)
class ClassificationTask(LabelTask):
    """One label for a text; a second text is read where an example has one."""

    task_type = "classification"
    text_format = "classification text: {text}"

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self | None:
        return cls(labels=head.labels) if head.labels else None


@dataclass(frozen=True)
class PairClassificationTask(LabelTask):
    """One label for a pair of texts.

    With `symmetric_pairs` a pair is read twice, with either text first, and the two states are added: for tasks where
    neither text comes before the other (Radford et al. 2018, §3.3, similarity). None is true for GPT and the data sets
    MRPC and QQP, otherwise false.
    """

    task_type = "pair_classification"
    text_format = "pair text1: {text} text2: {pair}"
    feature_networks = ("bilstm_max", "esim", "biattentive", "linear", "bilstm")
    pair_column = "required"

    symmetric_pairs: bool | None = None
