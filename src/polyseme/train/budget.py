"""A budget in minutes as a number of steps: by timing a few of them, and by the clock while the run goes on."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from polyseme.corpus.sampling import Cursor
from polyseme.train.flops import num_parameters
from polyseme.train.loop import Training, train

if TYPE_CHECKING:
    from polyseme.train.pretrain import Data
    from polyseme.train.recipe import Recipe

TIMED = 5  # steps timed together
LOOKS = 20  # at the clock, over a run
LATE, EARLY = 0.02, 0.05  # shares of a run by which it may miss its end


Cost = tuple[float, int]  # seconds, after every so many steps and once at the end


def settle(
    recipe: Recipe, run: Training, data: Data, measure: Callable[[Training], object], began: float
) -> tuple[int, list[Cost]]:
    """The budget as a number of steps, for minutes by timing a few on a copy of the model; and what else takes time.

    The minutes are those of the whole run since `began`: compiling and this calibration, measuring and saving too.
    """
    if recipe.budget.steps:
        return recipe.budget.steps, []
    bins = data.order.bins_per_step
    saved = sum(1 - data.order.bins_at(step, data.world) / bins for step in range(recipe.ramp))  # steps, by the ramp
    if recipe.budget.tokens:
        return math.ceil(recipe.budget.tokens / (recipe.batch_tokens * data.order.fill()) + saved), []
    model = copy.deepcopy(run.model)
    trial = dataclasses.replace(
        run, model=model, optimiser=run.optim.build(model, model.trunk.groups()), total=6 * TIMED
    )
    times = []
    for report in train(trial, data.steps(Cursor(), recipe.ramp)):
        if report.step % TIMED == 0 and report.numbers:  # on a GPU asking waits, which a run does rarely
            times.append(time.perf_counter())
    each = statistics.median(after - before for before, after in pairwise(times)) / TIMED
    clock = time.perf_counter()
    measure(trial)
    now = time.perf_counter()
    saving = 12 * num_parameters(model) / 5e8  # weights and two moments, at the pace of a plain disk
    others = [(now - clock, recipe.eval_every), (saving, recipe.save_every)]
    left = recipe.budget.minutes * 60 - (now - began)
    return max(int(steps_in(left, each, others) + saved), 1), others


def steps_in(seconds: float, each: float, others: Sequence[Cost]) -> int:
    """How many steps fit, each of so long."""
    seconds -= sum(cost for cost, _ in others)
    return max(int(seconds / (each + sum(cost / every for cost, every in others))), 0)


class Deadline:
    """When the minutes end. A run whose pace has changed gets another number of steps, and with it another schedule."""

    def __init__(self, end: float, start: int, total: int, others: Sequence[Cost] = ()):
        self.end, self.others, self.every = end, others, max((total - start) // LOOKS, TIMED)
        self.step, self.clock = start, time.perf_counter()

    def due(self, step: int) -> bool:
        """Whether it is time for a look."""
        return self.end < math.inf and step - self.step >= self.every

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done in it is no part of the pace: `others` say how long it takes."""
        began = time.perf_counter()
        yield
        self.clock += time.perf_counter() - began

    def total(self, step: int, total: int) -> int:
        """How many steps the run has, by the pace since the last look; the same number if it nearly fits."""
        now = time.perf_counter()
        each = (now - self.clock) / (step - self.step)
        self.step, self.clock = step, now
        fits = step + steps_in(self.end - now, each, self.others)
        return total if (1 - LATE) * total <= fits <= (1 + EARLY) * total else fits
