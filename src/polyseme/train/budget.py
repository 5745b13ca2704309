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

from polyseme.corpus.sampling import DataPosition
from polyseme.train.flops import count_parameters
from polyseme.train.loop import TrainState, train

if TYPE_CHECKING:
    from polyseme.train.pretrain import BatchStream
    from polyseme.train.recipe import Recipe

STEPS_PER_TIMING = 5  # steps timed together
CLOCK_CHECKS = 20  # at the clock, over a run
MAX_LATE, MAX_EARLY = 0.02, 0.05  # shares of a run by which it may miss its end


Overhead = tuple[float, int]  # seconds, after every so many steps and once at the end


def plan_steps(
    recipe: Recipe,
    state: TrainState,
    stream: BatchStream,
    run_validation: Callable[[TrainState], object],
    start_time: float,
) -> tuple[int, list[Overhead]]:
    """The budget as a number of steps, for minutes by timing a few on a copy of the model; and what else takes time.

    The minutes are those of the whole run since `start_time`: compiling and this calibration, measuring and saving too.
    """
    if recipe.budget.steps:
        return recipe.budget.steps, []
    micro_batches_per_step = stream.sampler.micro_batches_per_step
    steps_saved = sum(
        1 - stream.sampler.num_micro_batches(step, stream.world_size) / micro_batches_per_step
        for step in range(recipe.batch_warmup_steps)
    )  # steps, by the ramp
    if recipe.budget.tokens:
        return math.ceil(recipe.budget.tokens / (recipe.batch_tokens * stream.sampler.fill_ratio()) + steps_saved), []
    model = copy.deepcopy(state.model)
    trial_state = dataclasses.replace(
        state,
        model=model,
        optimizer=state.optimizer_config.build(model, model.trunk.layer_groups()),
        total_steps=6 * STEPS_PER_TIMING,
    )
    times = []
    for report in train(trial_state, stream.steps(DataPosition(), recipe.batch_warmup_steps)):
        if report.step % STEPS_PER_TIMING == 0 and report.metrics:  # on a GPU asking waits, which a run does rarely
            times.append(time.perf_counter())
    seconds_per_step = statistics.median(after - before for before, after in pairwise(times)) / STEPS_PER_TIMING
    validation_start = time.perf_counter()
    run_validation(trial_state)
    now = time.perf_counter()
    save_seconds = 12 * count_parameters(model) / 5e8  # weights and two moments, at the pace of a plain disk
    overheads = [(now - validation_start, recipe.eval_every), (save_seconds, recipe.save_every)]
    seconds_left = recipe.budget.minutes * 60 - (now - start_time)
    return max(int(count_fitting_steps(seconds_left, seconds_per_step, overheads) + steps_saved), 1), overheads


def count_fitting_steps(seconds: float, seconds_per_step: float, overheads: Sequence[Overhead]) -> int:
    """How many steps fit, each of so long."""
    seconds -= sum(cost for cost, _ in overheads)
    return max(int(seconds / (seconds_per_step + sum(cost / every for cost, every in overheads))), 0)


class Deadline:
    """When the minutes end. A run whose pace has changed gets another number of steps, and with it another schedule."""

    def __init__(self, end_time: float, start_step: int, total_steps: int, overheads: Sequence[Overhead] = ()):
        self.end_time, self.overheads, self.check_every = (
            end_time,
            overheads,
            max((total_steps - start_step) // CLOCK_CHECKS, STEPS_PER_TIMING),
        )
        self.last_step, self.last_time = start_step, time.perf_counter()

    def should_check(self, step: int) -> bool:
        """Whether it is time for a look."""
        return self.end_time < math.inf and step - self.last_step >= self.check_every

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What is done in it is no part of the pace: `overheads` say how long it takes."""
        start_time = time.perf_counter()
        yield
        self.last_time += time.perf_counter() - start_time

    def replan_steps(self, step: int, total_steps: int) -> int:
        """How many steps the run has, by the pace since the last look; the same number if it nearly fits."""
        now = time.perf_counter()
        seconds_per_step = (now - self.last_time) / (step - self.last_step)
        self.last_step, self.last_time = step, now
        fitting_steps = step + count_fitting_steps(self.end_time - now, seconds_per_step, self.overheads)
        return (
            total_steps
            if (1 - MAX_LATE) * total_steps <= fitting_steps <= (1 + MAX_EARLY) * total_steps
            else fitting_steps
        )
