"""The length of a run: the steps that a budget allows, replanned by the clock if it is in minutes, or extended."""

import logging
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self

from polyseme.errors import DataError
from polyseme.io.limits import MAX_STEPS
from polyseme.train.loop import TrainState
from polyseme.train.optimizer import ScheduleConfig
from polyseme.train.recipe import Recipe
from polyseme.train.streams import BatchStream

logger = logging.getLogger(__name__)

PROVISIONAL_STEPS = 200  # of a run in minutes, for the warm-up of the first step, before any step is timed
CALIBRATION_STEPS = (1, 2, 4, 8, 16)  # after which the first plans are made
CLOCK_CHECKS, MIN_CHECK_STEPS = 20, 5  # later plans: per run, and the least number of steps between two
MAX_LATE, MAX_EARLY = 0.02, 0.05  # fractions of a run by which it may miss its end
MAX_QUIET_CHANGE = 0.2  # of the number of steps, without a message
VALIDATION_COST = 0.5  # of a held-out token, in training tokens, until it is measured
DISK_BYTES_PER_SECOND = 5e8
MAX_REWARMUP = 0.1  # of the added steps of an extended run


@dataclass(frozen=True)
class Segment:
    """A part of a run: from `step` on, the run has `total_steps`, and its schedule runs between these two steps."""

    step: int
    total_steps: int
    schedule_start: int = 0
    schedule_end: int = 0  # 0 for `total_steps`


@dataclass(frozen=True)
class StepPlan:
    """All segments of a run in order. They are in `recipe.json`, so that a resumed run repeats each at its step."""

    segments: tuple[Segment, ...]

    @classmethod
    def from_json(cls, rows: Any, location: str) -> Self:
        """Parse what `to_json` returns."""
        try:
            segments = tuple(Segment(**row) for row in rows)
            is_valid = all(type(value) is int and value >= 0 for s in segments for value in asdict(s).values())
        except (TypeError, AttributeError):
            is_valid = False
        if not is_valid or not segments:
            raise DataError(f"{location} is not the recipe of a run: `plan` is {rows!r}")
        return cls(segments)

    def to_json(self) -> list[dict[str, int]]:
        """Return the segments without values that are 0."""
        return [{n: v for n, v in asdict(s).items() if v or n == "step"} for s in self.segments]

    @property
    def total_steps(self) -> int:
        """The number of steps of the run."""
        return self.segments[-1].total_steps

    @property
    def last_change(self) -> int:
        """The step after which the last segment starts."""
        return self.segments[-1].step

    @property
    def end_steps(self) -> set[int]:
        """The steps after which the run has ended: the last one, and those after which it was extended."""
        return {b.step for a, b in pairwise(self.segments) if b.step == a.total_steps} | {self.total_steps}

    def apply(self, state: TrainState, schedule: ScheduleConfig, step: int) -> None:
        """Set the length and the schedule of the step after `step` steps."""
        segment = next(s for s in reversed(self.segments) if s.step <= step)
        state.total_steps, state.schedule_start = segment.total_steps, segment.schedule_start
        state.schedule_end = segment.schedule_end
        if segment.schedule_start and schedule.warmup >= 1:
            longest = MAX_REWARMUP * (segment.total_steps - segment.schedule_start)
            schedule = schedule.replace(warmup=max(min(schedule.warmup, longest), 1.0))
        state.schedule = schedule

    def with_total(self, step: int, total_steps: int) -> Self:
        """Return the plan with another number of steps from `step` on."""
        segment = replace(self.segments[-1], step=step, total_steps=total_steps)
        return replace(self, segments=(*(s for s in self.segments if s.step < step), segment))

    def extend(self, step: int, total_steps: int, schedule: ScheduleConfig) -> Self:
        """Return the plan of a longer run.

        Before its end, the run continues on the schedule of the longer run. After its end, a schedule that depends on
        the length of the run, whose rate has decayed, starts again with its warm-up over the added steps (Ibrahim et
        al. 2024); a constant or inverse-square-root one continues as it was.
        """
        last = self.segments[-1]
        if step < last.total_steps:
            return self.with_total(step, total_steps)
        if schedule.depends_on_length:
            segment = Segment(step, total_steps, schedule_start=step)
        else:
            end = last.schedule_end or last.total_steps
            segment = Segment(step, total_steps, last.schedule_start, schedule_end=end)
        return replace(self, segments=(*self.segments, segment))


def plan_steps(recipe: Recipe, stream: BatchStream) -> int:
    """Return the number of steps of a budget in steps or tokens; for minutes a provisional one."""
    if recipe.budget.steps:
        return recipe.budget.steps
    if not recipe.budget.tokens:
        return PROVISIONAL_STEPS
    num_tokens, full_tokens = recipe.budget.tokens, recipe.batch_tokens * stream.sampler.fill_ratio()
    warmup, fraction = recipe.batch_warmup_steps, recipe.short_sequences.fraction
    first, first_tokens = stream.first or stream, full_tokens
    if stream.first is None:
        num_steps = math.ceil(num_tokens / full_tokens + count_saved_steps(stream, 0, warmup))
        num_first = num_steps
    else:
        first_tokens = recipe.first_recipe.batch_tokens * first.sampler.fill_ratio()
        saved_tokens = first_tokens * count_saved_steps(first, 0, warmup)
        num_steps = math.ceil((num_tokens + saved_tokens) / (fraction * first_tokens + (1 - fraction) * full_tokens))
        num_first = recipe.short_sequences.count_steps(num_steps)
    if num_first >= warmup:
        return num_steps

    def count_tokens(num_steps: int) -> float:
        num_first = recipe.short_sequences.count_steps(num_steps)
        num_full_steps = num_steps - num_first - count_saved_steps(stream, num_first, min(num_steps, warmup))
        num_first_steps = num_first - count_saved_steps(first, 0, min(num_first, warmup))
        return first_tokens * num_first_steps + full_tokens * num_full_steps

    # the run ends, or its sequences become longer, in the warm-up
    return bisect_left(range(MAX_STEPS), float(num_tokens), key=count_tokens)


def count_saved_steps(stream: BatchStream, start: int, end: int) -> float:
    """Return how much less these steps compute than full ones because of batch warm-up, in full steps."""
    sampler = stream.sampler
    sizes = (sampler.num_micro_batches(step, stream.world_size) for step in range(start, end))
    return sum(1 - size / sampler.micro_batches_per_step for size in sizes)


@dataclass
class Overhead:
    """Work between steps: its `seconds`, or until they are measured `steps` that take as long, and how often it is."""

    every: int
    seconds: float = 0.0
    steps: float = 0.0


@dataclass
class Deadline:
    """The end of the minutes of a run. If its speed changes, the run gets another number of steps and a new schedule.

    The first plans are made after few steps, so that a run trains from its first second on. The first step, which
    compiles kernels, is not timed. An `end_time` of infinity is no deadline.
    """

    end_time: float
    start_step: int
    total_steps: int
    overheads: dict[str, Overhead] = field(default_factory=dict)
    is_calibrated: bool = False
    batch_warmup_steps: int = 0
    stream: BatchStream | None = None

    def __post_init__(self) -> None:
        self.last_step, self.last_time = self.start_step, time.perf_counter()
        self.checks: list[tuple[int, float]] = []  # steps and times since which a speed can be measured
        self.steps_per_second = 0.0
        self.logged_steps = self.total_steps if self.is_calibrated else 0

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, end_time: float, plan: StepPlan, state: TrainState, stream: BatchStream, valid_tokens: int
    ) -> Self:
        """Return the deadline of a run that continues after `state.start_step` steps."""
        # weights and two moments; the model is written at the end, too
        save_seconds = 12 * sum(p.numel() for p in state.model.parameters()) / DISK_BYTES_PER_SECOND
        valid_steps = VALIDATION_COST * min(valid_tokens, recipe.eval_tokens) / recipe.batch_tokens
        overheads = {
            "validate": Overhead(recipe.eval_every, steps=valid_steps),
            "save": Overhead(recipe.save_every, save_seconds),
        }
        is_calibrated = len(plan.segments) > 1
        if not recipe.budget.is_wall_clock:
            end_time = math.inf
        warmup_steps = recipe.batch_warmup_steps
        return cls(end_time, state.start_step, plan.total_steps, overheads, is_calibrated, warmup_steps, stream)

    def should_check(self, step: int) -> bool:
        """Return whether to call `replan_steps` after this step."""
        if self.end_time == math.inf:
            return False
        if not self.is_calibrated and step - self.start_step <= CALIBRATION_STEPS[-1]:
            return step - self.start_step in CALIBRATION_STEPS
        check_every = max((self.total_steps - self.start_step) // CLOCK_CHECKS, MIN_CHECK_STEPS)
        return step - self.last_step >= check_every

    @contextmanager
    def measure(self, name: Literal["validate", "save"]) -> Iterator[None]:
        """Time an overhead, and exclude it from the speed of steps."""
        start_time = time.perf_counter()
        yield
        seconds = time.perf_counter() - start_time
        self.last_time += seconds
        self.checks = [(step, moment + seconds) for step, moment in self.checks]
        if name in self.overheads:
            self.overheads[name].seconds = seconds

    def replan_steps(self, step: int, total_steps: int) -> int:
        """Return the number of steps of the run at the speed of its later half so far, unchanged if it nearly fits."""
        now = time.perf_counter()
        self.checks.append((self.last_step, self.last_time))
        middle = (self.checks[0][1] + now) / 2
        first_step, first_time = next(check for check in reversed(self.checks) if check[1] <= middle)
        num_steps, seconds = step - first_step - self._saved(first_step, step), now - first_time
        self.last_step, self.last_time = step, now
        if not self.is_calibrated and step == self.start_step + 1:  # compilation
            self.checks.clear()
            return total_steps if now < self.end_time else step
        seconds_per_step = seconds / max(num_steps, 1e-9)
        self.steps_per_second = 1 / max(seconds_per_step, 1e-9)
        fitting_steps = step + self.count_fitting_steps(self.end_time - now, seconds_per_step, step)
        nearly_fits = (1 - MAX_LATE) * total_steps <= fitting_steps <= (1 + MAX_EARLY) * total_steps
        self.total_steps = total_steps if nearly_fits else fitting_steps
        return self.total_steps

    def count_fitting_steps(self, seconds: float, seconds_per_step: float, start: int = 0) -> int:
        """Return the number of steps after `start` that fit into this time; a full one takes `seconds_per_step`.

        The time includes what is done between steps and once at the end.
        """
        costs = [(o.seconds or o.steps * seconds_per_step, o.every) for o in self.overheads.values()]
        seconds -= sum(cost for cost, _ in costs)
        num_full_steps = max(seconds / (seconds_per_step + sum(cost / every for cost, every in costs)), 0.0)
        num_steps = int(num_full_steps) + int(self._saved(start, max(start, self.batch_warmup_steps)))
        if start + num_steps >= self.batch_warmup_steps:
            return num_steps
        candidates = range(num_steps + 2)  # the time ends in the warm-up
        return bisect_right(candidates, num_full_steps, key=lambda n: n - self._saved(start, start + n)) - 1

    def log_plan(self, step: int, budget: str) -> None:
        """Log the measured speed and the number of steps if they are new or have changed much."""
        change = abs(self.total_steps / self.logged_steps - 1) if self.logged_steps else math.inf
        if change > MAX_QUIET_CHANGE and self.steps_per_second:
            speed = f"{self.steps_per_second:.3g} steps/s after step {step}"
            logger.info("%s: the budget of %s is planned as %s steps", speed, budget, f"{self.total_steps:,}")
            self.logged_steps = self.total_steps

    def _saved(self, start: int, end: int) -> float:
        return count_saved_steps(self.stream, start, min(end, self.batch_warmup_steps)) if self.stream else 0.0
