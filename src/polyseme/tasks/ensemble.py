"""Several models of one task as one: their probabilities are averaged (numbers, and scores of spans, too)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyseme.errors import UserError
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example
from polyseme.tasks.predict import Extra, encode_for, logits, measure
from polyseme.tasks.spans import best_spans
from polyseme.tasks.task import Prediction, Task
from polyseme.weights.folder import ModelFolder


def ensemble(
    folders: Sequence[ModelFolder],
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    labelled: bool = False,
) -> tuple[Task, list[Prediction]]:
    """What the models say together. They may differ in family and vocabulary, but for spans, whose scores are by
    token. Of a CRF it is the probability of each tag by itself that counts."""
    if len(folders) < 2:
        raise UserError("an ensemble is of two models or more")
    tasks = [Task.from_model(folder.model, folder.notes) for folder in folders]
    first = tasks[0]
    if first.kind == "coreference":
        raise UserError("clusters of several models cannot be averaged: no ensemble of coreference")
    for folder, task in zip(folders, tasks):
        if (task.kind, task.labels) != (first.kind, first.labels):
            raise UserError(f"{folder.path} answers another task than {folders[0].path}: no ensemble")
    parts: list[list[np.ndarray]] = []
    read: list[Encoded] = []
    for folder, task in zip(folders, tasks):
        encoded = list(encode_for(folder, task, examples, max_len, truncate, labelled))
        if first.kind == "span" and read and not _same(read, encoded):
            raise UserError(f"{folder.path} reads other tokens than {folders[0].path}: no ensemble of spans")
        read = encoded
        parts.append([_shares(scores, task) for scores in logits(folder.model, task, encoded)])
    if first.kind == "span":
        found = best_spans(zip(read, _means(parts)), examples, first.span)
        return first, [Prediction(span=span) for span in found]
    return first, joined(first, parts, examples)


def joined(task: Task, parts: Sequence[Sequence[np.ndarray]], examples: Sequence[Example]) -> list[Prediction]:
    """Of the probabilities (or numbers) that several models give the same examples, [rows, labels] each, one answer.

    ULMFiT does so with one that reads forwards and one that reads backwards (Howard and Ruder 2018, §3.4).
    """
    means = _means(parts)
    made = [mean if task.kind == "regression" else np.log(np.maximum(mean, 1e-300)) for mean in means]
    return [task.decode(one, example) for one, example in zip(made, examples, strict=True)]


def evaluate_ensemble(
    folders: Sequence[ModelFolder],
    examples: Sequence[Example],
    max_len: int | None = None,
    truncate: bool | None = None,
    extra: Extra | None = None,
) -> dict[str, float]:
    """The metrics of what they say together."""
    task, found = ensemble(folders, examples, max_len, truncate, labelled=True)
    return measure(task, examples, found, extra)


def _shares(scores: np.ndarray, task: Task) -> np.ndarray:
    """Scores as what can be averaged: probabilities over labels, or over the choices of a question."""
    scores = scores.astype(np.float64)
    if task.kind in ("regression", "span"):
        return scores
    axis = 0 if task.kind == "choice" else -1
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    found: np.ndarray = powers / powers.sum(axis, keepdims=True)
    return found


def _means(parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Where one vocabulary cut more words off than another, of those that all have."""
    found = []
    for each in zip(*parts, strict=True):
        n = min(map(len, each))
        found.append(np.mean([one[:n] for one in each], axis=0))
    return found


def _same(a: Sequence[Encoded], b: Sequence[Encoded]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x.ids, y.ids) for x, y in zip(a, b))
