"""Chunked cross entropy over a vocabulary in Triton: the logits of a chunk of rows are turned into gradients in place.

The logits of all rows never exist at once, and their softmax is never stored. Since the loss is a sum, its gradient is
known up to a factor as soon as the logits are, so both are computed in the forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

CHUNK_ROWS = 8192  # rows whose logits are in memory at a time
TILE = 64  # the vocabulary is padded to a multiple of this for faster matrix products


@triton.jit
def _loss_and_grad_kernel(logits, targets, losses, vocab_size, stride, ignore_index, BLOCK: tl.constexpr):
    """Compute the loss of one row and replace its logits by softmax minus one-hot target, 0 in the padding."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    is_valid = target != ignore_index
    running_max = tl.full([BLOCK], -1e30, tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < vocab_size, other=-1e30).to(tl.float32)
        new_max = tl.maximum(running_max, x)
        sums = sums * tl.exp(running_max - new_max) + tl.exp(x - new_max)
        running_max = new_max
    max_logit = tl.max(running_max, 0)
    log_sum_exp = max_logit + tl.log(tl.sum(sums * tl.exp(running_max - max_logit), 0))
    target_logit = tl.load(logits + tl.where(is_valid, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(is_valid, log_sum_exp - target_logit, 0.0))
    tl.debug_barrier()
    for start in range(0, stride, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < vocab_size, other=-1e30).to(tl.float32)
        grad = tl.exp(x - log_sum_exp) - tl.where(columns == target, 1.0, 0.0)
        grad = tl.where(is_valid & (columns < vocab_size), grad, 0.0)
        tl.store(logits + columns, grad.to(logits.dtype.element_ty), mask=columns < stride)


@torch.library.custom_op("polyseme::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the summed loss and its gradients with respect to hidden states, weight and bias."""
    vocab_size = weight.shape[0]
    padding = -vocab_size % TILE
    padded_weight = F.pad(weight, (0, 0, 0, padding)) if padding else weight
    padded_bias = None if bias is None else F.pad(bias, (0, padding))
    losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
    grad_hidden, grad_weight, grad_bias = (
        torch.empty_like(hidden),
        torch.zeros_like(padded_weight),
        weight.new_zeros(len(padded_weight)),
    )
    for start in range(0, len(hidden), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        logits = F.linear(hidden[rows], padded_weight, padded_bias)
        _loss_and_grad_kernel[(len(logits),)](
            logits, targets[rows], losses[rows], vocab_size, logits.shape[1], ignore_index, BLOCK=4096, num_warps=8
        )
        torch.mm(logits, padded_weight, out=grad_hidden[rows])
        grad_weight = torch.addmm(grad_weight, logits.T, hidden[rows]) if start else torch.mm(logits.T, hidden[rows])
        if bias is not None:
            grad_bias = grad_bias + logits.sum(0, dtype=torch.float32).to(grad_bias.dtype)
    return losses.sum(), grad_hidden, grad_weight[:vocab_size].contiguous(), grad_bias[:vocab_size].contiguous()


@_linear_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int) -> tuple[Tensor, ...]:
    loss = torch.empty((), dtype=torch.float32, device=hidden.device)
    return loss, torch.empty_like(hidden), torch.empty_like(weight), weight.new_empty(len(weight))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.has_bias = inputs[2] is not None


def _backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = (grad_output.to(t.dtype) * t for t in ctx.saved_tensors)
    return grad_hidden, grad_weight, grad_bias if ctx.has_bias else None, None, None


_linear_cross_entropy.register_autograd(_backward, setup_context=_setup_context)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int
) -> Tensor:
    """Return the summed cross entropy of `hidden @ weight.T + bias` and `targets`, except where `ignore_index`."""
    return _linear_cross_entropy(hidden, weight, bias, targets, ignore_index)[0]
