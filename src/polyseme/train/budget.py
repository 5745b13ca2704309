"""Conversion of a budget in minutes to a number of steps: a short calibration, and corrections during the run."""

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from polyseme.corpus.sampling import DataPosition
from polyseme.train.loop import TrainState, count_parameters, train
from polyseme.train.recipe import Recipe
from polyseme.train.streams import BatchStream

STEPS_PER_TIMING = 5  # steps timed together
CLOCK_CHECKS = 20  # per run
MAX_LATE, MAX_EARLY = 0.02, 0.05  # fractions of a run by which it may miss its end
Overhead = tuple[float, int]  # seconds, and the number of steps after which they are spent; also once at the end


def plan_steps(
    recipe: Recipe, state: TrainState, stream: BatchStream, validate: Callable[[TrainState], object], start_time: float
) -> tuple[int, list[Overhead]]:
    """Return the number of steps of a budget, and the overheads of validating and saving.

    Minutes are converted by timing a few steps of a copy of the model. They are those of the whole run since
    `start_time`, with compilation, this calibration, validation and saving.
    """
    if recipe.budget.steps:
        return recipe.budget.steps, []
    num_micro_batches = [
        stream.sampler.num_micro_batches(step, stream.world_size) for step in range(recipe.batch_warmup_steps)
    ]
    steps_saved = sum(1 - n / stream.sampler.micro_batches_per_step for n in num_micro_batches)  # by batch warm-up
    if recipe.budget.tokens:
        return math.ceil(recipe.budget.tokens / (recipe.batch_tokens * stream.sampler.fill_ratio()) + steps_saved), []
    model = copy.deepcopy(state.model)
    optimizer = state.optimizer_config.build(model, model.trunk.layer_groups())
    trial = dataclasses.replace(state, model=model, optimizer=optimizer, total_steps=6 * STEPS_PER_TIMING)
    times = []
    for report in train(trial, stream.steps(DataPosition(), recipe.batch_warmup_steps)):
        if report.step % STEPS_PER_TIMING == 0 and report.metrics:  # waits for a GPU, as a run rarely does
            times.append(time.perf_counter())
    seconds_per_step = statistics.median(after - before for before, after in pairwise(times)) / STEPS_PER_TIMING
    validation_start = time.perf_counter()
    validate(trial)
    now = time.perf_counter()
    save_seconds = 12 * count_parameters(model) / 5e8  # weights and two moments, at the speed of a hard disk
    overheads = [(now - validation_start, recipe.eval_every), (save_seconds, recipe.save_every)]
    seconds_left = recipe.budget.minutes * 60 - (now - start_time)
    return max(int(count_fitting_steps(seconds_left, seconds_per_step, overheads) + steps_saved), 1), overheads


def count_fitting_steps(seconds: float, seconds_per_step: float, overheads: Sequence[Overhead]) -> int:
    """Return the number of steps that fit into this time."""
    seconds -= sum(cost for cost, _ in overheads)
    return max(int(seconds / (seconds_per_step + sum(cost / every for cost, every in overheads))), 0)


class Deadline:
    """The end of the minutes of a run. If its speed changes, the run gets another number of steps and a new schedule.

    An `end_time` of infinity is no deadline.
    """

    def __init__(self, end_time: float, start_step: int, total_steps: int, overheads: Sequence[Overhead] = ()):
        self.end_time, self.overheads = end_time, overheads
        self.check_every = max((total_steps - start_step) // CLOCK_CHECKS, STEPS_PER_TIMING)
        self.last_step, self.last_time = start_step, time.perf_counter()

    def should_check(self, step: int) -> bool:
        """Return whether to call `replan_steps` after this step."""
        return self.end_time < math.inf and step - self.last_step >= self.check_every

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of a block from the speed of steps; `overheads` account for it."""
        start_time = time.perf_counter()
        yield
        self.last_time += time.perf_counter() - start_time

    def replan_steps(self, step: int, total_steps: int) -> int:
        """Return the number of steps of the run at the speed since the last check, unchanged if it nearly fits."""
        now = time.perf_counter()
        seconds_per_step = (now - self.last_time) / (step - self.last_step)
        self.last_step, self.last_time = step, now
        fitting_steps = step + count_fitting_steps(self.end_time - now, seconds_per_step, self.overheads)
        nearly_fits = (1 - MAX_LATE) * total_steps <= fitting_steps <= (1 + MAX_EARLY) * total_steps
        return total_steps if nearly_fits else fitting_steps
