"""Metrics of a task model on labeled examples."""

from collections.abc import Sequence
from typing import Any

from polyseme.inference.prediction import predict
from polyseme.tasks import load_task
from polyseme.tasks.base import MetricsFn, TaskConfig, require_gold
from polyseme.weights.folder import ModelFolder


def evaluate(
    folder: ModelFolder,
    examples: Sequence[Any],
    task: TaskConfig | None = None,
    max_len: int | None = None,
    truncate: bool | None = None,
    extra_metrics: MetricsFn | None = None,
) -> dict[str, float]:
    """Return the metrics of the folder's task on labeled examples; a label that was not trained on is an error."""
    task = task or load_task(folder.metadata, folder.model.config)
    require_gold(examples)
    predictions = predict(folder, examples, task, max_len=max_len, truncate=truncate, use_labels=True)
    return task.metrics(examples, predictions, extra_metrics)
