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

from polyseme.nn.index_cache import pinned
from polyseme.nn.memory import Memory
from polyseme.objectives.batch import Batch, Carry, changed, signature, tensors
from polyseme.train import distributed
from polyseme.train.asgd import TriggeredASGD
from polyseme.train.mixed_precision import Half

if TYPE_CHECKING:
    from polyseme.train.loop import Training

WARM = 3  # calls before a recording: kernels are compiled and chosen in them
MOST = 48  # recordings of a function


class Work:
    """The three things a device does in a step: `learn` from each micro-batch, `measure`, and `change` the weights."""

    def __init__(self, run: Training):
        self.run = run
        cuda = run.device.type == "cuda"
        self.half = Half(run.model, run.record) if cuda and run.precision == "bf16" else None
        self.by_lengths = run.model.spec.trunk.by_lengths
        self.totals = torch.zeros(0, device=run.device)  # the mean of each term
        self.broken = torch.zeros((), device=run.device)  # the first step that was not finite; then nothing changes
        if cuda:
            run.optimiser.found_inf = torch.zeros((), device=run.device)  # type: ignore[attr-defined]
        recorded = Recorded if run.record and self.half and not distributed.several() else _plain
        self._first, self._more = recorded(self._learn_first), recorded(self._learn_more)
        self.measure = recorded(self._measure)
        counts = isinstance(run.optimiser, TriggeredASGD)  # in Python, and from a moment on does more
        self.change = self._change if counts else recorded(self._change)

    def close(self) -> None:
        """Give back the memory of recordings."""
        for part in (self._first, self._more, self.measure, self.change):
            if isinstance(part, Recorded):
                part.recordings.clear()

    def learn(self, batch: Batch, counts: Tensor, first: bool) -> None:
        """Add the gradients of a micro-batch, each term divided by its count over the step.

        What is read in chunks is for the host to see to, and so are uneven lengths where the trunk works by them: that
        is not recorded.
        """
        plain = batch.chunk or (self.by_lengths and len(set(batch.layout.lengths)) > 1)
        learn = (self._learn_first, self._learn_more) if plain else (self._first, self._more)
        carry = batch.carry
        memory = None if carry is None or batch.opens else carry.memory
        kept = learn[0 if first else 1](batch, counts, memory)
        if carry is not None and kept is not None:
            read = memory.read if memory else (0,) * len(batch.layout.lengths)  # a recording cannot count
            carry.memory = replace(kept, read=tuple(a + b for a, b in zip(read, batch.layout.lengths)))

    def _learn_first(self, batch: Batch, counts: Tensor, memory: Memory | None) -> Memory | None:
        if self.half:
            self.half.load()
        else:
            self.run.optimiser.zero_grad(set_to_none=True)
        found, kept = self._gradients(batch, counts, memory)
        if self.totals.shape != found.shape:
            self.totals = torch.zeros_like(found)  # stays where it is: recordings know it by its place
        self.totals.copy_(found)
        if self.half:
            self.half.give(fresh=True)
        return kept

    def _learn_more(self, batch: Batch, counts: Tensor, memory: Memory | None) -> Memory | None:
        found, kept = self._gradients(batch, counts, memory)
        self.totals += found
        if self.half:
            self.half.give(fresh=False)
        return kept

    def _gradients(self, batch: Batch, counts: Tensor, memory: Memory | None) -> tuple[Tensor, Memory | None]:
        """The mean of each term, and what is remembered of the batch."""
        carry = Carry(memory)
        batch = batch.to(self.run.device)
        batch = replace(batch, carry=batch.carry and carry, opens=memory is None)
        with nullcontext() if self.half else self.run.autocast():
            sums = self.run.terms(self.half.model if self.half else self.run.model, batch)
        means = torch.stack(list(sums.values())) / counts.to(self.run.device)
        sum(batch.targets[name].weight * mean for name, mean in zip(sums, means)).backward()
        return means.detach(), carry.memory

    def _measure(self, step: Tensor) -> Tensor:
        """The mean of each term, the norm of the gradient, and the first step that was not finite, or 0.

        The gradients are summed over the ranks and clipped.
        """
        distributed.sum_gradients(self.run.model)
        norm = torch.nn.utils.clip_grad_norm_(self.run.model.parameters(), self.run.optim.clip or float("inf"))
        values = torch.cat([distributed.sum_values(self.totals), norm.float()[None]])
        fresh = (self.broken == 0) & ~values.isfinite().all()
        self.broken.copy_(torch.where(fresh, step.to(self.broken), self.broken))
        return torch.cat([values, self.broken[None]])

    def _change(self) -> None:
        if self.run.device.type == "cuda":  # the fused kernel heeds it
            self.run.optimiser.found_inf.copy_(self.broken > 0)  # type: ignore[attr-defined]
        self.run.optimiser.step()


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Recorded:
    """A function of tensors on a GPU, recorded at its fourth call with inputs of a kind, then replayed on new values.

    What it does in Python alone happens once. Kinds beyond the first few dozens are not recorded.
    """

    pool: Any = None  # of memory, for all recordings: no two run at once, and what they leave is copied out

    def __init__(self, function: Callable[..., Any]):
        self.function, self.stream = function, torch.cuda.Stream()
        self.calls: Counter[tuple[object, ...]] = Counter()
        self.recordings: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *given: Any) -> Any:
        kind = signature(given)
        if kind not in self.recordings:
            self.calls[kind] += 1
            if self.calls[kind] <= WARM or len(self.recordings) == MOST:
                return self._aside(given)
            self.recordings[kind] = self._record(given)
        graph, inputs, result = self.recordings[kind]
        for mine, yours in zip(inputs, tensors(given)):
            mine.copy_(yours, non_blocking=True)
        graph.replay()
        return changed(result, torch.clone)

    def _aside(self, given: tuple[Any, ...]) -> Any:
        """A plain call, on the stream that will record: gradients belong to the stream that first made them."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), pinned():
            found = self.function(*given)
        torch.cuda.current_stream().wait_stream(self.stream)
        return found

    def _record(self, given: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        held = changed(given, lambda t: t.to("cuda", copy=True))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the plain calls used, the recording takes anew
        if Recorded.pool is None:
            Recorded.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # other threads may go on meanwhile: one makes the next batches ready in pinned memory
        captured = torch.cuda.graph(graph, pool=Recorded.pool, stream=self.stream, capture_error_mode="thread_local")
        with captured, pinned():
            result = self.function(*held)
        return graph, tensors(held), result
