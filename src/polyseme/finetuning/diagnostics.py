"""Diagnostics of a run: dev scores during training, and what the best model gets wrong, with attributions.

Both are bounded: each costs about 2 % of the training, so that a large dev set does not slow a run down.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from polyseme.finetuning.experiment import Experiment, Split, TaskRun
from polyseme.inference.prediction import predict_encoded
from polyseme.nn.model import Model
from polyseme.progress import progress
from polyseme.report.diagnostics import Diagnostics
from polyseme.tasks.metrics.occlusion import MAX_UNITS, WEIGHTS_MEANING

NUM_CURVE_POINTS = 5
MAX_TOKEN_SHARE = 0.06  # of the tokens of training; a forward pass costs a third of a training step
MIN_CURVE_EXAMPLES = 64
MIN_ATTRIBUTION_TOKENS = 8192


class DevCurve:
    """Scores on dev examples at a few steps of a training: on all of them with patience, else on a bounded sample."""

    def __init__(self, experiment: Experiment):
        self.runs = experiment.runs
        total = experiment.config.total_steps(experiment.num_examples)
        self.steps = {math.ceil(total * i / NUM_CURVE_POINTS) for i in range(1, NUM_CURVE_POINTS + 1)}
        if experiment.config.patience:
            self.steps = set()  # epochs are evaluated anyway
            return
        num_epochs = total / experiment.epoch_steps
        train_tokens = sum(len(e.ids) for run in self.runs for e in run.train.encoded)
        max_tokens = MAX_TOKEN_SHARE * num_epochs * train_tokens / NUM_CURVE_POINTS / len(self.runs)
        self.runs = tuple(replace(run, dev=sample_split(run.dev, max_tokens)) for run in self.runs)

    def score(self, model: Model, runs: tuple[TaskRun, ...]) -> dict[str, float]:
        """Return the primary metric of each task, by its name, or by the metric's name if there is one task."""
        scores = {}
        for run, sample in zip(runs, self.runs):
            metrics = sample.evaluate(sample.predict(model)).metrics
            if run.primary_metric in metrics:
                scores[run.data.name or run.primary_metric] = metrics[run.primary_metric]
        return scores


def sample_split(split: Split, max_tokens: float) -> Split:
    """Return evenly spaced examples of a split with about so many tokens, but not fewer than 64 of them."""
    total, num_tokens = len(split.examples), sum(len(e.ids) for e in split.encoded)
    size = min(total, max(int(total * max_tokens / max(num_tokens, 1)), MIN_CURVE_EXAMPLES))
    if size == total:
        return split
    new_index = {old: new for new, old in enumerate(np.linspace(0, total - 1, size).astype(np.int64).tolist())}
    encoded = [
        replace(e, example_index=new_index[e.example_index]) for e in split.encoded if e.example_index in new_index
    ]
    return Split([split.examples[i] for i in new_index], encoded)


def attribute_errors(
    experiment: Experiment, run: TaskRun, model: Model, diagnostics: Diagnostics, num_train_tokens: int
) -> Diagnostics:
    """Add to the errors which words drove the prediction, as far as the tokens suffice that this may cost."""
    encode, examples = experiment.encode, run.dev.examples
    if encode is None or not diagnostics.errors or diagnostics.weights_meaning:
        return diagnostics
    lengths = np.bincount([e.example_index for e in run.dev.encoded], [len(e.ids) for e in run.dev.encoded])
    max_tokens, errors = max(MIN_ATTRIBUTION_TOKENS, MAX_TOKEN_SHARE * num_train_tokens), list(diagnostics.errors)

    def predict(variants: Any) -> list[Any]:
        return predict_encoded(model, run.task, variants, encode(run.task, variants))

    with progress("explain errors", len(errors), "errors") as bar:
        for number, error in enumerate(errors):
            max_tokens -= int(lengths[error.index]) * (1 + min(len(error.text.split()), MAX_UNITS))
            if max_tokens < 0:
                break
            with bar.window(1):
                (prediction,) = predict([examples[error.index]])
                words, weights = run.task.attribute(examples[error.index], prediction, predict)
            errors[number] = error.replace(words=words, weights=weights)
    has_weights = any(error.words for error in errors)
    return diagnostics.replace(errors=tuple(errors), weights_meaning=WEIGHTS_MEANING if has_weights else "")
