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

from polyseme.errors import UserError
from polyseme.nn.model import Near
from polyseme.nn.sparse import RowGradient
from polyseme.objectives.batch import Batch
from polyseme.train import distributed
from polyseme.train.step import Recorded

if TYPE_CHECKING:
    from polyseme.train.loop import Training


class RowWork:
    """`Work` for heads that give gradients of rows; the tables change in `learn`, after every `at_once` words."""

    def __init__(self, run: Training):
        if distributed.several():
            raise UserError(f"the method {run.optim.method!r} changes tables in place, so it runs in one process only")
        self.run = run
        self.rate = torch.zeros((), device=run.device)  # stays where it is: recordings know it by its place
        self.total = torch.zeros((), device=run.device)  # the mean loss
        self.broken = torch.zeros((), device=run.device)  # the first step that was not finite; then nothing changes
        self.numbers: dict[int, Tensor] = {}  # for each length of table as many zeros, to count in
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # those of so small an operator wait for each other longer than they work
        self._learn: Callable[[Near], None] = self._learn_some
        self._tell: Callable[[Near], Tensor] = self._learn_and_tell
        if run.record and run.device.type == "cuda":
            self._learn, self._tell = Recorded(self._learn), Recorded(self._tell)

    def close(self) -> None:
        torch.set_num_threads(self.threads)
        for part in (self._learn, self._tell):
            if isinstance(part, Recorded):
                part.recordings.clear()

    @torch.no_grad()
    def learn(self, batch: Batch, counts: Tensor, first: bool) -> None:
        """The loss is that of the first words alone, before they are learnt from: all of it would cost time."""
        near = batch.to(self.run.device).near
        assert near is not None
        (self.name,) = batch.targets
        self.rate.fill_(self.run.optimiser.param_groups[0]["lr"])
        each = max(self.run.optim.at_once // near.block, 1)
        for low in range(0, near.num_blocks, each):
            part = near.part(low, min(low + each, near.num_blocks))
            if first and low == 0:
                self.total = self._tell(part)
                if self.run.device.type == "cpu" and not self.total.isfinite():
                    return  # told by `measure`
            else:
                self._learn(part)

    def _learn_some(self, part: Near) -> None:
        for gradient in self.run.model.row_gradients(self.name, part)[1]:
            self._add(gradient)

    def _learn_and_tell(self, part: Near) -> Tensor:
        """The mean loss."""
        total, found = self.run.model.row_gradients(self.name, part, loss=True)
        assert total is not None
        mean = total / part.count().clamp(min=1)
        if self.run.device.type == "cuda" or mean.isfinite():
            for gradient in found:
                self._add(gradient)
        return mean

    def measure(self, step: Tensor) -> Tensor:
        """The mean loss, no norm of a gradient, and the first step that was not finite, or 0."""
        fresh = (self.broken == 0) & ~self.total.isfinite()
        self.broken = torch.where(fresh, step.to(self.broken), self.broken)
        return torch.stack([self.total, torch.zeros_like(self.total), self.broken])

    def change(self) -> None:
        """They have changed already."""

    def _add(self, gradient: RowGradient) -> None:
        table, ids, rows, terms = gradient
        rate, damp = self.rate, self.run.optim.damp
        if self.run.optim.method == "adagrad":
            state = self.run.optimiser.state[table]
            if "sum" not in state:
                state["sum"] = torch.ones_like(table)
            state["sum"].index_add_(0, ids, rows.square())
            rows = rows * state["sum"].index_select(0, ids).rsqrt_().mul_(-rate)
        elif damp:
            if len(table) not in self.numbers:
                self.numbers[len(table)] = rows.new_zeros(len(table))
            number = self.numbers[len(table)].index_add_(0, ids, terms.to(rows))
            scale = number.index_select(0, ids).mul_(rate * damp).add_(1).reciprocal_().mul_(-rate)
            number.index_fill_(0, ids, 0)  # of a large table few
            rows = rows.mul_(scale.view(-1, *[1] * (rows.ndim - 1)))
        else:
            rows = rows.mul_(-rate)
        table.index_add_(0, ids, rows)
