"""The training loop: a generator of steps. The caller saves, validates and prints."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from polyseme.errors import ModelError
from polyseme.nn.model import Model, ModelConfig
from polyseme.objectives.batch import AnyBatch, SparseUpdateBatch
from polyseme.objectives.losses import compute_losses
from polyseme.train import distributed
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig, set_lr
from polyseme.train.sparse_step import SparseStepExecutor
from polyseme.train.step import StepExecutor

T = TypeVar("T")
SYNC_EVERY = 64  # steps after which the host waits for the GPU
PREFETCH_SIZE = 3  # steps whose batches are built ahead


@dataclass(frozen=True, eq=False)
class StepReport:
    """What one step did; `position` is where the next step continues in the data.

    On a GPU, `loss` and `grad_norm` stay on the device until they are read, which waits for the end of the step.
    """

    step: int  # number of steps done, including this one
    terms: tuple[str, ...]
    raw_metrics: Tensor  # the mean of each term, the norm of the gradient, and the first step that was not finite, or 0
    lr: float
    tokens: int
    flops: int
    position: Any

    @cached_property
    def metrics(self) -> list[float]:
        """The mean of each term and the norm of the gradient; raises if a step was not finite."""
        *metrics, first_nonfinite_step = self.raw_metrics.tolist()
        if first_nonfinite_step:
            summary = ", ".join(f"{n} {v:.4g}" for n, v in zip([*self.terms, "grad_norm"], metrics))
            raise ModelError(
                f"step {int(first_nonfinite_step)} is not finite ({summary}): "
                "the last checkpoint is intact; try a lower learning rate"
            )
        return metrics

    @property
    def loss(self) -> dict[str, float]:
        """The mean of each loss term over the step."""
        return dict(zip(self.terms, self.metrics))

    @property
    def grad_norm(self) -> float:
        """The norm of the gradient before clipping."""
        return self.metrics[-1]


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, and of those in graphs that another program runs."""
    num_graph_parameters = sum(getattr(module, "num_graph_parameters", 0) for module in model.modules())
    return sum(p.numel() for p in model.parameters()) + num_graph_parameters


def count_training_flops(model: Model, batch: AnyBatch) -> int:
    """Return the operations of a forward and backward pass: 6 per matrix weight and row, and those of attention."""
    if isinstance(batch, SparseUpdateBatch):  # products of pairs of words
        return 6 * model.config.trunk.dim * batch.examples.num_products
    inputs = batch.inputs
    source_lengths = () if inputs.source is None else inputs.source.layout.lengths
    num_targets = {name: targets.count for name, targets in batch.targets.items()}
    total = count_pass_flops(model.config, inputs.layout.lengths, source_lengths, num_targets)
    return total + batch.extra.num_extra_forwards * total // 3


def count_pass_flops(
    config: ModelConfig, lengths: Sequence[int], source_lengths: Sequence[int], num_targets: Mapping[str, int]
) -> int:
    """Return the operations of a forward and backward pass over sequences, with so many predictions of each head."""
    trunk, dim = config.trunk, config.trunk.dim
    total = trunk.count_flops(lengths, source_lengths)
    for name, num_rows in num_targets.items():
        if (head := config.heads.get(name)) is not None:  # otherwise a term without weights
            token_params = head.token_params(dim)
            has_pooler = head.pooling == "pooled" and trunk.pooler.dense and not token_params
            total += 6 * token_params * sum(lengths)
            total += 6 * num_rows * (head.matmul_params(dim) + (dim * dim if has_pooler else 0))
    return total


@dataclass
class TrainState:
    """Everything a step needs. `start_step` is the number of steps already done.

    The schedule runs from step `schedule_start` to step `schedule_end`, or `total_steps` if that is 0.
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
    schedule_end: int = 0
    loss_fn: Callable[[Model, Any], dict[str, Tensor]] = compute_losses
    is_compiled: bool = False  # whether `loss_fn` is
    use_cuda_graphs: bool = False  # on a GPU, capture the kernels of a step; micro-batches must have one shape
    flops_fn: Callable[[Model, Any], int] = count_training_flops
    after_step: Callable[[Model, int], None] | None = None  # called with the number of steps done; may change weights

    def autocast(self) -> AbstractContextManager:
        """Return the context of a forward pass in `precision`."""
        return nullcontext() if self.precision == "float32" else torch.autocast(self.device.type, torch.bfloat16)


def setup_device() -> torch.device:
    """Return the GPU if there is one. On a CPU, make every operation deterministic, so that runs are repeatable."""
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = False  # float32 is exact; bfloat16 is for speed
        return torch.device("cuda", torch.cuda.current_device())
    torch.use_deterministic_algorithms(True)
    # filling uninitialized memory helps debugging, and costs 5 %
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    return torch.device("cpu")


def train(state: TrainState, batches: Iterable[tuple[Sequence[AnyBatch], Any]]) -> Iterator[StepReport]:
    """Run the steps after `start_step` up to `total_steps`, which the caller may change between steps.

    `batches` yields the micro-batches of a step and the position in the data after it.
    """
    state.model.train()
    is_cuda = state.device.type == "cuda"
    numbers = takewhile(lambda step: step < state.total_steps, count(state.start_step))
    generators = [torch.default_generator]  # `torch.manual_seed` seeds those of all devices: a millisecond per step
    if is_cuda:
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        batches = (([b.pin_memory() for b in micro_batches], position) for micro_batches, position in batches)
    executor_class: Any = SparseStepExecutor if state.optimizer_config.is_sparse else StepExecutor
    with closing(executor_class(state)) as executor:
        for step, (micro_batches, position) in zip(numbers, prefetch(batches)):
            # dropout depends on (seed, step, rank) only, so that a resumed run continues exactly
            for generator in generators:
                generator.manual_seed(((state.seed << 40) + (step << 12) + state.rank) % 2**64)
            terms = tuple(micro_batches[0].counts())
            counts = {name: sum(b.counts()[name] for b in micro_batches) for name in terms}
            counts |= {" tokens": sum(b.num_tokens for b in micro_batches)}
            counts = distributed.all_reduce_counts(counts, state.device)
            schedule_steps = (state.schedule_end or state.total_steps) - state.schedule_start
            lr_factor = state.schedule.lr_factor(step - state.schedule_start, schedule_steps)
            lr = state.optimizer_config.lr * lr_factor * micro_batches[0].lr_scale
            set_lr(state.optimizer, lr)
            divisors = torch.tensor([float(max(counts[name], 1)) for name in terms])
            for index, batch in enumerate(micro_batches):
                executor.forward_backward(batch, divisors, is_first=index == 0)
            metrics = executor.reduce_and_clip(torch.tensor(step + 1.0))
            flops = sum(state.flops_fn(state.model, b) for b in micro_batches)
            report = StepReport(step + 1, terms, metrics, lr, counts[" tokens"], flops, position)
            if not is_cuda or step % SYNC_EVERY == SYNC_EVERY - 1:
                report.metrics  # noqa: B018  # raises, and keeps the host from running far ahead of a GPU
            executor.optimizer_step()
            if state.after_step is not None:
                state.after_step(state.model, step + 1)
            yield report


def prefetch(items: Iterable[T], buffer_size: int = PREFETCH_SIZE) -> Iterator[T]:
    """Yield the items, which one thread computes ahead: masking a batch is numpy, which releases the lock."""
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1)
    try:
        futures = deque(pool.submit(next, iterator, end) for _ in range(buffer_size))
        while (value := futures.popleft().result()) is not end:
            futures.append(pool.submit(next, iterator, end))
            yield value  # type: ignore[misc]
    finally:
        pool.shutdown(cancel_futures=True)
