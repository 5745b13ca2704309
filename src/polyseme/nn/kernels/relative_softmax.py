"""Softmax over content scores plus scores by distance, each way in one pass, in Triton: see `nn/attention/relative.py`.

Scores by distance are a line of numbers for each query, from which its keys take a stretch that begins at a place of
its own: they are read from there, and need not be skewed into place in memory first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    content, far, more, first, hidden, apart, out, number, rows, columns, width, step,
    STREAM: tl.constexpr, HIDDEN: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row, sequence = at % rows, at // rows % number
    start = rows - row
    if STREAM:
        start = tl.load(first + sequence * rows + row)
    j = tl.arange(0, BLOCK)
    inside = j < columns
    x = tl.load(content + at * columns + j, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(far + at * width + start + j, mask=inside, other=0.0).to(tl.float32)
    if APART:
        other = tl.load(apart + (sequence * rows + row) * columns + j, mask=inside, other=0) != 0
        x += tl.where(other, tl.load(more + at).to(tl.float32), 0.0)
    if HIDDEN:
        inside = inside & (tl.load(hidden + sequence * step + row * columns + j, mask=inside, other=1) == 0)
    x = tl.where(inside, x, -1e30)
    e = tl.where(inside, tl.exp(x - tl.max(x, 0)), 0.0)
    total = tl.sum(e, 0)
    found = e / tl.where(total > 0, total, 1.0)  # a place that sees nothing gets nothing
    tl.store(out + at * columns + j, found.to(out.dtype.element_ty), mask=j < columns)


@triton.jit
def _backward(
    p, grad, first, apart, content, far, more, number, rows, columns, width,
    STREAM: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row, sequence = at % rows, at // rows % number
    start = rows - row
    if STREAM:
        start = tl.load(first + sequence * rows + row)
    j = tl.arange(0, BLOCK)
    inside = j < columns
    w = tl.load(p + at * columns + j, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at * columns + j, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(w * g, 0)
    d = w * (g - mean)
    tl.store(content + at * columns + j, d.to(content.dtype.element_ty), mask=inside)
    if APART:
        other = tl.load(apart + (sequence * rows + row) * columns + j, mask=inside, other=0) != 0
        tl.store(more + at, tl.sum(tl.where(other, d, 0.0), 0).to(more.dtype.element_ty))
    places = tl.arange(0, WIDE)
    j = places - start
    inside = (j >= 0) & (j < columns)
    w = tl.load(p + at * columns + j, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at * columns + j, mask=inside, other=0.0).to(tl.float32)
    tl.store(far + at * width + places, (w * (g - mean)).to(far.dtype.element_ty), mask=places < width)


class _PlacedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        content: Tensor,
        far: Tensor,
        more: Tensor | None,
        number: int,
        first: Tensor | None,
        hidden: Tensor | None,
        apart: Tensor | None,
    ) -> Tensor:
        batch, rows, columns = content.shape
        content, far = content.contiguous(), far.contiguous()
        more, apart = (None, None) if more is None or apart is None else (more.contiguous(), apart.contiguous())
        hidden = None if hidden is None else hidden.contiguous()
        out = torch.empty_like(content)
        step = 0 if hidden is None or hidden.dim() == 2 else rows * columns
        _forward[(batch * rows,)](
            content, far, more, first, _bytes(hidden), _bytes(apart), out, number, rows, columns, far.shape[-1], step,
            first is not None, hidden is not None, apart is not None, triton.next_power_of_2(columns),
        )  # fmt: skip
        ctx.save_for_backward(out, first, apart)
        ctx.number, ctx.width = number, far.shape[-1]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, first, apart = ctx.saved_tensors
        batch, rows, columns = out.shape
        content, far = torch.empty_like(out), out.new_empty(batch, rows, ctx.width)
        more = None if apart is None else out.new_empty(batch, rows)
        _backward[(batch * rows,)](
            out, grad.contiguous(), first, _bytes(apart), content, far, more, ctx.number, rows, columns, ctx.width,
            first is not None, apart is not None, triton.next_power_of_2(columns), triton.next_power_of_2(ctx.width),
        )  # fmt: skip
        return content, far, more, None, None, None, None


def _bytes(flags: Tensor | None) -> Tensor | None:
    return None if flags is None else flags.view(torch.uint8)


def placed_softmax(
    content: Tensor,
    far: Tensor,
    number: int,
    first: Tensor | None,
    hidden: Tensor | None,
    apart: Tensor | None,
    more: Tensor | None,
) -> Tensor:
    """Probabilities [heads · number, rows, columns] of `content`, to which key j of a query adds `far[first + j]`.

    Without `first`, that of query i is rows − i. What is `hidden` gets nothing; where `apart`, `more` is added.
    """
    found: Tensor = _PlacedSoftmax.apply(content, far, more, number, first, hidden, apart)
    return found
