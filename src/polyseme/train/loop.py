"""The one training loop: a generator of steps. Saving, measuring and printing stay with whoever iterates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.objectives.losses import losses
from polyseme.train import distributed
from polyseme.train.flops import training_flops
from polyseme.train.optimizer import OptimSpec, set_rate
from polyseme.train.prefetch import prefetch
from polyseme.train.schedule import ScheduleSpec
from polyseme.train.sparse_step import RowWork
from polyseme.train.step import Work

CHECKED = 64  # steps after which the host waits for the GPU


@dataclass(frozen=True, eq=False)
class Report:
    """What one step did. `loss` has each term's mean over the step; `cursor` is where the next step reads.

    On a GPU the numbers stay there until somebody asks for them: asking waits for the step to end.
    """

    step: int  # steps done, this one included
    names: tuple[str, ...]
    values: Tensor  # the mean of each term, the norm of the gradient, and the first step that was not finite, or 0
    rate: float
    tokens: int
    flops: int
    seconds: float
    cursor: Any

    @cached_property
    def numbers(self) -> list[float]:
        *found, broken = self.values.tolist()
        if broken:
            shown = ", ".join(f"{n} {v:.4g}" for n, v in zip([*self.names, "gradient"], found))
            raise UserError(f"step {int(broken)} is not finite ({shown}): what was saved is whole; try a lower rate")
        return found

    @property
    def loss(self) -> dict[str, float]:
        return dict(zip(self.names, self.numbers))

    @property
    def gradient(self) -> float:
        return self.numbers[-1]


@dataclass
class Training:
    """Everything a step needs. `start` is the number of steps already done.

    The schedule runs from step `origin` to step `total`.
    """

    model: Model
    optimiser: torch.optim.Optimizer
    optim: OptimSpec
    schedule: ScheduleSpec
    total: int
    device: torch.device
    precision: str = "float32"
    seed: int = 0
    rank: int = 0
    start: int = 0
    origin: int = 0
    terms: Callable[[Model, Batch], dict[str, Tensor]] = losses
    compiled: bool = False  # whether `terms` is
    record: bool = False  # on a GPU, replay a step's kernels as one; micro-batches must be of one shape
    flops: Callable[[Model, Batch], int] = training_flops

    def autocast(self) -> AbstractContextManager:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def choose_device() -> torch.device:
    """The GPU if there is one. On a CPU every operation is deterministic, so that a run can be repeated bit for bit."""
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = False  # float32 means it; who wants speed takes bfloat16
        return torch.device("cuda", torch.cuda.current_device())
    torch.use_deterministic_algorithms(True)
    # filling fresh memory is that mode's aid to debugging, and costs 5 %
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    return torch.device("cpu")


def train(run: Training, data: Iterable[tuple[list[Batch], Any]]) -> Iterator[Report]:
    """Run steps `start + 1 … total` over (micro-batches of one step, the cursor after it).

    Whoever iterates may change `run.total` between steps.
    """
    run.model.train()
    cuda = run.device.type == "cuda"
    steps = zip(_numbers(run), prefetch(_pinned(data) if cuda else data))
    with closing(RowWork(run) if run.optim.by_rows else Work(run)) as work:
        for step, (batches, cursor) in steps:
            began = time.perf_counter()
            # dropout is drawn from (seed, step, rank) and nothing else, so a run goes on exactly where it stopped
            _seed((run.seed << 40) + (step << 12) + run.rank, run.device)
            names = tuple(batches[0].targets)
            counts = {name: sum(b.targets[name].count for b in batches) for name in names}
            counts |= {" tokens": sum(b.num_tokens for b in batches)}
            counts = distributed.sum_counts(counts, run.device)
            rate = run.optim.rate * run.schedule.scale(step - run.origin, run.total - run.origin) * batches[0].rate
            set_rate(run.optimiser, rate)
            divisors = torch.tensor([float(max(counts[name], 1)) for name in names])
            for number, batch in enumerate(batches):
                work.learn(batch, divisors, first=number == 0)
            report = Report(
                step + 1,
                names,
                work.measure(torch.tensor(step + 1.0)),
                rate,
                counts[" tokens"],
                sum(run.flops(run.model, b) for b in batches),
                time.perf_counter() - began,
                cursor,
            )
            if not cuda or step % CHECKED == CHECKED - 1:
                report.numbers  # noqa: B018  # raises, and keeps the host from running far ahead of a GPU
            work.change()
            yield report


def _numbers(run: Training) -> Iterator[int]:
    step = run.start
    while step < run.total:
        yield step
        step += 1


def _seed(seed: int, device: torch.device) -> None:
    """`torch.manual_seed` for the generators in use; that of every other device would cost a millisecond a step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def _pinned(data: Iterable[tuple[list[Batch], Any]]) -> Iterator[tuple[list[Batch], Any]]:
    for batches, cursor in data:
        yield [batch.pinned() for batch in batches], cursor
