"""Softmax over the sum of content and distance scores in Triton, one pass each way; see `nn/attention/relative.py`.

The distance scores of a query are a row from which its keys use a contiguous part that starts at a different offset
for each query. The kernel reads them from there, so they need not be skewed into place in memory first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    content, distance_scores, segment_scores, distance_start, masked_out, different_segment, probs, num_sequences,
    num_queries, num_keys, num_distances, mask_stride, STREAM: tl.constexpr, HIDDEN: tl.constexpr, APART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, sequence = program % num_queries, program // num_queries % num_sequences
    start = num_queries - row
    if STREAM:
        start = tl.load(distance_start + sequence * num_queries + row)
    j = tl.arange(0, BLOCK)
    inside = j < num_keys
    x = tl.load(content + program * num_keys + j, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(distance_scores + program * num_distances + start + j, mask=inside, other=0.0).to(tl.float32)
    if APART:
        is_other_segment = (
            tl.load(different_segment + (sequence * num_queries + row) * num_keys + j, mask=inside, other=0) != 0
        )
        x += tl.where(is_other_segment, tl.load(segment_scores + program).to(tl.float32), 0.0)
    if HIDDEN:
        inside = inside & (tl.load(masked_out + sequence * mask_stride + row * num_keys + j, mask=inside, other=1) == 0)
    x = tl.where(inside, x, -1e30)
    e = tl.where(inside, tl.exp(x - tl.max(x, 0)), 0.0)
    total = tl.sum(e, 0)
    softmax = e / tl.where(total > 0, total, 1.0)  # a query that attends to nothing gets zeros
    tl.store(probs + program * num_keys + j, softmax.to(probs.dtype.element_ty), mask=j < num_keys)


@triton.jit
def _backward(
    probs, grad, distance_start, different_segment, grad_content, grad_distance, grad_segment, num_sequences,
    num_queries, num_keys, num_distances, STREAM: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, sequence = program % num_queries, program // num_queries % num_sequences
    start = num_queries - row
    if STREAM:
        start = tl.load(distance_start + sequence * num_queries + row)
    j = tl.arange(0, BLOCK)
    inside = j < num_keys
    w = tl.load(probs + program * num_keys + j, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + program * num_keys + j, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(w * g, 0)
    d = w * (g - mean)
    tl.store(grad_content + program * num_keys + j, d.to(grad_content.dtype.element_ty), mask=inside)
    if APART:
        is_other_segment = (
            tl.load(different_segment + (sequence * num_queries + row) * num_keys + j, mask=inside, other=0) != 0
        )
        tl.store(
            grad_segment + program, tl.sum(tl.where(is_other_segment, d, 0.0), 0).to(grad_segment.dtype.element_ty)
        )
    distance_index = tl.arange(0, WIDE)
    j = distance_index - start
    inside = (j >= 0) & (j < num_keys)
    w = tl.load(probs + program * num_keys + j, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + program * num_keys + j, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        grad_distance + program * num_distances + distance_index,
        (w * (g - mean)).to(grad_distance.dtype.element_ty),
        mask=distance_index < num_distances,
    )


class _RelativeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        content: Tensor,
        distance_scores: Tensor,
        segment_scores: Tensor | None,
        num_sequences: int,
        distance_start: Tensor | None,
        masked_out: Tensor | None,
        different_segment: Tensor | None,
    ) -> Tensor:
        batch, num_queries, num_keys = content.shape
        content, distance_scores = content.contiguous(), distance_scores.contiguous()
        segment_scores, different_segment = (
            (None, None)
            if segment_scores is None or different_segment is None
            else (segment_scores.contiguous(), different_segment.contiguous())
        )
        masked_out = None if masked_out is None else masked_out.contiguous()
        probs = torch.empty_like(content)
        mask_stride = 0 if masked_out is None or masked_out.dim() == 2 else num_queries * num_keys
        _forward[(batch * num_queries,)](
            content, distance_scores, segment_scores, distance_start, _as_uint8(masked_out),
            _as_uint8(different_segment), probs, num_sequences, num_queries, num_keys, distance_scores.shape[-1],
            mask_stride, distance_start is not None, masked_out is not None, different_segment is not None,
            triton.next_power_of_2(num_keys),
        )  # fmt: skip
        ctx.save_for_backward(probs, distance_start, different_segment)
        ctx.num_sequences, ctx.num_distances = num_sequences, distance_scores.shape[-1]
        return probs

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        probs, distance_start, different_segment = ctx.saved_tensors
        batch, num_queries, num_keys = probs.shape
        grad_content, grad_distance = torch.empty_like(probs), probs.new_empty(batch, num_queries, ctx.num_distances)
        grad_segment = None if different_segment is None else probs.new_empty(batch, num_queries)
        _backward[(batch * num_queries,)](
            probs, grad_output.contiguous(), distance_start, _as_uint8(different_segment), grad_content, grad_distance,
            grad_segment, ctx.num_sequences, num_queries, num_keys, ctx.num_distances, distance_start is not None,
            different_segment is not None, triton.next_power_of_2(num_keys), triton.next_power_of_2(ctx.num_distances),
        )  # fmt: skip
        return grad_content, grad_distance, grad_segment, None, None, None, None


def _as_uint8(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.view(torch.uint8)


def relative_softmax(
    content: Tensor,
    distance_scores: Tensor,
    num_sequences: int,
    distance_start: Tensor | None,
    masked_out: Tensor | None,
    different_segment: Tensor | None,
    segment_scores: Tensor | None,
) -> Tensor:
    """Return the softmax [heads · sequences, queries, keys] of `content` plus the distance score of each key.

    The distance score of key j is at index `distance_start` + j of the query's row; without `distance_start`, query i
    starts at num_queries − i. Keys that are `masked_out` get 0; `segment_scores` is added where `different_segment`.
    """
    probs: Tensor = _RelativeSoftmax.apply(
        content, distance_scores, segment_scores, num_sequences, distance_start, masked_out, different_segment
    )
    return probs
