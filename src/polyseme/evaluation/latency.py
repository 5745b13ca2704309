"""How fast a task model answers: many examples together, and one alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from polyseme.evaluation.predict import predictions
from polyseme.nn.model import Model
from polyseme.tasks.task import Task

if TYPE_CHECKING:
    from polyseme.finetuning.runner import Part

ALONE = 8  # how many examples are asked one by one


def ms_alone(ask: Callable[[int], object], number: int) -> float:
    """The median time of an answer in milliseconds, over a few of `number` examples, spread evenly; the first is asked
    once before."""
    places = [i * number // min(ALONE, number) for i in range(min(ALONE, number))]
    ask(places[0])
    times = []
    for i in places:
        began = time.perf_counter()
        ask(i)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def model_ms(model: Model, task: Task, part: Part) -> float:
    """Of examples that are encoded already, so without reading their text; a long one is read in all its windows."""

    def ask(i: int) -> object:
        windows = [e for e in part.encoded if e.of == i] if task.kind == "span" else [part.encoded[i]]
        return predictions(model, task, [part.examples[i]], [replace(e, of=0) for e in windows])

    return ms_alone(ask, len(part.examples))
