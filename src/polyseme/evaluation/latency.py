"""How fast a task model answers: many examples together, and one alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from polyseme.evaluation.predict import predict_encoded
from polyseme.nn.model import Model
from polyseme.tasks.task import Task

if TYPE_CHECKING:
    from polyseme.finetuning.runner import Split

LATENCY_SAMPLES = 8  # how many examples are asked one by one


def median_latency_ms(predict_one: Callable[[int], object], num_examples: int) -> float:
    """The median time of an answer in milliseconds, over a few of `num_examples` examples, spread evenly; the first is
    asked once before.
    """
    indices = [
        i * num_examples // min(LATENCY_SAMPLES, num_examples) for i in range(min(LATENCY_SAMPLES, num_examples))
    ]
    predict_one(indices[0])
    times = []
    for i in indices:
        start = time.perf_counter()
        predict_one(i)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def model_latency_ms(model: Model, task: Task, split: Split) -> float:
    """Of examples that are encoded already, so without reading their text; a long one is read in all its windows."""

    def predict_one(i: int) -> object:
        windows = [e for e in split.encoded if e.example_index == i] if task.task_type == "span" else [split.encoded[i]]
        return predict_encoded(model, task, [split.examples[i]], [replace(e, example_index=0) for e in windows])

    return median_latency_ms(predict_one, len(split.examples))
