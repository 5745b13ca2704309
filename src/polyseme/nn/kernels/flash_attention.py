"""Flash self-attention over packed sequences in Triton: no score matrix in memory, no padding.

The algorithm is FlashAttention-2 (Dao 2023). Differences from torch's kernel: queries, keys and values are read from
the fused projection and their gradients written to one matrix; the backward pass is one pass for sequences of at most
one tile and two for longer ones, each with its own tile sizes and without atomic sums; dropout costs a few integer
operations per element; tiles outside the window are skipped.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
LOG2E: Any = tl.constexpr(1.4426950408889634)  # scores are multiplied by this, for exp2


@triton.jit
def _dropout_mask(seed, rows, columns, head, threshold):
    """Dropout mask, true where a score is kept: a hash of seed, head, row and column against a 32-bit threshold."""
    x = rows.to(tl.uint32) * 0x9E3779B1 + (head.to(tl.uint32) * 0x85EBCA77 + seed.to(tl.uint32))
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    y = columns.to(tl.uint32) * 0xC2B2AE3D
    y = (y ^ (y >> 15)) * 0x2C1B3C6D
    z = (x ^ y) * 0x297A2D39
    z = (z ^ (z >> 15)) * 0x5BD1E995
    return z >= threshold


@triton.jit
def _visibility_mask(rows, columns, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether a query attends to a key: inside the sequence, not later if CAUSAL, at most WINDOW away if not 0."""
    visible = columns < length
    if CAUSAL:
        visible = visible & (columns <= rows)
    if WINDOW:
        visible = visible & (rows - columns <= WINDOW) & (columns - rows <= WINDOW)
    return visible


@triton.jit
def _load(base, rows, row_stride, columns, length, MASKED: tl.constexpr):
    pointers = base + rows[:, None] * row_stride + columns[None, :]
    if MASKED:
        return tl.load(pointers, mask=rows[:, None] < length, other=0.0)
    return tl.load(pointers)


@triton.jit
def _load_rotary_tile(
    base, rows, row_stride, length, cos_sin, max_seqlen, DIM: tl.constexpr, ROTARY: tl.constexpr, MASKED: tl.constexpr
):
    """Load a tile of queries or keys: with ROTARY its two halves, rotated by position; otherwise the tile twice."""
    if ROTARY:
        columns = tl.arange(0, DIM // 2)
        a = _load(base, rows, row_stride, columns, length, MASKED).to(tl.float32)
        b = _load(base + DIM // 2, rows, row_stride, columns, length, MASKED).to(tl.float32)
        cos, sin = _load_cos_sin(rows, length, cos_sin, max_seqlen, DIM)
        tile = (a * cos - b * sin).to(base.dtype.element_ty), (b * cos + a * sin).to(base.dtype.element_ty)
    else:
        whole = _load(base, rows, row_stride, tl.arange(0, DIM), length, MASKED)
        tile = whole, whole
    return tile


@triton.jit
def _load_cos_sin(rows, length, cos_sin, max_seqlen, DIM: tl.constexpr):
    """Load the cosines and sines of each row and pair."""
    pointers = cos_sin + rows[:, None] * (DIM // 2) + tl.arange(0, DIM // 2)[None, :]
    mask = rows[:, None] < length
    return tl.load(pointers, mask=mask, other=0.0), tl.load(pointers + max_seqlen * (DIM // 2), mask=mask, other=0.0)


@triton.jit
def _scores(a, b, c, d, ROTARY: tl.constexpr):
    """Compute (a, b) · (c, d)ᵀ of two halves, or a · cᵀ without ROTARY."""
    scores = tl.dot(a, tl.trans(c))
    if ROTARY:
        scores = tl.dot(b, tl.trans(d), scores)
    return scores


@triton.jit
def _store_rotary_grad(
    grad_base, rows, row_stride, a, b, length, cos_sin, max_seqlen, DIM: tl.constexpr, ROTARY: tl.constexpr
):
    """Store gradients of queries or keys, rotated back."""
    mask = rows[:, None] < length
    if ROTARY:
        cos, sin = _load_cos_sin(rows, length, cos_sin, max_seqlen, DIM)
        pointers = grad_base + rows[:, None] * row_stride + tl.arange(0, DIM // 2)[None, :]
        tl.store(pointers, (a * cos + b * sin).to(grad_base.dtype.element_ty), mask=mask)
        tl.store(pointers + DIM // 2, (b * cos - a * sin).to(grad_base.dtype.element_ty), mask=mask)
    else:
        pointers = grad_base + rows[:, None] * row_stride + tl.arange(0, DIM)[None, :]
        tl.store(pointers, a.to(grad_base.dtype.element_ty), mask=mask)


@triton.jit
def _attend_block(qa, qb, acc, row_sum, row_max, base, start, rows, seq_start, length, head, seed, cos_sin, max_seqlen,
         scale: tl.constexpr, threshold: tl.constexpr,
         HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
         DROPOUT: tl.constexpr, ROTARY: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Process one block of keys for a block of queries: update the running maximum, sum and weighted values."""
    row_stride: tl.constexpr = 3 * HEADS * DIM
    keys = start + tl.arange(0, BLOCK_N)
    ka, kb = _load_rotary_tile(base + HEADS * DIM, keys, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, MASKED)
    v = _load(base + 2 * HEADS * DIM, keys, row_stride, tl.arange(0, DIM), length, MASKED)
    scores = _scores(qa, qb, ka, kb, ROTARY)
    if MASKED:
        scores = tl.where(_visibility_mask(rows[:, None], keys[None, :], length, CAUSAL, WINDOW), scores, -1e30)
    new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
    p = tl.exp2(scores * scale - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    if DROPOUT:
        p = tl.where(_dropout_mask(seed, (seq_start + rows)[:, None], keys[None, :], head, threshold), p, 0.0)
    return tl.dot(p.to(v.dtype), v, acc * rescale[:, None]), row_sum, new_max


@triton.jit
def _forward(
    qkv, out, lse, cu_seqlens, seed_ptr, cos_sin, num_tokens, max_seqlen,
    scale: tl.constexpr, dropout_scale: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - seq_start
    if block * BLOCK_M >= length:
        return
    row_stride: tl.constexpr = 3 * HEADS * DIM
    columns = tl.arange(0, DIM)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    base = qkv + seq_start.to(tl.int64) * row_stride + head * DIM
    qa, qb = _load_rotary_tile(base, rows, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, True)
    seed = tl.load(seed_ptr)
    row_max = tl.full([BLOCK_M], -1e29, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)
    key_start, mask_start, key_stop = _key_range(block * BLOCK_M, BLOCK_M, length, BLOCK_N, CAUSAL, WINDOW)
    for start in range(key_start, mask_start, BLOCK_N):
        acc, row_sum, row_max = _attend_block(qa, qb, acc, row_sum, row_max, base, start, rows, seq_start, length,
                               head, seed, cos_sin, max_seqlen, scale, threshold, HEADS, DIM, BLOCK_N, CAUSAL, WINDOW,
                               DROPOUT, ROTARY, False)  # fmt: skip
    for start in range(mask_start, key_stop, BLOCK_N):
        acc, row_sum, row_max = _attend_block(qa, qb, acc, row_sum, row_max, base, start, rows, seq_start, length,
                               head, seed, cos_sin, max_seqlen, scale, threshold, HEADS, DIM, BLOCK_N, CAUSAL, WINDOW,
                               DROPOUT, ROTARY, True)  # fmt: skip
    acc = acc * (dropout_scale / row_sum)[:, None]
    out_offsets = (seq_start + rows).to(tl.int64)[:, None] * (HEADS * DIM) + head * DIM + columns[None, :]
    tl.store(out + out_offsets, acc.to(out.dtype.element_ty), mask=rows[:, None] < length)
    tl.store(lse + head * num_tokens + seq_start + rows, row_max + tl.log2(row_sum), mask=rows < length)


@triton.jit
def _key_range(first_row, ROWS: tl.constexpr, length, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return the range of keys for a block of queries: first key, first key that needs a mask, end."""
    key_stop = length
    key_start = 0
    mask_start = (first_row if CAUSAL else length) // BLOCK * BLOCK
    if CAUSAL:
        key_stop = tl.minimum(first_row + ROWS, length)
    if WINDOW:
        key_start = tl.maximum(first_row - WINDOW, 0) // BLOCK * BLOCK
        mask_start = key_start
        key_stop = tl.minimum(first_row + ROWS + WINDOW, key_stop)
    return key_start, mask_start, key_stop


@triton.jit
def _accumulate_key_grads(da, db, dv, ka, kb, v, keys, base, o_base, g_base, l_base, d_base, grad_base, start,
               seq_start, length, head, seed, cos_sin, max_seqlen, scale: tl.constexpr, dropout_scale: tl.constexpr,
               threshold: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
               CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
               SINGLE_TILE: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Add the contribution of one block of queries to the gradients of a block of keys and values."""
    row_stride: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    rows = start + tl.arange(0, BLOCK)
    qa, qb = _load_rotary_tile(base, rows, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, MASKED)
    g = _load(g_base, rows, width, columns, length, MASKED)
    if SINGLE_TILE:
        o = _load(o_base, rows, width, columns, length, MASKED)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    else:
        delta = tl.load(d_base + rows, mask=rows < length, other=0.0) if MASKED else tl.load(d_base + rows)
    row_lse = tl.load(l_base + rows, mask=rows < length, other=float("inf")) if MASKED else tl.load(l_base + rows)
    p = tl.exp2(_scores(ka, kb, qa, qb, ROTARY) * scale - row_lse[None, :])
    if MASKED:
        p = tl.where(_visibility_mask(rows[None, :], keys[:, None], length, CAUSAL, WINDOW), p, 0.0)
    dp = tl.dot(v, tl.trans(g))
    if DROPOUT:
        keep_mask = _dropout_mask(seed, (seq_start + rows)[None, :], keys[:, None], head, threshold)
        dp = tl.where(keep_mask, dp * dropout_scale, 0.0)
        dv = tl.dot(tl.where(keep_mask, p * dropout_scale, 0.0).to(g.dtype), g, dv)
    else:
        dv = tl.dot(p.to(g.dtype), g, dv)
    ds = (p * (dp - delta[None, :])).to(g.dtype)
    da = tl.dot(ds, qa, da)
    if ROTARY:
        db = tl.dot(ds, qb, db)
    if SINGLE_TILE:
        ds_transposed = tl.trans(ds)
        qa_grad = tl.dot(ds_transposed, ka) * (scale / LOG2E)
        qb_grad = tl.dot(ds_transposed, kb) * (scale / LOG2E) if ROTARY else qa_grad
        _store_rotary_grad(grad_base, rows, row_stride, qa_grad, qb_grad, length, cos_sin, max_seqlen, DIM, ROTARY)
    return da, db, dv


@triton.jit
def _accumulate_query_grads(da, db, qa, qb, g, delta, row_lse, rows, base, start, seq_start, length, head, seed,
                  cos_sin, max_seqlen, scale: tl.constexpr, dropout_scale: tl.constexpr, threshold: tl.constexpr,
                  HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
                  WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
                  MASKED: tl.constexpr):  # fmt: skip
    """Add the contribution of one block of keys to the gradient of a block of queries."""
    row_stride: tl.constexpr = 3 * HEADS * DIM
    keys = start + tl.arange(0, BLOCK)
    ka, kb = _load_rotary_tile(base + HEADS * DIM, keys, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, MASKED)
    v = _load(base + 2 * HEADS * DIM, keys, row_stride, tl.arange(0, DIM), length, MASKED)
    p = tl.exp2(_scores(qa, qb, ka, kb, ROTARY) * scale - row_lse[:, None])
    if MASKED:
        p = tl.where(_visibility_mask(rows[:, None], keys[None, :], length, CAUSAL, WINDOW), p, 0.0)
    dp = tl.dot(g, tl.trans(v))
    if DROPOUT:
        keep_mask = _dropout_mask(seed, (seq_start + rows)[:, None], keys[None, :], head, threshold)
        dp = tl.where(keep_mask, dp * dropout_scale, 0.0)
    ds = (p * (dp - delta[:, None])).to(g.dtype)
    da = tl.dot(ds, ka, da)
    if ROTARY:
        db = tl.dot(ds, kb, db)
    return da, db


@triton.jit
def _backward_queries(
    qkv, out, lse, grad, deltas, dqkv, cu_seqlens, seed_ptr, cos_sin, num_tokens, max_seqlen,
    scale: tl.constexpr, dropout_scale: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of queries, and Σ gradient · output for the pass over keys."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - seq_start
    if block * BLOCK >= length:
        return
    row_stride: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    base = qkv + seq_start.to(tl.int64) * row_stride + head * DIM
    offset = seq_start.to(tl.int64) * width + head * DIM
    rows = block * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seed_ptr)
    qa, qb = _load_rotary_tile(base, rows, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, True)
    g = _load(grad + offset, rows, width, columns, length, True)
    o = _load(out + offset, rows, width, columns, length, True)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(deltas + head * num_tokens + seq_start + rows, delta, mask=rows < length)
    row_lse = tl.load(lse + head * num_tokens + seq_start + rows, mask=rows < length, other=float("inf"))
    da = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    db = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    key_start, mask_start, key_stop = _key_range(block * BLOCK, BLOCK, length, INNER, CAUSAL, WINDOW)
    for start in range(key_start, mask_start, INNER):
        da, db = _accumulate_query_grads(da, db, qa, qb, g, delta, row_lse, rows, base, start, seq_start, length, head,
                               seed, cos_sin, max_seqlen, scale, dropout_scale, threshold, HEADS, DIM, INNER, CAUSAL,
                               WINDOW, DROPOUT, ROTARY, False)  # fmt: skip
    for start in range(mask_start, key_stop, INNER):
        da, db = _accumulate_query_grads(da, db, qa, qb, g, delta, row_lse, rows, base, start, seq_start, length, head,
                               seed, cos_sin, max_seqlen, scale, dropout_scale, threshold, HEADS, DIM, INNER, CAUSAL,
                               WINDOW, DROPOUT, ROTARY, True)  # fmt: skip
    grad_base = dqkv + seq_start.to(tl.int64) * row_stride + head * DIM
    factor: tl.constexpr = scale / LOG2E
    _store_rotary_grad(grad_base, rows, row_stride, da * factor, db * factor, length, cos_sin, max_seqlen, DIM, ROTARY)


@triton.jit
def _backward_keys(
    qkv, out, lse, grad, deltas, dqkv, cu_seqlens, seed_ptr, cos_sin, num_tokens, max_seqlen,
    scale: tl.constexpr, dropout_scale: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr, SINGLE_TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and values.

    With SINGLE_TILE, a sequence is one tile, and the gradients of its queries are computed too.
    """
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - seq_start
    if block * BLOCK >= length:
        return
    row_stride: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    base = qkv + seq_start.to(tl.int64) * row_stride + head * DIM
    grad_base = dqkv + seq_start.to(tl.int64) * row_stride + head * DIM
    o_base = out + seq_start.to(tl.int64) * width + head * DIM
    g_base = grad + seq_start.to(tl.int64) * width + head * DIM
    l_base = lse + head * num_tokens + seq_start
    d_base = deltas + head * num_tokens + seq_start
    seed = tl.load(seed_ptr)
    keys = block * BLOCK + tl.arange(0, BLOCK)
    ka, kb = _load_rotary_tile(base + width, keys, row_stride, length, cos_sin, max_seqlen, DIM, ROTARY, True)
    v = _load(base + 2 * width, keys, row_stride, columns, length, True)
    da = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    db = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    dv = tl.zeros([BLOCK, DIM], tl.float32)
    # Queries before `unmasked_start` and from `unmasked_end` on need a mask, those between do not.
    query_start = block * BLOCK if CAUSAL else 0
    query_stop = length
    if WINDOW:
        query_start = query_start if CAUSAL else tl.maximum(block * BLOCK - WINDOW, 0) // INNER * INNER
        query_stop = tl.minimum((block + 1) * BLOCK + WINDOW, length)
        unmasked_start = query_stop
        unmasked_end = query_stop
    else:
        is_full = (block + 1) * BLOCK <= length
        unmasked_end = length // INNER * INNER if is_full else length
        unmasked_start = (tl.minimum((block + 1) * BLOCK, unmasked_end) if CAUSAL else 0) if is_full else length
    for start in range(query_start, unmasked_start, INNER):
        da, db, dv = _accumulate_key_grads(
            da, db, dv, ka, kb, v, keys, base, o_base, g_base, l_base, d_base, grad_base, start, seq_start, length,
            head, seed, cos_sin, max_seqlen, scale, dropout_scale, threshold, HEADS, DIM, INNER, CAUSAL, WINDOW,
            DROPOUT, ROTARY, SINGLE_TILE, True,
        )  # fmt: skip
    for start in range(unmasked_start, unmasked_end, INNER):
        da, db, dv = _accumulate_key_grads(
            da, db, dv, ka, kb, v, keys, base, o_base, g_base, l_base, d_base, grad_base, start, seq_start, length,
            head, seed, cos_sin, max_seqlen, scale, dropout_scale, threshold, HEADS, DIM, INNER, CAUSAL, WINDOW,
            DROPOUT, ROTARY, SINGLE_TILE, False,
        )  # fmt: skip
    for start in range(unmasked_end, query_stop, INNER):
        da, db, dv = _accumulate_key_grads(
            da, db, dv, ka, kb, v, keys, base, o_base, g_base, l_base, d_base, grad_base, start, seq_start, length,
            head, seed, cos_sin, max_seqlen, scale, dropout_scale, threshold, HEADS, DIM, INNER, CAUSAL, WINDOW,
            DROPOUT, ROTARY, SINGLE_TILE, True,
        )  # fmt: skip
    factor: tl.constexpr = scale / LOG2E
    _store_rotary_grad(
        grad_base + width, keys, row_stride, da * factor, db * factor, length, cos_sin, max_seqlen, DIM, ROTARY
    )
    offsets = keys[:, None] * row_stride + columns[None, :]
    tl.store(grad_base + 2 * width + offsets, dv.to(v.dtype), mask=keys[:, None] < length)


def forward_tiles(max_seqlen: int) -> tuple[int, int, int, int]:
    """Return rows of queries and of keys per tile, warps and stages, tuned on an H200."""
    block = 64 if max_seqlen > 32 else 32
    return block, block, 4, 3


def key_tiles(max_seqlen: int, causal: bool, rotary: bool) -> tuple[int, int, int, int]:
    """Return the same for the gradients of keys: rows of a program's block and of its inner blocks, a divisor.

    Rotated halves take more registers, so their tiles are smaller.
    """
    if max_seqlen <= 128:
        block = 128 if max_seqlen > 64 else 64 if max_seqlen > 32 else 32
        return block, min(block, 32 if rotary else 64), 8 if block > 64 else 4, 2
    if rotary:
        return 64, 32, 4, 2
    return (64, 64, 4, 2) if causal else (128, 32, 4, 3)


def query_tiles(max_seqlen: int) -> tuple[int, int, int, int]:
    """Return the same for the gradients of queries, if a sequence is longer than one tile."""
    return 64, 64, 4, 3


def _constants(dim: int, dropout: float) -> tuple[float, float, int]:
    """Return the scale of scores for exp2, the dropout scale, and the 32-bit dropout threshold."""
    return dim**-0.5 * LOG2E.value, 1 / (1 - dropout), round(dropout * 2**32)


@torch.library.triton_op("polyseme::flash_forward", mutates_args=())
def flash_forward(
    qkv: Tensor,
    cu_seqlens: Tensor,
    seed: Tensor,
    cos_sin: Tensor,
    max_seqlen: int,
    causal: bool,
    window: int,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return the output [T, heads, head_dim] and the log-sum-exp of scores [heads, T]."""
    num_tokens, _, num_heads, dim = qkv.shape
    out, lse = qkv.new_empty(num_tokens, num_heads, dim), qkv.new_empty(num_heads, num_tokens, dtype=torch.float32)
    block, inner, num_warps, num_stages = forward_tiles(max_seqlen)
    grid = (triton.cdiv(max_seqlen, block), num_heads, cu_seqlens.shape[0] - 1)
    torch.library.wrap_triton(_forward)[grid](
        qkv, out, lse, cu_seqlens, seed, cos_sin, num_tokens, max_seqlen, *_constants(dim, dropout), num_heads, dim,
        block, inner, causal, window, dropout > 0, cos_sin.ndim == 3, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out, lse


@torch.library.triton_op("polyseme::flash_backward", mutates_args=())
def flash_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, cu_seqlens: Tensor, seed: Tensor, cos_sin: Tensor,
    max_seqlen: int, causal: bool, window: int, dropout: float,
) -> Tensor:  # fmt: skip
    """Return the gradient of `qkv`."""
    num_tokens, _, num_heads, dim = qkv.shape
    dqkv, grad, deltas = torch.empty_like(qkv), grad.contiguous(), torch.empty_like(lse)
    num_sequences, constants, rotary = cu_seqlens.shape[0] - 1, _constants(dim, dropout), cos_sin.ndim == 3
    block, inner, num_warps, num_stages = key_tiles(max_seqlen, causal, rotary)
    single_tile = max_seqlen <= block
    if not single_tile:
        rows, keys, query_warps, query_stages = query_tiles(max_seqlen)
        torch.library.wrap_triton(_backward_queries)[(triton.cdiv(max_seqlen, rows), num_heads, num_sequences)](
            qkv, out, lse, grad, deltas, dqkv, cu_seqlens, seed, cos_sin, num_tokens, max_seqlen, *constants,
            num_heads, dim, rows, keys, causal, window, dropout > 0, rotary, num_warps=query_warps,
            num_stages=query_stages,
        )  # fmt: skip
    torch.library.wrap_triton(_backward_keys)[(triton.cdiv(max_seqlen, block), num_heads, num_sequences)](
        qkv, out, lse, grad, deltas, dqkv, cu_seqlens, seed, cos_sin, num_tokens, max_seqlen, *constants, num_heads,
        dim, block, inner, causal, window, dropout > 0, rotary, single_tile, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return dqkv


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, cu_seqlens, seed, cos_sin, *settings = inputs
    ctx.save_for_backward(qkv, *output, cu_seqlens, seed, cos_sin)
    ctx.rest = settings


def _grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return (flash_backward(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 7)


flash_forward.register_autograd(_grad, setup_context=_save_context)


def flash(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    cos_sin: Tensor | None = None,
) -> Tensor:
    """Compute self-attention inside each sequence, [T, 3, heads, head_dim] to [T, heads, head_dim].

    With `cos_sin`, cosines and sines [2, max_seqlen, head_dim / 2], queries and keys are rotated by position first.
    Rows after the last sequence are not written.
    """
    seed = torch.randint(0, 2**31 - 1, (1,), dtype=torch.int32, device=qkv.device) if dropout else cu_seqlens[:1]
    return flash_forward(
        qkv, cu_seqlens, seed, seed if cos_sin is None else cos_sin, max_seqlen, causal, window, dropout
    )[0]
