"""Several models of one task as one: their probabilities are averaged (numbers, and scores of spans, too)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import UserError
from polyseme.evaluation.predict import Extra, encode_for, logits, measure
from polyseme.tasks.encoded import Encoded
from polyseme.tasks.examples import Example
from polyseme.tasks.spans import best_spans, best_stretch
from polyseme.tasks.task import Prediction, Task
from polyseme.tasks.text_to_text import text_stretches
from polyseme.weights.folder import ModelFolder

KEPT = ("checkpoints/seed-*/step-*", "seeds/*", "step-*")  # where a run, or a seed of it, keeps several models


def models_in(path: Path) -> list[Path]:
    """A model folder itself; of a run, or of the checkpoints of a seed, all models that were kept."""
    kept = [] if (path / "config.json").exists() else [sorted(path.glob(pattern), key=_numbers) for pattern in KEPT]
    return next((found for found in kept if found), [path])


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", f"{path.parent.name} {path.name}")]


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
        if first.kind == "span" and bool(task.text) != bool(first.text):
            raise UserError(
                f"of {folder.path} and {folders[0].path} one writes answers, one points at them: no ensemble"
            )
    parts: list[list[np.ndarray]] = []
    read: list[Encoded] = []
    for folder, task in zip(folders, tasks):
        encoded = list(encode_for(folder, task, examples, max_len, truncate, labelled))
        if first.kind == "span" and read and not _same(read, encoded):
            raise UserError(f"{folder.path} reads other tokens than {folders[0].path}: no ensemble of spans")
        read = encoded
        if first.kind == "span" and first.text:
            continue
        parts.append([_shares(scores, task) for scores in logits(folder.model, task, encoded)])
    if first.kind == "span":
        longest = first.span.longest
        if first.text:
            best = text_stretches([folder.model for folder in folders], read, longest)
        else:
            best = [best_stretch(window, scores, longest) for window, scores in zip(read, _means(parts))]
        found = best_spans(zip([window.of for window in read], best), examples, first.span)
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
