"""What a step does on its device: the gradients of each micro-batch, then one change of the weights.

On a GPU with micro-batches of one shape, the kernels of a step are recorded once and then replayed as one: launched
one by one, some 700 of them leave the GPU waiting for the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyseme.nn.index_cache import retain_entries
from polyseme.nn.memory import Memory
from polyseme.objectives.batch import Batch, SegmentState, shape_signature, tree_leaves, tree_map
from polyseme.train import distributed
from polyseme.train.asgd import NTASGD
from polyseme.train.mixed_precision import BF16WorkingCopy

if TYPE_CHECKING:
    from polyseme.train.loop import TrainState

WARMUP_CALLS = 3  # calls before a recording: kernels are compiled and chosen in them
MAX_GRAPHS = 48  # recordings of a function


class StepExecutor:
    """What a device does in a step: `forward_backward` of each micro-batch, `reduce_and_clip`, `optimizer_step`."""

    def __init__(self, state: TrainState):
        self.state = state
        is_cuda = state.device.type == "cuda"
        self.bf16_copy = (
            BF16WorkingCopy(state.model, state.use_cuda_graphs) if is_cuda and state.precision == "bf16" else None
        )
        self.depends_on_lengths = state.model.config.trunk.depends_on_lengths
        self.loss_means = torch.zeros(0, device=state.device)  # the mean of each term
        self.first_nonfinite_step = torch.zeros(
            (), device=state.device
        )  # the first step that was not finite; then nothing changes
        if is_cuda:
            state.optimizer.found_inf = torch.zeros((), device=state.device)  # type: ignore[attr-defined]
        wrap = (
            CudaGraphed if state.use_cuda_graphs and self.bf16_copy and not distributed.is_distributed() else _identity
        )
        self._run_first, self._run_next = wrap(self._first_micro_batch), wrap(self._next_micro_batch)
        self.reduce_and_clip = wrap(self._reduce_and_clip)
        is_nt_asgd = isinstance(state.optimizer, NTASGD)  # in Python, and from a moment on does more
        self.optimizer_step = self._optimizer_step if is_nt_asgd else wrap(self._optimizer_step)

    def close(self) -> None:
        """Give back the memory of recordings."""
        for call in (self._run_first, self._run_next, self.reduce_and_clip, self.optimizer_step):
            if isinstance(call, CudaGraphed):
                call.graphs.clear()

    def forward_backward(self, batch: Batch, counts: Tensor, is_first: bool) -> None:
        """Add the gradients of a micro-batch, each term divided by its count over the step.

        What is read in chunks is for the host to see to, and so are uneven lengths where the trunk works by them: that
        is not recorded.
        """
        is_eager = batch.chunk_size or (self.depends_on_lengths and len(set(batch.layout.lengths)) > 1)
        calls = (self._first_micro_batch, self._next_micro_batch) if is_eager else (self._run_first, self._run_next)
        segment_state = batch.segment_state
        memory = None if segment_state is None or batch.starts_fresh else segment_state.memory
        new_memory = calls[0 if is_first else 1](batch, counts, memory)
        if segment_state is not None and new_memory is not None:
            num_seen = memory.num_seen if memory else (0,) * len(batch.layout.lengths)  # a recording cannot count
            segment_state.memory = replace(
                new_memory, num_seen=tuple(a + b for a, b in zip(num_seen, batch.layout.lengths))
            )

    def _first_micro_batch(self, batch: Batch, counts: Tensor, memory: Memory | None) -> Memory | None:
        if self.bf16_copy:
            self.bf16_copy.copy_weights_from_master()
        else:
            self.state.optimizer.zero_grad(set_to_none=True)
        means, new_memory = self._compute_grads(batch, counts, memory)
        if self.loss_means.shape != means.shape:
            self.loss_means = torch.zeros_like(means)  # stays where it is: recordings know it by its place
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
        """The mean of each term, and what is remembered of the batch."""
        segment_state = SegmentState(memory)
        batch = batch.to(self.state.device)
        batch = replace(batch, segment_state=batch.segment_state and segment_state, starts_fresh=memory is None)
        with nullcontext() if self.bf16_copy else self.state.autocast():
            sums = self.state.loss_fn(self.bf16_copy.model if self.bf16_copy else self.state.model, batch)
        means = torch.stack(list(sums.values())) / counts.to(self.state.device)
        sum(batch.targets[name].weight * mean for name, mean in zip(sums, means)).backward()
        return means.detach(), segment_state.memory

    def _reduce_and_clip(self, step: Tensor) -> Tensor:
        """The mean of each term, the norm of the gradient, and the first step that was not finite, or 0.

        The gradients are summed over the ranks and clipped.
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
        if self.state.device.type == "cuda":  # the fused kernel heeds it
            self.state.optimizer.found_inf.copy_(self.first_nonfinite_step > 0)  # type: ignore[attr-defined]
        self.state.optimizer.step()


def _identity(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


class CudaGraphed:
    """A function of tensors on a GPU, recorded at its fourth call with inputs of a kind, then replayed on new values.

    What it does in Python alone happens once. Kinds beyond the first few dozens are not recorded.
    """

    memory_pool: Any = None  # of memory, for all recordings: no two run at once, and what they leave is copied out

    def __init__(self, fn: Callable[..., Any]):
        self.fn, self.stream = fn, torch.cuda.Stream()
        self.call_counts: Counter[tuple[object, ...]] = Counter()
        self.graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = shape_signature(args)
        if key not in self.graphs:
            self.call_counts[key] += 1
            if self.call_counts[key] <= WARMUP_CALLS or len(self.graphs) == MAX_GRAPHS:
                return self._warmup_call(args)
            self.graphs[key] = self._capture(args)
        graph, static_inputs, output = self.graphs[key]
        for static_input, tensor in zip(static_inputs, tree_leaves(args)):
            static_input.copy_(tensor, non_blocking=True)
        graph.replay()
        return tree_map(output, torch.clone)

    def _warmup_call(self, args: tuple[Any, ...]) -> Any:
        """A plain call, on the stream that will record: gradients belong to the stream that first made them."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), retain_entries():
            output = self.fn(*args)
        torch.cuda.current_stream().wait_stream(self.stream)
        return output

    def _capture(self, args: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        static_args = tree_map(args, lambda t: t.to("cuda", copy=True))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the plain calls used, the recording takes anew
        if CudaGraphed.memory_pool is None:
            CudaGraphed.memory_pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # other threads may go on meanwhile: one makes the next batches ready in pinned memory
        capture = torch.cuda.graph(
            graph, pool=CudaGraphed.memory_pool, stream=self.stream, capture_error_mode="thread_local"
        )
        with capture, retain_entries():
            output = self.fn(*static_args)
        return graph, tree_leaves(static_args), output
