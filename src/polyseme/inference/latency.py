"""How fast a task model answers: many examples together, and one alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from polyseme.inference.prediction import predict_encoded
from polyseme.nn.model import Model
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.encoded import EncodedExample

LATENCY_SAMPLES = 8  # how many examples are predicted one by one


def median_latency_ms(predict_one: Callable[[int], object], num_examples: int) -> float:
    """Return the median time of a prediction in milliseconds, over a few of `num_examples`, spread evenly.

    The first is predicted once before.
    """
    size = min(LATENCY_SAMPLES, num_examples)
    indices = [i * num_examples // size for i in range(size)]
    predict_one(indices[0])
    times = []
    for i in indices:
        started = time.perf_counter()
        predict_one(i)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def model_latency_ms(
    model: Model, task: TaskConfig, examples: Sequence[Any], encoded: Sequence[EncodedExample]
) -> float:
    """Return the latency on examples that are encoded already; a long one is read in all its windows."""

    def predict_one(i: int) -> object:
        windows = [replace(e, example_index=0) for e in encoded if e.example_index == i]
        return predict_encoded(model, task, [examples[i]], windows)

    return median_latency_ms(predict_one, len(examples))
