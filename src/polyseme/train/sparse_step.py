"""A training step that updates few rows of large tables, without a gradient of a whole table.

Gradients of several words are summed, while the word2vec program updates after each word. For the same result, rows
that occur many times must not diverge: a sum of n gradients is divided by 1 + n · lr · `count_damping`. That is nearly
1 for most words; for frequent words it has the effect of gradients that each see the updates before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyseme.errors import ConfigError
from polyseme.nn.layers.embeddings import SparseRowGrad
from polyseme.nn.model import SparseBatch
from polyseme.objectives.batch import SparseUpdateBatch
from polyseme.train import distributed
from polyseme.train.step import CudaGraphed

if TYPE_CHECKING:
    from polyseme.train.loop import TrainState


class SparseStepExecutor:
    """`StepExecutor` for heads with sparse gradients; tables are updated in `forward_backward`, after a few words."""

    def __init__(self, state: TrainState):
        if distributed.is_distributed():
            raise ConfigError(f"optimizer {state.optimizer_config.name!r} runs in one process only")
        self.state = state
        self.lr = torch.zeros((), device=state.device)  # captured kernels read this tensor
        self.mean_loss = torch.zeros((), device=state.device)
        self.first_nonfinite_step = torch.zeros((), device=state.device)  # 0 for none; after it, tables do not change
        self.count_buffers: dict[int, Tensor] = {}  # zeros, one buffer for each table size
        self.num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # operators are too small for threads
        captures = state.use_cuda_graphs and state.device.type == "cuda"
        self._update = CudaGraphed(self._update_rows, captures)
        self._update_with_loss = CudaGraphed(self._update_rows_with_loss, captures)

    def close(self) -> None:
        """Restore the number of threads and release the memory of CUDA graphs."""
        torch.set_num_threads(self.num_threads)
        for call in (self._update, self._update_with_loss):
            call.graphs.clear()

    @torch.no_grad()
    def forward_backward(self, batch: SparseUpdateBatch, counts: Tensor, is_first: bool) -> None:
        """Update the tables. For speed, the loss is that of the first words only, before their update."""
        examples, self.term = batch.to(self.state.device).examples, batch.term
        self.lr.fill_(self.state.optimizer.param_groups[0]["lr"])
        blocks_per_update = max(self.state.optimizer_config.words_per_update // examples.block_size, 1)
        for start in range(0, examples.num_blocks, blocks_per_update):
            chunk = examples.slice_blocks(start, min(start + blocks_per_update, examples.num_blocks))
            if is_first and start == 0:
                self.mean_loss = self._update_with_loss(chunk)
                if self.state.device.type == "cpu" and not self.mean_loss.isfinite():
                    return  # reported by `reduce_and_clip`
            else:
                self._update(chunk)

    def _update_rows(self, chunk: SparseBatch) -> None:
        for grad in self.state.model.compute_sparse_grads(self.term, chunk)[1]:
            self._apply_grad(grad)

    def _update_rows_with_loss(self, chunk: SparseBatch) -> Tensor:
        """Update the tables and return the mean loss."""
        loss_sum, grads = self.state.model.compute_sparse_grads(self.term, chunk, with_loss=True)
        assert loss_sum is not None
        mean_loss = loss_sum / chunk.count().clamp(min=1)
        if self.state.device.type == "cuda" or mean_loss.isfinite():
            for grad in grads:
                self._apply_grad(grad)
        return mean_loss

    def reduce_and_clip(self, step: Tensor) -> Tensor:
        """Return the mean loss, 0 for the norm of the gradient, and the first step that was not finite, or 0."""
        first = self.first_nonfinite_step
        first.copy_(torch.where((first == 0) & ~self.mean_loss.isfinite(), step.to(first), first))
        return torch.stack([self.mean_loss, torch.zeros_like(self.mean_loss), self.first_nonfinite_step])

    def optimizer_step(self) -> None:
        """Do nothing: `forward_backward` has updated the tables."""

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
            row_counts.index_fill_(0, ids, 0)  # only the rows in use
            rows = rows.mul_(scale.view(-1, *[1] * (rows.ndim - 1)))
        else:
            rows = rows.mul_(-lr)
        table.index_add_(0, ids, rows)
