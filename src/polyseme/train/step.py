"""One training step on its device: the gradients of each micro-batch, then an update of the weights.

On a GPU with micro-batches of one shape, the kernels of a step are captured in CUDA graphs: launched one by one, some
700 kernels leave the GPU waiting for the host.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyseme.nn.cuda_graph import CudaGraphs, shape_signature
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.train import distributed
from polyseme.train.optimizer import NTASGD

if TYPE_CHECKING:
    from polyseme.train.loop import TrainState


WARMUP_CALLS = 3  # eager calls before a capture, in which kernels are compiled and chosen
MAX_GRAPHS = 48  # per function


class CudaGraphed:
    """A function whose kernels are captured at the fourth call with arguments of the same shapes, then replayed.

    Unless `enabled`, it is called eagerly.
    """

    def __init__(self, fn: Callable[..., Any], enabled: bool):
        self.fn, self.enabled = fn, enabled
        self.graphs = CudaGraphs(WARMUP_CALLS, MAX_GRAPHS, clone_outputs=True)

    def __call__(self, *args: Any) -> Any:
        return self.graphs(shape_signature(args), self.fn, *args) if self.enabled else self.fn(*args)


def can_capture(model: Model, has_static_shapes: bool, is_padded: bool) -> bool:
    """Return whether training steps of a model can be captured.

    Batches must have shapes that recur: by themselves (`has_static_shapes`), or because they are padded to few shapes,
    if the trunk's kernels do not depend on lengths then. A module that reads tensors on the host rules it out.
    """
    if any(getattr(module, "needs_host_sync", False) for module in model.modules()):
        return False
    trunk = model.config.trunk
    return has_static_shapes or (is_padded and (trunk.supports_static_shape or not trunk.depends_on_lengths))


class StepExecutor:
    """Runs the parts of a step: `forward_backward` for each micro-batch, `reduce_and_clip`, `optimizer_step`."""

    def __init__(self, state: TrainState):
        self.state = state
        self.is_cuda = state.device.type == "cuda"
        use_bf16_copy = self.is_cuda and state.precision == "bf16"
        self.bf16_copy = BF16WorkingCopy(state.model, state.use_cuda_graphs) if use_bf16_copy else None
        self.depends_on_lengths = state.model.config.trunk.depends_on_lengths
        self.loss_means = torch.zeros(0, device=state.device)  # of each term
        self.first_nonfinite_step = torch.zeros((), device=state.device)  # 0 for none; after it, weights do not change
        if self.is_cuda:
            state.optimizer.found_inf = torch.zeros((), device=state.device)  # type: ignore[attr-defined]
        captures = state.use_cuda_graphs and use_bf16_copy and not distributed.is_distributed()
        self._run_first = CudaGraphed(self._first_micro_batch, captures)
        self._run_next = CudaGraphed(self._next_micro_batch, captures)
        self.reduce_and_clip = CudaGraphed(self._reduce_and_clip, captures)
        # NT-ASGD counts steps in Python
        self.optimizer_step = CudaGraphed(self._optimizer_step, captures and not isinstance(state.optimizer, NTASGD))

    def close(self) -> None:
        """Release the memory of CUDA graphs."""
        for call in (self._run_first, self._run_next, self.reduce_and_clip, self.optimizer_step):
            call.graphs.clear()

    def forward_backward(self, batch: Batch, counts: Tensor, is_first: bool) -> None:
        """Add the gradients of a micro-batch, each term divided by its count over the step.

        The step is not captured if the batch needs the host, or if its lengths vary and the trunk depends on them.
        """
        layout, memory = batch.inputs.layout, batch.extra.memory
        self.state.model.trunk.check(batch.inputs)
        lengths = layout.lengths
        needs_lengths = self.depends_on_lengths and not layout.has_static_shape and len(set(lengths)) > 1
        is_eager = needs_lengths or not batch.extra.supports_cuda_graphs
        call = self._run_first if is_first else self._run_next
        new_memory: Memory | None = (call.fn if is_eager else call)(batch, counts, memory)
        if new_memory is not None:
            num_seen = memory.num_seen if memory else (0,) * len(lengths)  # counted here: a replay runs no Python
            batch.extra.store_memory(new_memory.with_num_seen(tuple(a + b for a, b in zip(num_seen, lengths))))

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
        max_norm = self.state.optimizer_config.max_grad_norm or float("inf")
        grad_norm = torch.nn.utils.clip_grad_norm_(self.state.model.parameters(), max_norm)
        values = torch.cat([distributed.all_reduce_sum(self.loss_means), grad_norm.float()[None]])
        first = self.first_nonfinite_step
        first.copy_(torch.where((first == 0) & ~values.isfinite().all(), step.to(first), first))
        return torch.cat([values, first[None]])

    def _optimizer_step(self) -> None:
        if self.is_cuda:  # fused optimizers read it
            self.state.optimizer.found_inf.copy_(self.first_nonfinite_step > 0)  # type: ignore[attr-defined]
        self.state.optimizer.step()


class BF16WorkingCopy:
    """A copy of the model in bfloat16 for forward and backward passes; the master weights stay in float32.

    Unlike with autocast, nothing between two matrix products is in float32 (except inside norms), and a weight is
    rounded once per step, not once per use. With `has_static_grads`, gradients keep their addresses, as CUDA graphs
    require: parameters without a gradient have zeros instead of None.
    """

    def __init__(self, model: Model, has_static_grads: bool = True):
        self.has_static_grads = has_static_grads
        self.model = copy.deepcopy(model).to(torch.bfloat16)
        for master_module, bf16_module in zip(model.modules(), self.model.modules()):
            bf16_module._buffers.update(master_module._buffers)  # running statistics are shared
        pairs = [(p, h) for p, h in zip(model.parameters(), self.model.parameters()) if p.requires_grad]
        self.master_params: list[Tensor] = [p for p, _ in pairs]
        self.bf16_params: list[Tensor] = [h for _, h in pairs]

    @torch.no_grad()
    def copy_weights_from_master(self) -> Model:
        """Copy the current master weights and return the working copy."""
        torch._foreach_copy_(self.bf16_params, self.master_params)
        return self.model

    @torch.no_grad()
    def copy_grads_to_master(self, is_first: bool) -> None:
        """Move gradients to the master weights: replace theirs if `is_first`, otherwise add."""
        master_grads, bf16_grads = [], []
        for p, h in zip(self.master_params, self.bf16_params):
            if h.grad is not None:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                master_grads.append(p.grad)
                bf16_grads.append(h.grad)
                h.grad = None
            elif is_first and p.grad is not None:  # a gradient of the step before
                p.grad = p.grad.zero_() if self.has_static_grads else None
        (torch._foreach_copy_ if is_first else torch._foreach_add_)(master_grads, bf16_grads)
