"""Self-attention over packed sequences on a GPU, in Triton: no score matrix in memory, no padding.

The algorithm is that of Dao 2023 (FlashAttention-2). What is gained over the kernel that torch brings: query, key and
value are read from, and their gradients written to, the one matrix they are projected into; a sequence of at most one
tile takes one pass backwards, a longer one two, each with tiles of its own and none with atomic sums; dropout costs a
few integer operations an element; a window skips the tiles outside it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
LOG2E: Any = tl.constexpr(1.4426950408889634)  # scores are kept times this, for exp2


@triton.jit
def _drawn(seed, rows, columns, head, threshold):
    """True where a score is kept: a hash of seed, head, row and column, held against a threshold of 32 bits."""
    x = rows.to(tl.uint32) * 0x9E3779B1 + (head.to(tl.uint32) * 0x85EBCA77 + seed.to(tl.uint32))
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    y = columns.to(tl.uint32) * 0xC2B2AE3D
    y = (y ^ (y >> 15)) * 0x2C1B3C6D
    z = (x ^ y) * 0x297A2D39
    z = (z ^ (z >> 15)) * 0x5BD1E995
    return z >= threshold


@triton.jit
def _seen(rows, columns, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether a query sees a key: inside the sequence, not ahead if causal, at most WINDOW away if there is one."""
    seen = columns < length
    if CAUSAL:
        seen = seen & (columns <= rows)
    if WINDOW:
        seen = seen & (rows - columns <= WINDOW) & (columns - rows <= WINDOW)
    return seen


@triton.jit
def _load(base, rows, step, columns, length, MASKED: tl.constexpr):
    places = base + rows[:, None] * step + columns[None, :]
    if MASKED:
        return tl.load(places, mask=rows[:, None] < length, other=0.0)
    return tl.load(places)


@triton.jit
def _halves(base, rows, step, length, turns, longest, DIM: tl.constexpr, ROTARY: tl.constexpr, MASKED: tl.constexpr):
    """A tile of queries or keys. With ROTARY its two halves, turned by their places; else the whole, and nothing."""
    if ROTARY:
        columns = tl.arange(0, DIM // 2)
        a = _load(base, rows, step, columns, length, MASKED).to(tl.float32)
        b = _load(base + DIM // 2, rows, step, columns, length, MASKED).to(tl.float32)
        cos, sin = _turns(rows, length, turns, longest, DIM)
        found = (a * cos - b * sin).to(base.dtype.element_ty), (b * cos + a * sin).to(base.dtype.element_ty)
    else:
        whole = _load(base, rows, step, tl.arange(0, DIM), length, MASKED)
        found = whole, whole
    return found


@triton.jit
def _turns(rows, length, turns, longest, DIM: tl.constexpr):
    """Cosine and sine of each row and pair."""
    places = turns + rows[:, None] * (DIM // 2) + tl.arange(0, DIM // 2)[None, :]
    inside = rows[:, None] < length
    return tl.load(places, mask=inside, other=0.0), tl.load(places + longest * (DIM // 2), mask=inside, other=0.0)


@triton.jit
def _scores(a, b, c, d, ROTARY: tl.constexpr):
    """(a, b) · (c, d)ᵀ, of halves or of the whole."""
    found = tl.dot(a, tl.trans(c))
    if ROTARY:
        found = tl.dot(b, tl.trans(d), found)
    return found


@triton.jit
def _store_turned(target, rows, step, a, b, length, turns, longest, DIM: tl.constexpr, ROTARY: tl.constexpr):
    """Gradients of queries or keys, turned back."""
    inside = rows[:, None] < length
    if ROTARY:
        cos, sin = _turns(rows, length, turns, longest, DIM)
        places = target + rows[:, None] * step + tl.arange(0, DIM // 2)[None, :]
        tl.store(places, (a * cos + b * sin).to(target.dtype.element_ty), mask=inside)
        tl.store(places + DIM // 2, (b * cos - a * sin).to(target.dtype.element_ty), mask=inside)
    else:
        places = target + rows[:, None] * step + tl.arange(0, DIM)[None, :]
        tl.store(places, a.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _see(qa, qb, acc, sums, most, base, start, rows, begin, length, head, seed, turns, longest,
         scale: tl.constexpr, threshold: tl.constexpr,
         HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
         DROPOUT: tl.constexpr, ROTARY: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Queries meet one block of keys: the running maximum, sum and weighted values."""
    step: tl.constexpr = 3 * HEADS * DIM
    keys = start + tl.arange(0, BLOCK_N)
    ka, kb = _halves(base + HEADS * DIM, keys, step, length, turns, longest, DIM, ROTARY, MASKED)
    v = _load(base + 2 * HEADS * DIM, keys, step, tl.arange(0, DIM), length, MASKED)
    scores = _scores(qa, qb, ka, kb, ROTARY)
    if MASKED:
        scores = tl.where(_seen(rows[:, None], keys[None, :], length, CAUSAL, WINDOW), scores, -1e30)
    new = tl.maximum(most, tl.max(scores, 1) * scale)
    p = tl.exp2(scores * scale - new[:, None])
    fade = tl.exp2(most - new)
    sums = sums * fade + tl.sum(p, 1)
    if DROPOUT:
        p = tl.where(_drawn(seed, (begin + rows)[:, None], keys[None, :], head, threshold), p, 0.0)
    return tl.dot(p.to(v.dtype), v, acc * fade[:, None]), sums, new


@triton.jit
def _forward(
    qkv, out, lse, starts, seeds, turns, total, longest,
    scale: tl.constexpr, keep: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if block * BLOCK_M >= length:
        return
    step: tl.constexpr = 3 * HEADS * DIM
    columns = tl.arange(0, DIM)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    base = qkv + begin.to(tl.int64) * step + head * DIM
    qa, qb = _halves(base, rows, step, length, turns, longest, DIM, ROTARY, True)
    seed = tl.load(seeds)
    most = tl.full([BLOCK_M], -1e29, tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)
    first, whole, stop = _keys_of(block * BLOCK_M, BLOCK_M, length, BLOCK_N, CAUSAL, WINDOW)
    for start in range(first, whole, BLOCK_N):
        acc, sums, most = _see(qa, qb, acc, sums, most, base, start, rows, begin, length, head, seed, turns, longest,
                               scale, threshold, HEADS, DIM, BLOCK_N, CAUSAL, WINDOW, DROPOUT, ROTARY,
                               False)  # fmt: skip
    for start in range(whole, stop, BLOCK_N):
        acc, sums, most = _see(qa, qb, acc, sums, most, base, start, rows, begin, length, head, seed, turns, longest,
                               scale, threshold, HEADS, DIM, BLOCK_N, CAUSAL, WINDOW, DROPOUT, ROTARY,
                               True)  # fmt: skip
    acc = acc * (keep / sums)[:, None]
    places = (begin + rows).to(tl.int64)[:, None] * (HEADS * DIM) + head * DIM + columns[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=rows[:, None] < length)
    tl.store(lse + head * total + begin + rows, most + tl.log2(sums), mask=rows < length)


@triton.jit
def _keys_of(row, ROWS: tl.constexpr, length, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys a block of queries meets: the first, where those begin that need a mask, and the end."""
    stop = length
    first = 0
    whole = (row if CAUSAL else length) // BLOCK * BLOCK
    if CAUSAL:
        stop = tl.minimum(row + ROWS, length)
    if WINDOW:
        first = tl.maximum(row - WINDOW, 0) // BLOCK * BLOCK
        whole = first
        stop = tl.minimum(row + ROWS + WINDOW, stop)
    return first, whole, stop


@triton.jit
def _back_keys(da, db, dv, ka, kb, v, keys, base, o_base, g_base, l_base, d_base, target, start, begin, length, head,
               seed, turns, longest, scale: tl.constexpr, keep: tl.constexpr, threshold: tl.constexpr,
               HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
               WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr, ONE: tl.constexpr,
               MASKED: tl.constexpr):  # fmt: skip
    """One block of queries gives its part of the gradients of a block of keys and values."""
    step: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    rows = start + tl.arange(0, BLOCK)
    qa, qb = _halves(base, rows, step, length, turns, longest, DIM, ROTARY, MASKED)
    g = _load(g_base, rows, width, columns, length, MASKED)
    if ONE:
        o = _load(o_base, rows, width, columns, length, MASKED)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    else:
        delta = tl.load(d_base + rows, mask=rows < length, other=0.0) if MASKED else tl.load(d_base + rows)
    level = tl.load(l_base + rows, mask=rows < length, other=float("inf")) if MASKED else tl.load(l_base + rows)
    p = tl.exp2(_scores(ka, kb, qa, qb, ROTARY) * scale - level[None, :])
    if MASKED:
        p = tl.where(_seen(rows[None, :], keys[:, None], length, CAUSAL, WINDOW), p, 0.0)
    dp = tl.dot(v, tl.trans(g))
    if DROPOUT:
        kept = _drawn(seed, (begin + rows)[None, :], keys[:, None], head, threshold)
        dp = tl.where(kept, dp * keep, 0.0)
        dv = tl.dot(tl.where(kept, p * keep, 0.0).to(g.dtype), g, dv)
    else:
        dv = tl.dot(p.to(g.dtype), g, dv)
    ds = (p * (dp - delta[None, :])).to(g.dtype)
    da = tl.dot(ds, qa, da)
    if ROTARY:
        db = tl.dot(ds, qb, db)
    if ONE:
        back = tl.trans(ds)
        qa_grad = tl.dot(back, ka) * (scale / LOG2E)
        qb_grad = tl.dot(back, kb) * (scale / LOG2E) if ROTARY else qa_grad
        _store_turned(target, rows, step, qa_grad, qb_grad, length, turns, longest, DIM, ROTARY)
    return da, db, dv


@triton.jit
def _back_queries(da, db, qa, qb, g, delta, level, rows, base, start, begin, length, head, seed, turns, longest,
                  scale: tl.constexpr, keep: tl.constexpr, threshold: tl.constexpr,
                  HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
                  WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
                  MASKED: tl.constexpr):  # fmt: skip
    """One block of keys gives its part of the gradient of a block of queries."""
    step: tl.constexpr = 3 * HEADS * DIM
    keys = start + tl.arange(0, BLOCK)
    ka, kb = _halves(base + HEADS * DIM, keys, step, length, turns, longest, DIM, ROTARY, MASKED)
    v = _load(base + 2 * HEADS * DIM, keys, step, tl.arange(0, DIM), length, MASKED)
    p = tl.exp2(_scores(qa, qb, ka, kb, ROTARY) * scale - level[:, None])
    if MASKED:
        p = tl.where(_seen(rows[:, None], keys[None, :], length, CAUSAL, WINDOW), p, 0.0)
    dp = tl.dot(g, tl.trans(v))
    if DROPOUT:
        kept = _drawn(seed, (begin + rows)[:, None], keys[None, :], head, threshold)
        dp = tl.where(kept, dp * keep, 0.0)
    ds = (p * (dp - delta[:, None])).to(g.dtype)
    da = tl.dot(ds, ka, da)
    if ROTARY:
        db = tl.dot(ds, kb, db)
    return da, db


@triton.jit
def _backward_queries(
    qkv, out, lse, grad, deltas, dqkv, starts, seeds, turns, total, longest,
    scale: tl.constexpr, keep: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries, over the keys they see; and Σ gradient · output, for the other pass."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if block * BLOCK >= length:
        return
    step: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    base = qkv + begin.to(tl.int64) * step + head * DIM
    offset = begin.to(tl.int64) * width + head * DIM
    mine = block * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seeds)
    qa, qb = _halves(base, mine, step, length, turns, longest, DIM, ROTARY, True)
    g = _load(grad + offset, mine, width, columns, length, True)
    o = _load(out + offset, mine, width, columns, length, True)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(deltas + head * total + begin + mine, delta, mask=mine < length)
    level = tl.load(lse + head * total + begin + mine, mask=mine < length, other=float("inf"))
    da = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    db = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    first, whole, stop = _keys_of(block * BLOCK, BLOCK, length, INNER, CAUSAL, WINDOW)
    for start in range(first, whole, INNER):
        da, db = _back_queries(da, db, qa, qb, g, delta, level, mine, base, start, begin, length, head, seed, turns,
                               longest, scale, keep, threshold, HEADS, DIM, INNER, CAUSAL, WINDOW, DROPOUT, ROTARY,
                               False)  # fmt: skip
    for start in range(whole, stop, INNER):
        da, db = _back_queries(da, db, qa, qb, g, delta, level, mine, base, start, begin, length, head, seed, turns,
                               longest, scale, keep, threshold, HEADS, DIM, INNER, CAUSAL, WINDOW, DROPOUT, ROTARY,
                               True)  # fmt: skip
    target = dqkv + begin.to(tl.int64) * step + head * DIM
    factor: tl.constexpr = scale / LOG2E
    _store_turned(target, mine, step, da * factor, db * factor, length, turns, longest, DIM, ROTARY)


@triton.jit
def _backward_keys(
    qkv, out, lse, grad, deltas, dqkv, starts, seeds, turns, total, longest,
    scale: tl.constexpr, keep: tl.constexpr, threshold: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DROPOUT: tl.constexpr, ROTARY: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values, over the queries that see them.

    With ONE, a sequence is one tile: its queries come with the keys.
    """
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if block * BLOCK >= length:
        return
    step: tl.constexpr = 3 * HEADS * DIM
    width: tl.constexpr = HEADS * DIM
    columns = tl.arange(0, DIM)
    base = qkv + begin.to(tl.int64) * step + head * DIM
    target = dqkv + begin.to(tl.int64) * step + head * DIM
    o_base = out + begin.to(tl.int64) * width + head * DIM
    g_base = grad + begin.to(tl.int64) * width + head * DIM
    l_base = lse + head * total + begin
    d_base = deltas + head * total + begin
    seed = tl.load(seeds)
    mine = block * BLOCK + tl.arange(0, BLOCK)
    ka, kb = _halves(base + width, mine, step, length, turns, longest, DIM, ROTARY, True)
    v = _load(base + 2 * width, mine, step, columns, length, True)
    da = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    db = tl.zeros([BLOCK, DIM // 2 if ROTARY else DIM], tl.float32)
    dv = tl.zeros([BLOCK, DIM], tl.float32)
    # Queries from `first` to `clear` need a mask, then none to `end`, then the rest does again.
    first = block * BLOCK if CAUSAL else 0
    stop = length
    if WINDOW:
        first = first if CAUSAL else tl.maximum(block * BLOCK - WINDOW, 0) // INNER * INNER
        stop = tl.minimum((block + 1) * BLOCK + WINDOW, length)
        clear = stop
        end = stop
    else:
        full = (block + 1) * BLOCK <= length
        end = length // INNER * INNER if full else length
        clear = (tl.minimum((block + 1) * BLOCK, end) if CAUSAL else 0) if full else length
    for start in range(first, clear, INNER):
        da, db, dv = _back_keys(da, db, dv, ka, kb, v, mine, base, o_base, g_base, l_base, d_base, target, start, begin,
                                length, head, seed, turns, longest, scale, keep, threshold, HEADS, DIM, INNER, CAUSAL,
                                WINDOW, DROPOUT, ROTARY, ONE, True)  # fmt: skip
    for start in range(clear, end, INNER):
        da, db, dv = _back_keys(da, db, dv, ka, kb, v, mine, base, o_base, g_base, l_base, d_base, target, start, begin,
                                length, head, seed, turns, longest, scale, keep, threshold, HEADS, DIM, INNER, CAUSAL,
                                WINDOW, DROPOUT, ROTARY, ONE, False)  # fmt: skip
    for start in range(end, stop, INNER):
        da, db, dv = _back_keys(da, db, dv, ka, kb, v, mine, base, o_base, g_base, l_base, d_base, target, start, begin,
                                length, head, seed, turns, longest, scale, keep, threshold, HEADS, DIM, INNER, CAUSAL,
                                WINDOW, DROPOUT, ROTARY, ONE, True)  # fmt: skip
    factor: tl.constexpr = scale / LOG2E
    _store_turned(target + width, mine, step, da * factor, db * factor, length, turns, longest, DIM, ROTARY)
    places = mine[:, None] * step + columns[None, :]
    tl.store(target + 2 * width + places, dv.to(v.dtype), mask=mine[:, None] < length)


def forward_tiles(longest: int) -> tuple[int, int, int, int]:
    """Rows of queries and of keys in a tile, warps, stages: measured on an H200."""
    block = 64 if longest > 32 else 32
    return block, block, 4, 3


def key_tiles(longest: int, causal: bool, rotary: bool) -> tuple[int, int, int, int]:
    """The same for gradients of keys: rows of the block a program owns, and of those it meets in turn, its divisor.

    Turned halves take more registers, so their tiles are smaller.
    """
    if longest <= 128:
        block = 128 if longest > 64 else 64 if longest > 32 else 32
        return block, min(block, 32 if rotary else 64), 8 if block > 64 else 4, 2
    if rotary:
        return 64, 32, 4, 2
    return (64, 64, 4, 2) if causal else (128, 32, 4, 3)


def query_tiles(longest: int) -> tuple[int, int, int, int]:
    """The same for gradients of queries, which come with those of the keys where a sequence is one tile."""
    return 64, 64, 4, 3


def _constants(dim: int, dropout: float) -> tuple[float, float, int]:
    """The scale of scores for exp2, the factor on what dropout keeps, and its threshold on 32 bits."""
    return dim**-0.5 * LOG2E.value, 1 / (1 - dropout), round(dropout * 2**32)


@torch.library.triton_op("polyseme::flash_forward", mutates_args=())
def flash_forward(
    qkv: Tensor, starts: Tensor, seed: Tensor, turns: Tensor, longest: int, causal: bool, window: int, dropout: float
) -> tuple[Tensor, Tensor]:
    total, _, heads, dim = qkv.shape
    out, lse = qkv.new_empty(total, heads, dim), qkv.new_empty(heads, total, dtype=torch.float32)
    block, inner, warps, stages = forward_tiles(longest)
    grid = (triton.cdiv(longest, block), heads, starts.shape[0] - 1)
    torch.library.wrap_triton(_forward)[grid](
        qkv, out, lse, starts, seed, turns, total, longest, *_constants(dim, dropout), heads, dim, block, inner, causal,
        window, dropout > 0, turns.ndim == 3, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, lse


@torch.library.triton_op("polyseme::flash_backward", mutates_args=())
def flash_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, starts: Tensor, seed: Tensor, turns: Tensor, longest: int,
    causal: bool, window: int, dropout: float,
) -> Tensor:  # fmt: skip
    total, _, heads, dim = qkv.shape
    dqkv, grad, deltas = torch.empty_like(qkv), grad.contiguous(), torch.empty_like(lse)
    sequences, constants, rotary = starts.shape[0] - 1, _constants(dim, dropout), turns.ndim == 3
    block, inner, warps, stages = key_tiles(longest, causal, rotary)
    one = longest <= block
    if not one:
        rows, keys, query_warps, query_stages = query_tiles(longest)
        torch.library.wrap_triton(_backward_queries)[(triton.cdiv(longest, rows), heads, sequences)](
            qkv, out, lse, grad, deltas, dqkv, starts, seed, turns, total, longest, *constants, heads, dim, rows, keys,
            causal, window, dropout > 0, rotary, num_warps=query_warps, num_stages=query_stages,
        )  # fmt: skip
    torch.library.wrap_triton(_backward_keys)[(triton.cdiv(longest, block), heads, sequences)](
        qkv, out, lse, grad, deltas, dqkv, starts, seed, turns, total, longest, *constants, heads, dim, block, inner,
        causal, window, dropout > 0, rotary, one, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dqkv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, starts, seed, turns, *rest = inputs
    ctx.save_for_backward(qkv, *output, starts, seed, turns)
    ctx.rest = rest


def _grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return (flash_backward(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 7)


flash_forward.register_autograd(_grad, setup_context=_keep)


def flash(
    qkv: Tensor,
    starts: Tensor,
    longest: int,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    turns: Tensor | None = None,
) -> Tensor:
    """[T, 3, heads, head_dim] to [T, heads, head_dim]; each sequence sees itself alone.

    With `turns`, cosines and sines [2, longest, head_dim / 2], queries and keys are turned by their places first. Rows
    behind the last sequence are not written.
    """
    seed = torch.randint(0, 2**31 - 1, (1,), dtype=torch.int32, device=qkv.device) if dropout else starts[:1]
    return flash_forward(qkv, starts, seed, seed if turns is None else turns, longest, causal, window, dropout)[0]
