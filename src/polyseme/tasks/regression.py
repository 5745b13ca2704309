"""Regression: a number for a text, or for a pair of texts (similarity)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from polyseme.errors import ConfigError
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.base import BaselineFn, Prediction, require_labels
from polyseme.tasks.baselines.texts import linear_regressor, mean_number
from polyseme.tasks.encoded import AnswerCells, EncodedExample, Examples
from polyseme.tasks.metrics.diagnostics import diagnose_numbers
from polyseme.tasks.metrics.standard import regression_metrics
from polyseme.tasks.readers.rows import parse_float
from polyseme.tasks.sequence import TextExample, TextTask
from polyseme.tasks.text_templates import TextToTextTemplate


@dataclass(frozen=True)
class Regression(Prediction):
    """A number."""

    value_field = "number"

    number: float


@dataclass(frozen=True)
class RegressionTask(TextTask):
    """A number, learned by squared error.

    With `symmetric_pairs` a pair is read in both orders, and the two states are added. None is true for GPT (Radford et
    al. 2018, §3.3, similarity), otherwise false.
    """

    task_type = "regression"
    verb = "classify"
    default_metric = "spearman"
    required_packages = {"scipy": "the correlation of numbers"}  # noqa: RUF012
    text_format = "regression text1: {text} text2: {pair}"
    loss_unit = "squared error"
    averages_logits = True
    supports_attribution = True
    pair_column = "optional"
    feature_networks = ("bilstm_max", "esim", "biattentive", "linear", "bilstm")
    target_dtype = np.float32
    no_target = np.nan
    value_name: ClassVar[str] = "value"  # of the number that is attributed

    symmetric_pairs: bool | None = None

    @classmethod
    def check_label(cls, label: str | None, location: str) -> None:
        if label:
            parse_float(label, location)

    def compares_pairs(self, examples: Sequence[TextExample]) -> bool:
        return all(example.pair is not None for example in examples)

    def fit(self, examples: Sequence[TextExample]) -> Self:
        require_labels(sorted({e.label for e in examples if e.label is not None}), examples)
        return self

    @classmethod
    def from_head(cls, head: ClassificationHeadConfig) -> Self | None:
        return None if head.labels else cls()

    def target(self, example: TextExample) -> float | None:
        return None if example.label is None else parse_float(example.label, example.location)

    def decode_one(self, logits: np.ndarray, example: TextExample) -> Regression:
        return Regression(float(logits[0, 0]))

    def locate_answer(
        self, answer: str | None, example: TextExample, encoded: EncodedExample, prediction: Regression
    ) -> AnswerCells:
        if answer not in (None, self.value_name):
            raise ConfigError(f"`label` is {answer!r}, and the model predicts one number: use {self.value_name!r}")
        return AnswerCells(self.value_name, (0,), kind="number")

    def locate_contrast(self, contrast: str, *arguments: Any) -> AnswerCells:
        raise ConfigError("`contrast` has no effect: the model predicts one number")

    def score(self, gold: Sequence[str | float], predicted: Sequence[float]) -> dict[str, float]:
        return regression_metrics(gold, predicted)

    def diagnose(self, train: Examples, dev: Examples, predictions: Sequence[Any]) -> Diagnostics:
        return diagnose_numbers(dev, [self.target(e) or 0.0 for e in dev], [p.number for p in predictions])

    def answer_strength(self, prediction: Regression, answer: float) -> float:
        """Return the predicted number: a word that raises it has a positive weight."""
        return prediction.number

    def baselines(self) -> dict[str, BaselineFn]:
        return {"mean": mean_number, "linear": linear_regressor}

    def with_text_template(self, name: str, examples: Sequence[TextExample]) -> Self:
        """Return the task with a template; without a range of its own, it gets one fitted to the examples."""
        task = super().with_text_template(name, examples)
        assert task.text_template is not None
        if task.text_template.step:
            return task
        numbers = [number for e in examples if (number := self.target(e)) is not None]
        template = task.text_template.with_range(min(numbers, default=0.0), max(numbers, default=0.0))
        return task.replace(text_template=template)

    def candidate_answers(self, template: TextToTextTemplate, example: TextExample) -> Sequence[str]:
        return template.number_texts

    def candidate_target(self, template: TextToTextTemplate, example: TextExample) -> int | None:
        number = self.target(example)
        return None if number is None else template.nearest_number_index(number)

    def candidate_scores(self, template: TextToTextTemplate, log_probs: np.ndarray) -> np.ndarray:
        return np.array([[float(template.number_texts[log_probs.argmax()])]])
