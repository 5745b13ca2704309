"""Several models of one task as one: their probabilities are averaged (numbers, and scores of spans, too)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.evaluation.predict import MetricsFn, compute_logits, encode_examples, evaluate_predictions
from polyseme.tasks.encoded import EncodedExample
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import best_span, merge_window_answers
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.text_to_text import generate_spans
from polyseme.weights.folder import ModelFolder

CHECKPOINT_PATTERNS = (
    "checkpoints/seed-*/step-*",
    "seeds/*",
    "step-*",
)  # where a run, or a seed of it, keeps several models


def find_models(path: Path) -> list[Path]:
    """A model folder itself; of a run, or of the checkpoints of a seed, all models that were kept."""
    matches = (
        []
        if (path / "config.json").exists()
        else [sorted(path.glob(pattern), key=_numbers) for pattern in CHECKPOINT_PATTERNS]
    )
    return next((paths for paths in matches if paths), [path])


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", f"{path.parent.name} {path.name}")]


def predict_ensemble(
    folders: Sequence[ModelFolder],
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    use_labels: bool = False,
) -> tuple[Task, list[Prediction]]:
    """What the models say together. They may differ in family and vocabulary, but for spans, whose scores are by
    token. Of a CRF it is the probability of each tag by itself that counts."""
    if len(folders) < 2:
        raise ConfigError("an ensemble is of two models or more")
    tasks = [Task.from_model(folder.model, folder.metadata) for folder in folders]
    first = tasks[0]
    if first.task_type == "coreference":
        raise UnsupportedError("clusters of several models cannot be averaged: no ensemble of coreference")
    for folder, task in zip(folders, tasks):
        if (task.task_type, task.labels) != (first.task_type, first.labels):
            raise UnsupportedError(f"{folder.path} answers another task than {folders[0].path}: no ensemble")
        if first.task_type == "span" and bool(task.text_template) != bool(first.text_template):
            raise UnsupportedError(
                f"of {folder.path} and {folders[0].path} one writes answers, one points at them: no ensemble"
            )
    probabilities: list[list[np.ndarray]] = []
    windows: list[EncodedExample] = []
    for folder, task in zip(folders, tasks):
        encoded = list(encode_examples(folder, task, examples, max_len, truncate, use_labels))
        if first.task_type == "span" and windows and not _same_tokens(windows, encoded):
            raise UnsupportedError(f"{folder.path} reads other tokens than {folders[0].path}: no ensemble of spans")
        windows = encoded
        if first.task_type == "span" and first.text_template:
            continue
        probabilities.append(
            [_to_probabilities(scores, task) for scores in compute_logits(folder.model, task, encoded)]
        )
    if first.task_type == "span":
        max_answer_tokens = first.span.max_answer_tokens
        if first.text_template:
            window_answers = generate_spans([folder.model for folder in folders], windows, max_answer_tokens)
        else:
            window_answers = [
                best_span(window, scores, max_answer_tokens) for window, scores in zip(windows, _average(probabilities))
            ]
        answers = merge_window_answers(
            zip([window.example_index for window in windows], window_answers), examples, first.span
        )
        return first, [Prediction(span=span) for span in answers]
    return first, average_probabilities(first, probabilities, examples)


def average_probabilities(
    task: Task, probabilities: Sequence[Sequence[np.ndarray]], examples: Sequence[Example]
) -> list[Prediction]:
    """Of the probabilities (or numbers) that several models give the same examples, [rows, labels] each, one answer.

    ULMFiT does so with one that reads forwards and one that reads backwards (Howard and Ruder 2018, §3.4).
    """
    means = _average(probabilities)
    mean_scores = [mean if task.task_type == "regression" else np.log(np.maximum(mean, 1e-300)) for mean in means]
    return [task.decode(example_scores, example) for example_scores, example in zip(mean_scores, examples, strict=True)]


def evaluate_ensemble(
    folders: Sequence[ModelFolder],
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    extra_metrics: MetricsFn | None = None,
) -> dict[str, float]:
    """The metrics of what they say together."""
    task, predictions = predict_ensemble(folders, examples, max_len, truncate, use_labels=True)
    return evaluate_predictions(task, examples, predictions, extra_metrics)


def _to_probabilities(scores: np.ndarray, task: Task) -> np.ndarray:
    """Scores as what can be averaged: probabilities over labels, or over the choices of a question."""
    scores = scores.astype(np.float64)
    if task.task_type in ("regression", "span"):
        return scores
    axis = 0 if task.task_type == "choice" else -1
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    probabilities: np.ndarray = powers / powers.sum(axis, keepdims=True)
    return probabilities


def _average(probabilities: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Where one vocabulary cut more words off than another, of those that all have."""
    means = []
    for per_model in zip(*probabilities, strict=True):
        n = min(map(len, per_model))
        means.append(np.mean([scores[:n] for scores in per_model], axis=0))
    return means


def _same_tokens(a: Sequence[EncodedExample], b: Sequence[EncodedExample]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x.ids, y.ids) for x, y in zip(a, b))
