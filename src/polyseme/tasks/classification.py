"""Classification: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.tasks.base import BaselineFn, Prediction
from polyseme.tasks.baselines.texts import linear_classifier, majority_label
from polyseme.tasks.encoded import label_id
from polyseme.tasks.metrics.standard import classification_metrics
from polyseme.tasks.sequence import TextExample, TextTask, require_labels, softmax
from polyseme.tasks.text_templates import TextToTextTemplate


@dataclass(frozen=True)
class Classification(Prediction):
    """A label and the probability of each."""

    label: str
    probabilities: dict[str, float]

    @property
    def value(self) -> str:
        return self.label


@dataclass(frozen=True)
class LabelTask(TextTask):
    """What both kinds of classification share."""

    default_metric: ClassVar[str] = "accuracy"

    labels: tuple[str, ...] = ()

    def fit(self, examples: Sequence[TextExample]) -> Self:
        return self.replace(labels=tuple(require_labels(examples)))

    @property
    def output_labels(self) -> tuple[str, ...]:
        return self.labels

    @cached_property
    def _label_ids(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    def target(self, example: TextExample) -> int | None:
        return None if example.label is None else label_id(example.label, self._label_ids, example.location)

    def decode_one(self, logits: np.ndarray, example: TextExample) -> Classification:
        shares = softmax(logits, axis=-1)[0]
        return Classification(self.labels[shares.argmax()], dict(zip(self.labels, shares.tolist())))

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        return classification_metrics(gold, predicted, self.labels)

    def baselines(self) -> dict[str, BaselineFn]:
        return {"majority": majority_label, "linear": linear_classifier}

    def to_record(self, example: TextExample, prediction: Classification) -> dict[str, Any]:
        texts = {"text": example.text} | ({} if example.pair is None else {"pair": example.pair})
        return texts | {"label": prediction.label, "probabilities": prediction.probabilities}

    def extra_columns(self, predictions: Sequence[Classification]) -> list[str]:
        return [f"p({label})" for label in self.labels]

    def extra_cells(self, prediction: Classification) -> list[str]:
        return [f"{share:.6g}" for share in prediction.probabilities.values()]

    def candidate_answers(self, template: TextToTextTemplate, example: TextExample) -> Sequence[str]:
        return [template.label_word(label) for label in self.labels]


@dataclass(frozen=True)
class ClassificationTask(LabelTask):
    """One label for a text; a second text is read where an example has one."""

    task_type: ClassVar[str] = "classification"
    supports_text: ClassVar[bool] = True
    text_prefix: ClassVar[str] = "classification"
    text_fields: ClassVar[str] = "text: {text}"

    @classmethod
    def from_heads(cls, heads: Mapping[str, HeadConfig]) -> Self | None:
        head = heads.get(cls.head_type)
        return cls(labels=head.labels) if isinstance(head, ClassificationHeadConfig) and head.labels else None


@dataclass(frozen=True)
class PairClassificationTask(LabelTask):
    """One label for a pair of texts.

    With `symmetric_pairs` a pair is read twice, with either text first, and the two states are added: for tasks where
    neither text comes before the other (Radford et al. 2018, §3.3, similarity).
    """

    task_type: ClassVar[str] = "pair_classification"
    supports_text: ClassVar[bool] = True
    text_prefix: ClassVar[str] = "pair"
    text_fields: ClassVar[str] = "text1: {text} text2: {pair}"
    feature_networks: ClassVar[tuple[str, ...]] = ("esim", "biattentive", "linear", "bilstm")
    pair_column: ClassVar[Literal["absent", "optional", "required"]] = "required"

    symmetric_pairs: bool = False

    @property
    def reads_both_orders(self) -> bool:
        return self.symmetric_pairs
