"""The one training loop: a generator of steps. Saving, measuring and printing stay with whoever iterates."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from polyseme.errors import UserError
from polyseme.objectives.batch import Batch
from polyseme.objectives.terms import losses
from polyseme.parts.model import Model
from polyseme.train import distributed
from polyseme.train.cost import training_flops
from polyseme.train.optim import OptimSpec, set_rate
from polyseme.train.schedule import ScheduleSpec

Item = TypeVar("Item")


@dataclass(frozen=True)
class Report:
    """What one step did. `loss` has each term's mean over the step; `cursor` is where the next step reads."""

    step: int  # steps done, this one included
    loss: dict[str, float]
    rate: float
    gradient: float
    tokens: int
    flops: int
    seconds: float
    cursor: Any


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
    for step, (batches, cursor) in zip(range(run.start, run.total), prefetch(data)):
        began = time.perf_counter()
        # dropout is drawn from (seed, step, rank) and nothing else, so a run goes on exactly where it stopped
        torch.manual_seed((run.seed << 40) + (step << 12) + run.rank)
        names = batches[0].targets
        counts = {name: sum(b.targets[name].count for b in batches) for name in names}
        counts |= {" tokens": sum(b.num_tokens for b in batches)}
        counts = distributed.sum_counts(counts, run.device)
        rate = run.optim.rate * run.schedule.scale(step, run.total)
        set_rate(run.optimiser, rate)
        run.optimiser.zero_grad(set_to_none=True)
        totals = {name: torch.zeros((), device=run.device) for name in names}
        for batch in batches:
            with run.autocast():
                sums = run.terms(run.model, batch.to(run.device))
            means = {name: value / max(counts[name], 1) for name, value in sums.items()}
            torch.stack(list(means.values())).sum().backward()
            for name, mean in means.items():
                totals[name] += mean.detach()
        distributed.sum_gradients(run.model)
        norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.optim.clip or float("inf"))
        values = distributed.sum_values(torch.stack([*totals.values()]))
        found = torch.cat([values, norm.float()[None]]).tolist()
        if not all(map(_finite, found)):
            shown = ", ".join(f"{n} {v:.4g}" for n, v in zip([*names, "gradient"], found))
            raise UserError(f"step {step + 1} is not finite ({shown}): nothing was changed by it; try a lower rate")
        run.optimiser.step()
        yield Report(
            step + 1,
            dict(zip(names, found)),
            rate,
            found[-1],
            counts[" tokens"],
            sum(training_flops(run.model, b) for b in batches),
            time.perf_counter() - began,
            cursor,
        )


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


def _finite(value: float) -> bool:
    return value - value == 0.0
