"""Metrics of task models on labeled examples, and ensembles, which average the scores of several models of one task."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.inference.prediction import encode_examples, eval_mode, predict, score_encoded
from polyseme.inference.results import check_answers
from polyseme.tasks import load_task
from polyseme.tasks.base import MetricsFn, TaskConfig, require_gold
from polyseme.tasks.encoded import EncodedExample
from polyseme.weights.folder import ModelFolder

# where a run, or a seed of it, keeps several models
CHECKPOINT_PATTERNS = ("checkpoints/seed-*/step-*", "seeds/*", "step-*")


def evaluate(
    folder: ModelFolder, examples: Sequence[Any], task: TaskConfig | None = None, extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """Return the metrics of the folder's task on labeled examples; a label that was not trained on is an error."""
    task = task or load_task(folder.metadata, folder.model.config)
    require_gold(examples)
    return task.metrics(examples, predict(folder, examples, task, use_labels=True), extra_metrics)


def find_models(path: Path) -> list[Path]:
    """Return a model folder itself, or all models that a run or the checkpoints of a seed hold."""
    if not (path / "config.json").exists():
        for pattern in CHECKPOINT_PATTERNS:
            if paths := sorted(path.glob(pattern), key=_numbers):
                return paths
    return [path]


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", f"{path.parent.name} {path.name}")]


def predict_ensemble(
    folders: Sequence[ModelFolder], examples: Sequence[Any], truncate: bool | None = None, use_labels: bool = False
) -> tuple[TaskConfig, list[Any]]:
    """Return the task and the joint predictions of several models.

    The models may differ in family and vocabulary, unless the task scores tokens.
    """
    if len(folders) < 2:
        raise ConfigError("an ensemble needs two models or more")
    tasks = [load_task(folder.metadata, folder.model.config) for folder in folders]
    first = tasks[0].codec
    for folder, task in zip(folders, tasks):
        if task.codec.ensemble_key != first.ensemble_key:
            raise UnsupportedError(f"{folder.path} answers another task than {folders[0].path}: no ensemble")
    scores: list[list[Any]] = []
    encoded: list[EncodedExample] = []
    for folder, task in zip(folders, tasks):
        each = list(encode_examples(folder, task, examples, None, truncate, use_labels))
        if first.scores_tokens and encoded and [e.ids.tolist() for e in encoded] != [e.ids.tolist() for e in each]:
            raise UnsupportedError(f"{folder.path} reads other tokens than {folders[0].path}: no ensemble of spans")
        encoded = each
        scores.append(score_encoded(folder.model, task, encoded))
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(eval_mode(folder.model))
        mean_scores = first.average(scores, [folder.model for folder in folders], encoded)
    return tasks[0], check_answers(first.decode(zip(encoded, mean_scores), examples), "the ensemble")
