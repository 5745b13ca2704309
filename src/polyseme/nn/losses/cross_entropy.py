"""Cross entropy over a vocabulary on a CPU: scores of a slice of rows become gradients where they stand.

What `vocabulary_loss` does on a GPU: the scores of all rows never exist at once, and nothing but them is as large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCORES = 1 << 25  # of a slice: with less, adding up the gradient by the table takes longer than what is saved


@torch.library.custom_op("polyseme::sliced_loss", mutates_args=())
def _sliced_loss(
    states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss, and its gradients by states, table and bias."""
    size = len(table)
    loss = states.new_zeros(())
    by_states, by_table, by_bias = torch.empty_like(states), torch.zeros_like(table), table.new_zeros(size)
    rows = max(SCORES // size, 16)
    room = states.new_empty(min(rows, len(states)), size)
    for start in range(0, len(states), rows):
        here = states[start : start + rows]
        scores = torch.mm(here, table.T, out=room[: len(here)])
        if bias is not None:
            scores += bias
        counts = targets[start : start + rows] != ignored
        at = targets[start : start + rows].clamp(min=0)[:, None]
        right, (most, top) = scores.gather(1, at), scores.max(1, keepdim=True)
        mean = scores.mean(1, keepdim=True) if smoothing else 0.0
        torch.softmax(scores, 1, out=scores)
        level = most - scores.gather(1, top).log()  # log Σ exp: of the greatest share, which cannot be 0
        loss += ((level - (1 - smoothing) * right - smoothing * mean)[:, 0] * counts).sum()
        scores.scatter_add_(1, at, scores.new_full(at.shape, smoothing - 1))
        if smoothing:
            scores -= smoothing / size
        if not counts.all():
            scores *= counts[:, None]
        torch.mm(scores, table, out=by_states[start : start + rows])
        by_table.addmm_(scores.T, here)
        if bias is not None:
            by_bias += scores.sum(0)
    return loss, by_states, by_table, by_bias


@_sliced_loss.register_fake
def _(
    states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int, smoothing: float
) -> tuple[Tensor, ...]:
    return states.new_empty(()), torch.empty_like(states), torch.empty_like(table), table.new_empty(len(table))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.has_bias = inputs[2] is not None


def _grad(ctx: Any, by: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    states, table, bias = (by * t for t in ctx.saved_tensors)
    return states, table, bias if ctx.has_bias else None, None, None, None


_sliced_loss.register_autograd(_grad, setup_context=_keep)


def learned(x: Tensor) -> bool:
    """Whether this is for such a tensor: on a CPU, in full precision, where gradients are wanted."""
    wide = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and wide and torch.is_grad_enabled()


def sliced_loss(
    states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, ignored: int, smoothing: float = 0.0
) -> Tensor:
    """Σ cross entropy of `states · tableᵀ + bias` against `targets`, without those that are `ignored`."""
    found: Tensor = _sliced_loss(states, table, bias, targets, ignored, smoothing)[0]
    return found
