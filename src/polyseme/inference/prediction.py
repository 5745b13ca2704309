"""Predictions of a task model, in the order of the input, and their latency; used by loaded models and fine-tuning."""

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, ModelError, suggest
from polyseme.inference.results import check_answers
from polyseme.nn.model import Model
from polyseme.nn.packing import map_batches
from polyseme.tasks import load_task, task_from_json
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.encoded import EncodedExample
from polyseme.weights.folder import ModelFolder

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 16384
TruncationCounts = dict[str, tuple[int, int]]  # model -> number of truncated examples, max_len
LATENCY_SAMPLES = 8  # number of examples that are predicted one by one


def predict(folder: ModelFolder, examples: Sequence[Any], task: TaskConfig | None = None, **options: Any) -> list[Any]:
    """Return one prediction for each example, by the folder's task unless another is passed.

    Options are those of `encode_examples`.
    """
    task = task or load_task(folder.metadata, folder.model.config)
    predictions = predict_encoded(folder.model, task, examples, encode_examples(folder, task, examples, **options))
    return check_answers(predictions, folder.path)


def encode_examples(
    folder: ModelFolder,
    task: TaskConfig,
    examples: Sequence[Any],
    max_len: int | None = None,
    truncate: bool | None = None,
    use_labels: bool = False,
) -> Iterator[EncodedExample]:
    """Encode examples for the model of a folder; log how many are truncated.

    `max_len` and `truncate` are those of fine-tuning unless they are set.
    """
    settings = folder.metadata.get("settings", {})
    if not isinstance(settings, dict) or not isinstance(settings.get("max_len", 0), int):
        raise ModelError(f"{folder.path}/polyseme.json: the settings are not those of fine-tuning")
    limit = folder.model.config.trunk.embeddings.max_len
    max_len = max_len or settings.get("max_len") or limit
    if max_len > limit:
        raise ConfigError(f"max_len {max_len} is longer than the model reads ({limit})")
    truncate = settings.get("truncate", False) if truncate is None else truncate
    encoded = task.codec.encode(examples, folder.tokenizer, max_len, truncate, use_labels)
    return _count_truncated(encoded, len(examples), f"{folder.path}", max_len)


_truncation_counts: ContextVar[TruncationCounts | None] = ContextVar("truncation_counts", default=None)


def _count_truncated(
    encoded: Iterable[EncodedExample], total: int, model: str, max_len: int
) -> Iterator[EncodedExample]:
    truncated = set()
    for each in encoded:
        if each.is_truncated:
            truncated.add(each.example_index)
        yield each
    counts = _truncation_counts.get()
    if counts is None:
        log_truncated({model: (len(truncated), max_len)}, total)
    else:
        counts[model] = counts.get(model, (0, 0))[0] + len(truncated), max_len


@contextmanager
def count_truncated(counts: TruncationCounts) -> Iterator[None]:
    """Count truncated examples in the context instead of logging a warning for each call."""
    token = _truncation_counts.set(counts)
    try:
        yield
    finally:
        _truncation_counts.reset(token)


def log_truncated(counts: TruncationCounts, total: int) -> None:
    """Log how many examples each model truncates."""
    for number, max_len in counts.values():
        if number:
            logger.warning(f"{number} of {total} examples ({number / total:.1%}) are truncated (max_len {max_len})")


def predict_encoded(
    model: Model, task: TaskConfig, examples: Sequence[Any], encoded: Iterable[EncodedExample]
) -> list[Any]:
    """Return the prediction for each example from its encoded form.

    A task with windows holds the scores of a few hundred at a time: only answers are kept.
    """
    codec = task.codec

    def scored() -> Iterator[tuple[EncodedExample, Any]]:
        remaining = iter(encoded)
        while chunk := list(islice(remaining, codec.max_windows)):
            yield from zip(chunk, score_encoded(model, task, chunk))

    predictions: list[Any] = codec.decode(scored(), examples)
    return predictions


@torch.inference_mode()
def score_encoded(
    model: Model, task: TaskConfig, encoded: Sequence[EncodedExample], max_batch_tokens: int = MAX_BATCH_TOKENS
) -> list[Any]:
    """Return the raw scores of each encoded example, computed in packed batches.

    Always in the precision of the weights, so that a model predicts the same after training and after loading.
    """
    codec = task.codec

    def score_batch(index: np.ndarray) -> list[Any]:
        scores: list[Any] = codec.predict(model, [encoded[i] for i in index])
        return scores

    lengths, show = [codec.num_tokens(e) for e in encoded], len(encoded) > 1 and codec.max_windows is None
    with eval_mode(model):
        return map_batches(score_batch, lengths, max_batch_tokens, "predict", "examples", show)


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Turn dropout off for a while."""
    was_training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(was_training)


def select_task(folder: ModelFolder, name: str = "", kinds: Iterable[type[TaskConfig]] = ()) -> ModelFolder:
    """Return a folder of several tasks as if it had been fine-tuned for one of them; any other folder unchanged."""
    if not isinstance(folder.metadata.get("tasks"), dict):
        return folder
    model, metadata = select_head(folder.path, folder.model, folder.metadata["tasks"], name, kinds)
    return replace(folder, model=model, metadata=metadata)


def select_head(
    path: Path, model: Model, tasks: dict[str, Any], name: str, kinds: Iterable[type[TaskConfig]]
) -> tuple[Model, dict[str, Any]]:
    """Return a model of several tasks with the head of one, under its usual name, and the metadata of that task."""
    if name not in tasks:
        problem = (
            f"no task {name!r}; {suggest(name, tasks)}" if name else f"several tasks, {', '.join(tasks)}: choose one"
        )
        raise DataError(f"{path} answers {problem}")
    task = task_from_json(tasks[name]["task"], kinds)
    selected = model.with_single_head(task.replace(name=name).codec.head_name, task.codec.head_name)
    return selected, tasks[name]


def median_latency_ms(predict_one: Callable[[int], object], num_examples: int) -> float:
    """Return the median time of a prediction in milliseconds, over a few evenly spaced examples after a warm-up."""
    size = min(LATENCY_SAMPLES, num_examples)
    indices = [i * num_examples // size for i in range(size)]
    predict_one(indices[0])
    times = []
    for i in indices:
        start = time.perf_counter()
        predict_one(i)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def model_latency_ms(
    model: Model, task: TaskConfig, examples: Sequence[Any], encoded: Sequence[EncodedExample]
) -> float:
    """Return the latency on examples that are encoded already; a long one is read in all its windows."""

    def predict_one(i: int) -> object:
        windows = [replace(e, example_index=0) for e in encoded if e.example_index == i]
        return predict_encoded(model, task, [examples[i]], windows)

    return median_latency_ms(predict_one, len(examples))
