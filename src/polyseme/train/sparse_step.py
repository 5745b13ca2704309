"""A step that changes few rows of large tables: no gradient of a whole table is ever made.

Descent adds up the gradients of some words at once, where the authors' code goes word by word. For that to come out the
same, rows that stand in it many times must not run away: a sum of n terms is divided by 1 + n · rate · `damp`, which
is nearly 1 for most words, and makes of many terms less than their sum, as if each had seen what those before it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyseme.errors import ConfigError
from polyseme.nn.model import SparseBatch
from polyseme.nn.sparse import SparseRowGrad
from polyseme.objectives.batch import Batch
from polyseme.train import distributed
from polyseme.train.step import CudaGraphed

if TYPE_CHECKING:
    from polyseme.train.loop import TrainState


class SparseStepExecutor:
    """`Work` for heads that give gradients of rows; the tables change in `forward_backward`, after every `at_once` words."""

    def __init__(self, state: TrainState):
        if distributed.is_distributed():
            raise ConfigError(
                f"the method {state.optimizer_config.name!r} changes tables in place, so it runs in one process only"
            )
        self.state = state
        self.lr = torch.zeros((), device=state.device)  # stays where it is: recordings know it by its place
        self.mean_loss = torch.zeros((), device=state.device)  # the mean loss
        self.first_nonfinite_step = torch.zeros(
            (), device=state.device
        )  # the first step that was not finite; then nothing changes
        self.count_buffers: dict[int, Tensor] = {}  # for each length of table as many zeros, to count in
        self.num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # those of so small an operator wait for each other longer than they work
        self._update: Callable[[SparseBatch], None] = self._update_rows
        self._update_with_loss: Callable[[SparseBatch], Tensor] = self._update_rows_with_loss
        if state.use_cuda_graphs and state.device.type == "cuda":
            self._update, self._update_with_loss = CudaGraphed(self._update), CudaGraphed(self._update_with_loss)

    def close(self) -> None:
        torch.set_num_threads(self.num_threads)
        for call in (self._update, self._update_with_loss):
            if isinstance(call, CudaGraphed):
                call.graphs.clear()

    @torch.no_grad()
    def forward_backward(self, batch: Batch, counts: Tensor, is_first: bool) -> None:
        """The loss is that of the first words alone, before they are learnt from: all of it would cost time."""
        sparse = batch.to(self.state.device).sparse
        assert sparse is not None
        (self.term,) = batch.targets
        self.lr.fill_(self.state.optimizer.param_groups[0]["lr"])
        blocks_per_update = max(self.state.optimizer_config.words_per_update // sparse.block_size, 1)
        for start in range(0, sparse.num_blocks, blocks_per_update):
            chunk = sparse.slice_blocks(start, min(start + blocks_per_update, sparse.num_blocks))
            if is_first and start == 0:
                self.mean_loss = self._update_with_loss(chunk)
                if self.state.device.type == "cpu" and not self.mean_loss.isfinite():
                    return  # told by `reduce_and_clip`
            else:
                self._update(chunk)

    def _update_rows(self, chunk: SparseBatch) -> None:
        for grad in self.state.model.compute_sparse_grads(self.term, chunk)[1]:
            self._apply_grad(grad)

    def _update_rows_with_loss(self, chunk: SparseBatch) -> Tensor:
        """The mean loss."""
        loss_sum, grads = self.state.model.compute_sparse_grads(self.term, chunk, with_loss=True)
        assert loss_sum is not None
        mean_loss = loss_sum / chunk.count().clamp(min=1)
        if self.state.device.type == "cuda" or mean_loss.isfinite():
            for grad in grads:
                self._apply_grad(grad)
        return mean_loss

    def reduce_and_clip(self, step: Tensor) -> Tensor:
        """The mean loss, no norm of a gradient, and the first step that was not finite, or 0."""
        is_first_failure = (self.first_nonfinite_step == 0) & ~self.mean_loss.isfinite()
        self.first_nonfinite_step = torch.where(
            is_first_failure, step.to(self.first_nonfinite_step), self.first_nonfinite_step
        )
        return torch.stack([self.mean_loss, torch.zeros_like(self.mean_loss), self.first_nonfinite_step])

    def optimizer_step(self) -> None:
        """They have changed already."""

    def _apply_grad(self, grad: SparseRowGrad) -> None:
        table, ids, rows, counts = grad
        lr, damping = self.lr, self.state.optimizer_config.count_damping
        if self.state.optimizer_config.name == "sparse_adagrad":
            state = self.state.optimizer.state[table]
            if "sum" not in state:
                state["sum"] = torch.ones_like(table)
            state["sum"].index_add_(0, ids, rows.square())
            rows = rows * state["sum"].index_select(0, ids).rsqrt_().mul_(-lr)
        elif damping:
            if len(table) not in self.count_buffers:
                self.count_buffers[len(table)] = rows.new_zeros(len(table))
            row_counts = self.count_buffers[len(table)].index_add_(0, ids, counts.to(rows))
            scale = row_counts.index_select(0, ids).mul_(lr * damping).add_(1).reciprocal_().mul_(-lr)
            row_counts.index_fill_(0, ids, 0)  # of a large table few
            rows = rows.mul_(scale.view(-1, *[1] * (rows.ndim - 1)))
        else:
            rows = rows.mul_(-lr)
        table.index_add_(0, ids, rows)
