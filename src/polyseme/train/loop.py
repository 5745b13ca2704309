"""The one training loop: a generator of steps. Saving, measuring and printing stay with whoever iterates."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.objectives.batch import Batch
from polyseme.objectives.terms import losses
from polyseme.parts.model import Model
from polyseme.train import distributed
from polyseme.train.cost import training_flops
from polyseme.train.half import Half
from polyseme.train.optim import OptimSpec, set_rate
from polyseme.train.schedule import ScheduleSpec

Item = TypeVar("Item")
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
            raise UserError(f"step {int(broken)} is not finite ({shown}): nothing was changed by it; try a lower rate")
        return found

    @property
    def loss(self) -> dict[str, float]:
        return dict(zip(self.names, self.numbers))

    @property
    def gradient(self) -> float:
        return self.numbers[-1]


@dataclass
class Training:
    """Everything a step needs. `start` is the number of steps already done."""

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
    terms: Callable[[Model, Batch], dict[str, Tensor]] = losses

    def autocast(self) -> AbstractContextManager:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def choose_device() -> torch.device:
    """The GPU if there is one. On a CPU every operation is deterministic, so that a run can be repeated bit for bit."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    torch.use_deterministic_algorithms(True)
    # filling fresh memory is that mode's aid to debugging, and costs 5 %
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    return torch.device("cpu")


def train(run: Training, data: Iterable[tuple[list[Batch], Any]]) -> Iterator[Report]:
    """Run steps `start + 1 … total` over (micro-batches of one step, the cursor after it)."""
    run.model.train()
    half = Half(run.model) if run.precision == "bf16" and run.device.type == "cuda" else None
    broken = torch.zeros((), device=run.device)  # the first step that was not finite: from there on nothing changes
    for step, (batches, cursor) in zip(range(run.start, run.total), prefetch(data)):
        began = time.perf_counter()
        # dropout is drawn from (seed, step, rank) and nothing else, so a run goes on exactly where it stopped
        torch.manual_seed((run.seed << 40) + (step << 12) + run.rank)
        names = tuple(batches[0].targets)
        counts = {name: sum(b.targets[name].count for b in batches) for name in names}
        counts |= {" tokens": sum(b.num_tokens for b in batches)}
        counts = distributed.sum_counts(counts, run.device)
        weights = torch.tensor([batches[0].targets[name].weight for name in names], device=run.device)
        rate = run.optim.rate * run.schedule.scale(step, run.total)
        set_rate(run.optimiser, rate)
        run.optimiser.zero_grad(set_to_none=True)
        model = half.load() if half else run.model
        totals = torch.zeros(len(names), device=run.device)
        for batch in batches:
            with nullcontext() if half else run.autocast():
                sums = run.terms(model, batch.to(run.device))
            means = torch.stack([value / max(counts[name], 1) for name, value in sums.items()])
            (means * weights).sum().backward()
            totals += means.detach()
            if half:
                half.give()
        distributed.sum_gradients(run.model)
        norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.optim.clip or float("inf"))
        values = torch.cat([distributed.sum_values(totals), norm.float()[None]])
        broken = torch.where((broken == 0) & ~values.isfinite().all(), step + 1.0, broken)
        values = torch.cat([values, broken[None]])
        report = Report(
            step + 1,
            names,
            values,
            rate,
            counts[" tokens"],
            sum(training_flops(run.model, b) for b in batches),
            time.perf_counter() - began,
            cursor,
        )
        if run.device.type == "cuda":
            run.optimiser.found_inf = (broken > 0).float()  # type: ignore[attr-defined]  # the kernel heeds it
            if step % CHECKED == CHECKED - 1:
                report.numbers  # noqa: B018  # raises, and keeps the host from running far ahead
        else:
            report.numbers  # noqa: B018
        run.optimiser.step()
        yield report


def prefetch(items: Iterable[Item], ahead: int = 2) -> Iterator[Item]:
    """The same items, made by one thread while the caller works: corrupting a batch is numpy, which frees the lock."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(ahead)
    stop = threading.Event()

    def put(kind: str, value: Any) -> None:
        while not stop.is_set():
            try:
                return ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        stop.set()
        thread.join()
