"""Cross entropy over a vocabulary on a GPU: scores of a slice of rows become gradients where they stand.

The scores of all rows never exist at once, and their softmax is never written. As the loss is a sum, its gradient is
known up to a factor when the scores are there, so both are made in one go, forwards.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS = 8192  # scores in memory at a time
TILE = 64  # matrix products like a vocabulary that is a multiple of this


@triton.jit
def _gradients(scores, targets, losses, size, stride, ignored, BLOCK: tl.constexpr):
    """One row: its loss, and softmax minus the truth in place of its scores; 0 behind the vocabulary's end."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * stride
    target = tl.load(targets + row)
    counts = target != ignored
    most = tl.full([BLOCK], -1e30, tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(scores + columns, mask=columns < size, other=-1e30).to(tl.float32)
        new = tl.maximum(most, x)
        sums = sums * tl.exp(most - new) + tl.exp(x - new)
        most = new
    top = tl.max(most, 0)
    level = top + tl.log(tl.sum(sums * tl.exp(most - top), 0))
    right = tl.load(scores + tl.where(counts, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counts, level - right, 0.0))
    tl.debug_barrier()
    for start in range(0, stride, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(scores + columns, mask=columns < size, other=-1e30).to(tl.float32)
        g = tl.exp(x - level) - tl.where(columns == target, 1.0, 0.0)
        g = tl.where(counts & (columns < size), g, 0.0)
        tl.store(scores + columns, g.to(scores.dtype.element_ty), mask=columns < stride)


@torch.library.custom_op("polyseme::vocabulary_loss", mutates_args=())
def _vocabulary_loss(
    states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss, and its gradients by states, table and bias."""
    size = table.shape[0]
    padding = -size % TILE
    whole = F.pad(table, (0, 0, 0, padding)) if padding else table
    offset = None if bias is None else F.pad(bias, (0, padding))
    losses = torch.empty(len(states), dtype=torch.float32, device=states.device)
    by_states, by_table, by_bias = torch.empty_like(states), torch.zeros_like(whole), table.new_zeros(len(whole))
    for start in range(0, len(states), ROWS):
        here = slice(start, start + ROWS)
        scores = F.linear(states[here], whole, offset)
        _gradients[(len(scores),)](
            scores, targets[here], losses[here], size, scores.shape[1], ignored, BLOCK=4096, num_warps=8
        )
        torch.mm(scores, whole, out=by_states[here])
        by_table = torch.addmm(by_table, scores.T, states[here]) if start else torch.mm(scores.T, states[here])
        if bias is not None:
            by_bias = by_bias + scores.sum(0, dtype=torch.float32).to(by_bias.dtype)
    return losses.sum(), by_states, by_table[:size].contiguous(), by_bias[:size].contiguous()


@_vocabulary_loss.register_fake
def _(states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int) -> tuple[Tensor, ...]:
    loss = torch.empty((), dtype=torch.float32, device=states.device)
    return loss, torch.empty_like(states), torch.empty_like(table), table.new_empty(len(table))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.has_bias = inputs[2] is not None


def _grad(ctx: Any, by: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    states, table, bias = (by.to(t.dtype) * t for t in ctx.saved_tensors)
    return states, table, bias if ctx.has_bias else None, None, None


_vocabulary_loss.register_autograd(_grad, setup_context=_keep)


def vocabulary_loss(states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int) -> Tensor:
    """Σ cross entropy of `states · tableᵀ + bias` against `targets`, without those that are `ignored`."""
    return _vocabulary_loss(states, table, bias, targets, ignored)[0]
