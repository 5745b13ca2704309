"""One training step on its device: the gradients of each micro-batch, then an update of the weights.

On a GPU with micro-batches of one shape, the kernels of a step are captured in CUDA graphs: launched one by one, some
700 kernels leave the GPU waiting for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyseme.nn.memory import Memory
from polyseme.objectives.batch import Batch
from polyseme.train import distributed
from polyseme.train.asgd import NTASGD
from polyseme.train.cuda_graph import CudaGraphed
from polyseme.train.mixed_precision import BF16WorkingCopy

if TYPE_CHECKING:
    from polyseme.train.loop import TrainState


class StepExecutor:
    """Runs the parts of a step: `forward_backward` for each micro-batch, `reduce_and_clip`, `optimizer_step`."""

    def __init__(self, state: TrainState):
        self.state = state
        is_cuda = state.device.type == "cuda"
        self.bf16_copy = (
            BF16WorkingCopy(state.model, state.use_cuda_graphs) if is_cuda and state.precision == "bf16" else None
        )
        self.depends_on_lengths = state.model.config.trunk.depends_on_lengths
        self.loss_means = torch.zeros(0, device=state.device)  # of each term
        self.first_nonfinite_step = torch.zeros((), device=state.device)  # 0 for none; after it, weights do not change
        if is_cuda:
            state.optimizer.found_inf = torch.zeros((), device=state.device)  # type: ignore[attr-defined]
        self._run_first: Callable[..., Memory | None] = self._first_micro_batch
        self._run_next: Callable[..., Memory | None] = self._next_micro_batch
        self.reduce_and_clip: Callable[..., Tensor] = self._reduce_and_clip
        self.optimizer_step: Callable[..., None] = self._optimizer_step
        if state.use_cuda_graphs and self.bf16_copy and not distributed.is_distributed():
            self._run_first, self._run_next = CudaGraphed(self._run_first), CudaGraphed(self._run_next)
            self.reduce_and_clip = CudaGraphed(self._reduce_and_clip)
            if not isinstance(state.optimizer, NTASGD):  # which counts steps in Python
                self.optimizer_step = CudaGraphed(self._optimizer_step)

    def close(self) -> None:
        """Release the memory of CUDA graphs."""
        for call in (self._run_first, self._run_next, self.reduce_and_clip, self.optimizer_step):
            if isinstance(call, CudaGraphed):
                call.graphs.clear()

    def forward_backward(self, batch: Batch, counts: Tensor, is_first: bool) -> None:
        """Add the gradients of a micro-batch, each term divided by its count over the step.

        The step is not captured if the batch needs the host, or if its lengths vary and the trunk depends on them.
        """
        lengths, extra = batch.inputs.layout.lengths, batch.extra
        self.state.model.trunk.check(batch.inputs)
        is_eager = self.depends_on_lengths and len(set(lengths)) > 1
        is_eager = is_eager or not extra.supports_cuda_graphs
        calls = (self._first_micro_batch, self._next_micro_batch) if is_eager else (self._run_first, self._run_next)
        memory = extra.memory
        new_memory = calls[0 if is_first else 1](batch, counts, memory)
        if new_memory is not None:
            num_seen = memory.num_seen if memory else (0,) * len(lengths)  # counted here: a replay runs no Python
            extra.store_memory(replace(new_memory, num_seen=tuple(a + b for a, b in zip(num_seen, lengths))))

    def _first_micro_batch(self, batch: Batch, counts: Tensor, memory: Memory | None) -> Memory | None:
        if self.bf16_copy:
            self.bf16_copy.copy_weights_from_master()
        else:
            self.state.optimizer.zero_grad(set_to_none=True)
        means, new_memory = self._compute_grads(batch, counts, memory)
        if self.loss_means.shape != means.shape:
            self.loss_means = torch.zeros_like(means)  # captured kernels write to this tensor
        self.loss_means.copy_(means)
        if self.bf16_copy:
            self.bf16_copy.copy_grads_to_master(is_first=True)
        return new_memory

    def _next_micro_batch(self, batch: Batch, counts: Tensor, memory: Memory | None) -> Memory | None:
        means, new_memory = self._compute_grads(batch, counts, memory)
        self.loss_means += means
        if self.bf16_copy:
            self.bf16_copy.copy_grads_to_master(is_first=False)
        return new_memory

    def _compute_grads(self, batch: Batch, counts: Tensor, memory: Memory | None) -> tuple[Tensor, Memory | None]:
        """Return the mean of each term, and the memory for the next batch."""
        batch = batch.to(self.state.device)
        batch = replace(batch, extra=batch.extra.with_memory(memory))
        with nullcontext() if self.bf16_copy else self.state.autocast():
            sums = self.state.loss_fn(self.bf16_copy.model if self.bf16_copy else self.state.model, batch)
        means = torch.stack(list(sums.values())) / counts.to(self.state.device)
        sum(batch.targets[name].weight * mean for name, mean in zip(sums, means)).backward()
        return means.detach(), batch.extra.memory

    def _reduce_and_clip(self, step: Tensor) -> Tensor:
        """Sum the gradients over ranks and clip them.

        Returns the mean of each term, the norm of the gradient, and the first step that was not finite, or 0.
        """
        distributed.all_reduce_grads(self.state.model)
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.state.model.parameters(), self.state.optimizer_config.max_grad_norm or float("inf")
        )
        values = torch.cat([distributed.all_reduce_sum(self.loss_means), grad_norm.float()[None]])
        is_first_failure = (self.first_nonfinite_step == 0) & ~values.isfinite().all()
        self.first_nonfinite_step.copy_(
            torch.where(is_first_failure, step.to(self.first_nonfinite_step), self.first_nonfinite_step)
        )
        return torch.cat([values, self.first_nonfinite_step[None]])

    def _optimizer_step(self) -> None:
        if self.state.device.type == "cuda":  # which the fused optimizer reads
            self.state.optimizer.found_inf.copy_(self.first_nonfinite_step > 0)  # type: ignore[attr-defined]
        self.state.optimizer.step()
