"""Fused elementwise kernels in Triton: bias and activation, gated activation, residual sum and layer norm.

One backward pass over the widest matrix of the layer recomputes the activation, so that it need not be stored (saving
2.1 of 11.1 GiB for BERT-base at 64 × 512), and computes the gradient and its column sums for the bias.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ACTIVATION_NAMES = ("gelu", "gelu_tanh", "relu")
ROWS, COLUMNS = 2, 1024  # tile size, tuned on an H200
TILES = 4  # tiles per program, below each other
GATED_ROWS, GATED_COLUMNS = 4, 512  # tile size of gated layers, not tuned


@triton.jit
def _activate(x, KIND: tl.constexpr):
    """Compute the activation and its derivative."""
    if KIND == 0:  # normal distribution to 1e-7 (Abramowitz and Stegun 1964, 7.1.26), reusing the exponential
        e = tl.exp(-0.5 * x * x)
        t = 1 / (1 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
        tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * e
        normal = tl.where(x > 0, 1 - 0.5 * tail, 0.5 * tail)
        return x * normal, normal + x * e * 0.3989422804014327
    if KIND == 1:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        tanh = 1 - 2 / (1 + tl.exp(2 * inner))
        derivative = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * 0.7978845608028654 * (1 + 0.134145 * x * x)
        return 0.5 * x * (1 + tanh), derivative
    return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)


@triton.jit
def _forward(h, bias, out, rows, width, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_index = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    offsets = row_index.to(tl.int64)[:, None] * width + columns[None, :]
    mask = (row_index[:, None] < rows) & (columns[None, :] < width)
    b = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    x = tl.load(h + offsets, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    tl.store(out + offsets, _activate(x, KIND)[0].to(out.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    h, bias, grad, out, dh, sums, rows, width,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for tile in range(TILES):
        row_index = (tl.program_id(1) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        offsets = row_index.to(tl.int64)[:, None] * width + columns[None, :]
        mask = (row_index[:, None] < rows) & (columns[None, :] < width)
        x = tl.load(h + offsets, mask=mask, other=0.0).to(tl.float32) + b[None, :]
        g = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        value, derivative = _activate(x, KIND)
        d = (g * derivative).to(dh.dtype.element_ty)
        tl.store(out + offsets, value.to(out.dtype.element_ty), mask=mask)
        tl.store(dh + offsets, d, mask=mask)
        total += tl.sum(d.to(tl.float32), 0)
    tl.store(sums + tl.program_id(1).to(tl.int64) * width + columns, total, mask=columns < width)


@triton.jit
def _gate(h, out, rows, width, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_index = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    mask = (row_index < rows) & (columns[None, :] < width)
    a = tl.load(h + row_index * (2 * width) + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(h + row_index * (2 * width) + width + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    value = _activate(a, KIND)[0] * b
    tl.store(out + row_index * width + columns[None, :], value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gate_backward(h, grad, out, dh, rows, width, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_index = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    mask = (row_index < rows) & (columns[None, :] < width)
    out_offsets, in_offsets = row_index * width + columns[None, :], row_index * (2 * width) + columns[None, :]
    a = tl.load(h + in_offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(h + in_offsets + width, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(grad + out_offsets, mask=mask, other=0.0).to(tl.float32)
    value, derivative = _activate(a, KIND)
    tl.store(out + out_offsets, (value * b).to(out.dtype.element_ty), mask=mask)
    tl.store(dh + in_offsets, (g * b * derivative).to(dh.dtype.element_ty), mask=mask)
    tl.store(dh + in_offsets + width, (g * value).to(dh.dtype.element_ty), mask=mask)


@torch.library.triton_op("polyseme::activate", mutates_args=())
def activate(h: Tensor, bias: Tensor, kind: int) -> Tensor:
    """Return activation(h + bias)."""
    rows, width = h.shape
    out = torch.empty_like(h)
    grid = (triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))
    torch.library.wrap_triton(_forward)[grid](h, bias, out, rows, width, kind, ROWS, COLUMNS, num_warps=4)
    return out


@torch.library.triton_op("polyseme::activate_backward", mutates_args=())
def activate_backward(h: Tensor, bias: Tensor, grad: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the recomputed activation, the gradient of h, and partial column sums of it."""
    rows, width = h.shape
    out, dh = torch.empty_like(h), torch.empty_like(h)
    groups = triton.cdiv(rows, ROWS * TILES)
    sums = torch.empty(groups, width, dtype=torch.float32, device=h.device)
    torch.library.wrap_triton(_backward)[(triton.cdiv(width, COLUMNS), groups)](
        h, bias, grad, out, dh, sums, rows, width, kind, ROWS, COLUMNS, TILES, num_warps=4
    )
    return out, dh, sums


@torch.library.triton_op("polyseme::gate", mutates_args=())
def gate(h: Tensor, kind: int) -> Tensor:
    """Return activation(a) · b, where a and b are the halves of h."""
    rows, width = h.shape[0], h.shape[1] // 2
    out = h.new_empty(rows, width)
    grid = (triton.cdiv(width, GATED_COLUMNS), triton.cdiv(rows, GATED_ROWS))
    torch.library.wrap_triton(_gate)[grid](h, out, rows, width, kind, GATED_ROWS, GATED_COLUMNS, num_warps=4)
    return out


@torch.library.triton_op("polyseme::gate_backward", mutates_args=())
def gate_backward(h: Tensor, grad: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Return the recomputed gated activation and the gradient of h."""
    rows, width = grad.shape
    out, dh = torch.empty_like(grad), torch.empty_like(h)
    grid = (triton.cdiv(width, GATED_COLUMNS), triton.cdiv(rows, GATED_ROWS))
    torch.library.wrap_triton(_gate_backward)[grid](
        h, grad, out, dh, rows, width, kind, GATED_ROWS, GATED_COLUMNS, num_warps=4
    )
    return out, dh


class _GatedLinear(torch.autograd.Function):
    """linear(activation(a) · b) of the halves a and b of h, saving only h."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, kind: int) -> Tensor:
        ctx.save_for_backward(h, weight)
        ctx.kind = kind
        return F.linear(gate(h, kind), weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        out, dh = gate_backward(h, grad @ weight, ctx.kind)
        return dh, grad.t() @ out, None


def gated_linear(h: Tensor, weight: Tensor, activation: str) -> Tensor:
    """Apply the part of a gated feed-forward sublayer without biases that follows its first matrix."""
    output: Tensor = _GatedLinear.apply(h, weight, ACTIVATION_NAMES.index(activation))
    return output


class _ActivatedLinear(torch.autograd.Function):
    """linear(activation(h + bias)), saving only h."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, weight: Tensor, output_bias: Tensor, kind: int) -> Tensor:
        ctx.save_for_backward(h, bias, weight)
        ctx.kind = kind
        return F.linear(activate(h, bias, kind), weight, output_bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, bias, weight = ctx.saved_tensors
        out, dh, sums = activate_backward(h, bias, grad @ weight, ctx.kind)
        return dh, sums.sum(0).to(bias.dtype), grad.t() @ out, grad.sum(0), None


def activated_linear(h: Tensor, bias: Tensor, weight: Tensor, output_bias: Tensor, activation: str) -> Tensor:
    """Apply the part of a feed-forward sublayer that follows its first matrix: bias, activation, second layer."""
    output: Tensor = _ActivatedLinear.apply(h, bias, weight, output_bias, ACTIVATION_NAMES.index(activation))
    return output


@triton.jit
def _add_norm(x, y, weight, bias, out, width, eps: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    total = tl.load(x + row + columns, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(y + row + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / width
    centered = tl.where(mask, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 0) / width + eps)
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (centered * scale * w + b).to(out.dtype.element_ty), mask=mask)


@torch.library.triton_op("polyseme::add_norm", mutates_args=())
def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the layer norm of x + y; has no backward pass."""
    rows, width = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    torch.library.wrap_triton(_add_norm)[(rows,)](x, y, weight, bias, out, width, eps, block, num_warps=4)
    return out
