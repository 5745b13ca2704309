"""Predictions of a task model, in the order of the input; used by loaded models and by fine-tuning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.progress import progress
from polyseme.tasks import load_task, task_from_json
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.encoded import EncodedExample
from polyseme.weights.folder import ModelFolder

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 16384


def predict(
    folder: ModelFolder,
    examples: Sequence[Any],
    task: TaskConfig | None = None,
    max_len: int | None = None,
    truncate: bool | None = None,
    use_labels: bool = False,
) -> list[Any]:
    """Return one prediction for each example, by the folder's task unless another is passed.

    `max_len` and `truncate` are those of fine-tuning unless they are set.
    """
    task = task or load_task(folder.metadata, folder.model.config)
    encoded = encode_examples(folder, task, examples, max_len, truncate, use_labels)
    return predict_encoded(folder.model, task, examples, encoded)


def predict_values(folder: ModelFolder, values: Sequence[Any], tasks: Iterable[type[TaskConfig]] = ()) -> list[Any]:
    """Return one prediction for each plain value: a text, a pair of texts, a list of words."""
    task = load_task(folder.metadata, folder.model.config, tasks)
    return predict(folder, task.read(values, needs_labels=False), task)


def answer_question(folder: ModelFolder, context: str, question: str, tasks: Iterable[type[TaskConfig]] = ()) -> Any:
    """Return the span of the context that answers the question."""
    task = load_task(folder.metadata, folder.model.config, tasks)
    if not task.answers_questions:
        raise UnsupportedError(f"{folder.path} cannot find answers in a text: it was trained for {task.task_type}")
    return predict(folder, task.read([(context, question)], needs_labels=False), task)[0]


def encode_examples(
    folder: ModelFolder,
    task: TaskConfig,
    examples: Sequence[Any],
    max_len: int | None = None,
    truncate: bool | None = None,
    use_labels: bool = False,
) -> Iterator[EncodedExample]:
    """Encode examples for the model of a folder, with the settings of its fine-tuning; report how many are cut."""
    settings = folder.metadata.get("settings", {})
    limit = folder.model.config.trunk.embeddings.max_len
    max_len = max_len or settings.get("max_len") or limit
    if max_len > limit:
        raise ConfigError(f"max_len {max_len} is longer than the model reads ({limit})")
    truncate = settings.get("truncate", False) if truncate is None else truncate
    encoded = task.codec.encode(examples, folder.tokenizer, max_len, truncate, use_labels)
    return _report_truncated(encoded, len(examples), task.describe_limit(max_len))


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

    Always in the precision of the weights: a model evaluated after training and one loaded again say the same.
    """
    codec = task.codec
    scores: list[Any] = [None] * len(encoded)
    show = len(encoded) > 1 and codec.max_windows is None
    with eval_mode(model), progress("predict", len(encoded), "examples", show) as bar:
        for members in token_budget_batches([codec.num_tokens(e) for e in encoded], max_batch_tokens):
            for i, each in zip(members, codec.predict(model, [encoded[i] for i in members])):
                scores[i] = each
            bar.advance(len(members))
    return scores


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Turn dropout off for a while."""
    was_training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(was_training)


def _report_truncated(encoded: Iterable[EncodedExample], total: int, limit: str) -> Iterator[EncodedExample]:
    """Yield the same; at the end say how many examples were cut."""
    truncated = set()
    for each in encoded:
        if each.is_truncated:
            truncated.add(each.example_index)
        yield each
    if truncated:
        share = f"{len(truncated) / total:.1%}"
        logger.warning(f"{len(truncated)} of {total} examples ({share}) are cut to {limit}")


def select_task(folder: ModelFolder, name: str = "", kinds: Iterable[type[TaskConfig]] = ()) -> ModelFolder:
    """Return a folder of several tasks as if it had been fine-tuned for one of them; any other folder as it is."""
    tasks = folder.metadata.get("tasks")
    if not isinstance(tasks, dict):
        return folder
    if name not in tasks:
        wrong = (
            f"no task {name!r}; {suggest(name, tasks)}" if name else f"several tasks, {', '.join(tasks)}: choose one"
        )
        raise DataError(f"{folder.path} answers {wrong}")
    task = task_from_json(tasks[name]["task"], kinds)
    model = folder.model.with_single_head(task.replace(name=name).codec.head_name, task.codec.head_name)
    return replace(folder, model=model, metadata=tasks[name])
