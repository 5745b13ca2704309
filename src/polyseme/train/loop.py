"""The one training loop: a generator of steps. Saving, measuring and printing stay with whoever iterates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polyseme.errors import ModelError
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch, SparseUpdateBatch
from polyseme.objectives.losses import compute_losses
from polyseme.train import distributed
from polyseme.train.flops import count_training_flops
from polyseme.train.optimizer import OptimizerConfig, set_lr
from polyseme.train.prefetch import prefetch
from polyseme.train.schedule import ScheduleConfig
from polyseme.train.sparse_step import SparseStepExecutor
from polyseme.train.step import StepExecutor

AnyBatch = Batch | SparseUpdateBatch

SYNC_EVERY = 64  # steps after which the host waits for the GPU


@dataclass(frozen=True, eq=False)
class StepReport:
    """What one step did. `loss` has each term's mean over the step; `position` is where the next step reads.

    On a GPU the numbers stay there until somebody asks for them: asking waits for the step to end.
    """

    step: int  # steps done, this one included
    terms: tuple[str, ...]
    raw_metrics: Tensor  # the mean of each term, the norm of the gradient, and the first step that was not finite, or 0
    lr: float
    tokens: int
    flops: int
    seconds: float
    position: Any

    @cached_property
    def metrics(self) -> list[float]:
        *metrics, first_nonfinite_step = self.raw_metrics.tolist()
        if first_nonfinite_step:
            summary = ", ".join(f"{n} {v:.4g}" for n, v in zip([*self.terms, "grad_norm"], metrics))
            raise ModelError(
                f"step {int(first_nonfinite_step)} is not finite ({summary}): what was saved is whole; try a lower rate"
            )
        return metrics

    @property
    def loss(self) -> dict[str, float]:
        return dict(zip(self.terms, self.metrics))

    @property
    def grad_norm(self) -> float:
        return self.metrics[-1]


@dataclass
class TrainState:
    """Everything a step needs. `start_step` is the number of steps already done.

    The schedule runs from step `schedule_start` to step `total_steps`.
    """

    model: Model
    optimizer: torch.optim.Optimizer
    optimizer_config: OptimizerConfig
    schedule: ScheduleConfig
    total_steps: int
    device: torch.device
    precision: str = "float32"
    seed: int = 0
    rank: int = 0
    start_step: int = 0
    schedule_start: int = 0
    loss_fn: Callable[[Model, Any], dict[str, Tensor]] = compute_losses
    is_compiled: bool = False  # whether `terms` is
    use_cuda_graphs: bool = False  # on a GPU, replay a step's kernels as one; micro-batches must be of one shape
    flops_fn: Callable[[Model, Any], int] = count_training_flops

    def autocast(self) -> AbstractContextManager:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def setup_device() -> torch.device:
    """The GPU if there is one. On a CPU every operation is deterministic, so that a run can be repeated bit for bit."""
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = False  # float32 means it; who wants speed takes bfloat16
        return torch.device("cuda", torch.cuda.current_device())
    torch.use_deterministic_algorithms(True)
    # filling fresh memory is that mode's aid to debugging, and costs 5 %
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    return torch.device("cpu")


def train(state: TrainState, batches: Iterable[tuple[Sequence[AnyBatch], Any]]) -> Iterator[StepReport]:
    """Run steps `start + 1 … total` over (micro-batches of one step, the cursor after it).

    Whoever iterates may change `state.total` between steps.
    """
    state.model.train()
    is_cuda = state.device.type == "cuda"
    steps = zip(_step_numbers(state), prefetch(_pin_batches(batches) if is_cuda else batches))
    executor_class: Any = SparseStepExecutor if state.optimizer_config.is_sparse else StepExecutor
    with closing(executor_class(state)) as executor:
        for step, (micro_batches, position) in steps:
            start_time = time.perf_counter()
            # dropout is drawn from (seed, step, rank) and nothing else, so a run goes on exactly where it stopped
            _seed((state.seed << 40) + (step << 12) + state.rank, state.device)
            terms = tuple(micro_batches[0].counts())
            counts = {name: sum(b.counts()[name] for b in micro_batches) for name in terms}
            counts |= {" tokens": sum(b.num_tokens for b in micro_batches)}
            counts = distributed.all_reduce_counts(counts, state.device)
            lr = (
                state.optimizer_config.lr
                * state.schedule.lr_factor(step - state.schedule_start, state.total_steps - state.schedule_start)
                * micro_batches[0].lr_scale
            )
            set_lr(state.optimizer, lr)
            divisors = torch.tensor([float(max(counts[name], 1)) for name in terms])
            for index, batch in enumerate(micro_batches):
                executor.forward_backward(batch, divisors, is_first=index == 0)
            report = StepReport(
                step + 1,
                terms,
                executor.reduce_and_clip(torch.tensor(step + 1.0)),
                lr,
                counts[" tokens"],
                sum(state.flops_fn(state.model, b) for b in micro_batches),
                time.perf_counter() - start_time,
                position,
            )
            if not is_cuda or step % SYNC_EVERY == SYNC_EVERY - 1:
                report.metrics  # noqa: B018  # raises, and keeps the host from running far ahead of a GPU
            executor.optimizer_step()
            yield report


def _step_numbers(state: TrainState) -> Iterator[int]:
    step = state.start_step
    while step < state.total_steps:
        yield step
        step += 1


def _seed(seed: int, device: torch.device) -> None:
    """`torch.manual_seed` for the generators in use; that of every other device would cost a millisecond a step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def _pin_batches(batches: Iterable[tuple[Sequence[AnyBatch], Any]]) -> Iterator[tuple[Sequence[AnyBatch], Any]]:
    for micro_batches, position in batches:
        yield [batch.pin_memory() for batch in micro_batches], position
