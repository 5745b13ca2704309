"""Attention over packed sequences: one function, one body per backend. No T × T mask is ever made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn import kernels
from polyseme.nn.layers.positions import rotate, turns
from polyseme.nn.packing import Layout, Room


@dataclass(frozen=True, eq=False)
class Scoring:
    """How a query and a key are compared, where that is not by their product times 1 / √head_dim.

    `scale` multiplies the product; None is that. `bias` is added, by distance: [heads, 2n − 1], distance 0 in its
    middle, keys further behind to its left.
    """

    scale: float | None = None
    bias: Tensor | None = None

    @property
    def plain(self) -> bool:
        return self.scale is None and self.bias is None

    def factor(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.scale is None else self.scale


PLAIN = Scoring()


def attend_self(
    qkv: Tensor,
    layout: Layout,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    scoring: Scoring = PLAIN,
    rotary: float = 0.0,
) -> Tensor:
    """Attention of sequences to themselves, from the one matrix of queries, keys and values [T, 3, heads, head_dim].

    With `rotary`, the base of its wave lengths, queries and keys are turned by their places first.
    """
    dim = qkv.shape[-1]
    if scoring.plain and kernels.serve(qkv) and dim in kernels.HEAD_DIMS and not (rotary and dim < 32):
        places = torch.arange(layout.longest, dtype=torch.float32, device=qkv.device)
        table = turns(places, dim // 2, rotary) if rotary else None
        found: Tensor = kernels.flash(qkv, layout.starts, layout.longest, causal, dropout, window, table)
        return found
    q, k, v = (rotate(qkv, layout.positions, rotary) if rotary else qkv).unbind(1)
    return attend(q, k, v, layout, layout, causal, dropout, window, scoring)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout | Room,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """Softmax attention of each query to the keys of its own sequence.

    q is [Tq, heads, head_dim], k and v [Tk, heads, head_dim]. With `causal`, query i of a sequence of n queries and
    m keys sees keys 0 … m − n + i: aligned at the end, which is right for a cache. With a `window`, it sees those at
    most so far from its own place. Keys with room for more are [n, longest, heads, head_dim].
    """
    if isinstance(k_layout, Room):
        return attend_room(q, k, v, k_layout, window, scoring)
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and scoring.bias is None:
        return attend_varlen(q, k, v, q_layout, k_layout, causal, dropout, window, scoring)
    return attend_runs(q, k, v, q_layout, k_layout, causal, dropout, window, scoring)


def attend_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """CUDA in half precision: the variable-length flash kernel.

    `torch.nn.attention.varlen.varlen_attn` wraps this operator without its dropout, which BERT needs.
    """
    sides = {"window_size_left": window, "window_size_right": 0 if causal else window} if window else {}
    sizes = q_layout.starts, k_layout.starts, q_layout.longest, k_layout.longest
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *sizes, dropout, causal, False, scale=scoring.scale, **sides
    )[0]


def attend_room(q: Tensor, k: Tensor, v: Tensor, room: Room, window: int = 0, scoring: Scoring = PLAIN) -> Tensor:
    """Keys and values in buffers, [n, longest, heads, head_dim]: as many queries for each row of them.

    With a window or a bias there is one query a row, and it stands where the row's last key does.
    """
    n, longest, heads, head_dim = k.shape
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and scoring.bias is None:
        each = len(q) // n
        counted = torch.arange(n + 1, dtype=torch.int32, device=q.device)
        sides = {"window_size_left": window, "window_size_right": 0} if window else {}
        return torch.ops.aten._flash_attention_forward(
            q, k.reshape(-1, heads, head_dim), v.reshape(-1, heads, head_dim), counted * each, counted * longest, each,
            longest, 0.0, False, False, scale=scoring.scale, seqused_k=room.lengths.int(), **sides,
        )[0]  # fmt: skip
    out = F.scaled_dot_product_attention(
        q.view(n, -1, heads, head_dim).transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=room.added(window, scoring.bias, q.dtype),
        scale=scoring.scale,
    )
    return out.transpose(1, 2).reshape(q.shape)


def attend_runs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    dropout: float = 0.0,
    window: int = 0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """CPU, or float32, or a bias: neighbours of equal length are viewed as one dense batch.

    The loader sorts a micro-batch by length, so there are few runs. Lengths change from batch to batch, so a
    compiled model steps out of its graph here (`graphs.py`).
    """
    pairs, bias = paired_runs(q_layout, k_layout), scoring.bias
    counts = [(n * rows, n * columns) for n, rows, columns in pairs]
    heads, head_dim = q.shape[1:]
    outputs = []
    pieces = zip(
        pairs,
        q.split([rows for rows, _ in counts]),
        k.split([columns for _, columns in counts]),
        v.split([columns for _, columns in counts]),
    )
    for (n, rows, columns), qs, ks, vs in pieces:
        if not rows:
            continue
        # torch's own causal mask will do
        plain = causal and rows == columns and not 0 < window < columns and bias is None
        mask = None if plain else seen(rows, columns, causal, window, q.device)
        if bias is not None:
            dense = spread(bias, rows, columns).to(q.dtype)
            mask = dense if mask is None else dense.masked_fill(~mask, float("-inf"))
        batch = (
            qs.view(n, rows, heads, head_dim).transpose(1, 2),
            ks.view(n, columns, heads, head_dim).transpose(1, 2),
            vs.view(n, columns, heads, head_dim).transpose(1, 2),
        )
        if bias is not None and mask is not None and not q.is_cuda:
            out = _attend_dense(*batch, mask, dropout, scoring.factor(head_dim))
        else:
            out = F.scaled_dot_product_attention(
                *batch, attn_mask=mask, dropout_p=dropout, is_causal=plain, scale=scoring.scale
            )
        outputs.append(out.transpose(1, 2).reshape(n * rows, heads, head_dim))
    return torch.cat(outputs) if outputs else torch.zeros_like(q)


def _attend_dense(q: Tensor, k: Tensor, v: Tensor, added: Tensor, dropout: float, scale: float) -> Tensor:
    """By plain products: where what is added has a gradient, torch's own does no better and is up to a third slower."""
    scores = q @ k.transpose(-1, -2)
    scores = scores if scale == 1 else scores * scale
    weights = scores.add_(added).softmax(-1)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


def seen(rows: int, columns: int, causal: bool, window: int, device: torch.device) -> Tensor | None:
    """Which keys each query sees, bool [rows, columns] aligned at the end; None if all."""
    if not (causal and rows > 1) and not 0 < window < columns:
        return None
    ahead = torch.arange(columns, device=device) - torch.arange(columns - rows, columns, device=device)[:, None]
    mask = ahead <= (0 if causal else window)
    return mask & (ahead >= -window) if window else mask


def spread(bias: Tensor, rows: int, columns: int) -> Tensor:
    """A bias by distance as a matrix, [heads, rows, columns]: each row begins one place before the row above it."""
    begin = bias.shape[1] // 2 - (columns - 1)
    return bias[:, begin : begin + rows + columns - 1].unfold(1, columns, 1).flip(1)


def attention_weights(
    q: Tensor,
    k: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    window: int = 0,
    scoring: Scoring = PLAIN,
) -> list[Tensor]:
    """The probabilities themselves, [heads, queries, keys] for each sequence: for pictures and for tests."""
    found = []
    for qs, ks in zip(q.split(list(q_layout.lengths)), k.split(list(k_layout.lengths))):
        scores = torch.einsum("ihd,jhd->hij", qs, ks) * scoring.factor(q.shape[-1])
        if scoring.bias is not None:
            scores = scores + spread(scoring.bias, len(qs), len(ks))
        if (mask := seen(len(qs), len(ks), causal, window, q.device)) is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        found.append(scores.softmax(-1))
    return found


def attend_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    window: int = 0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """The definition, one sequence at a time: what the other bodies are tested against."""
    weights = attention_weights(q, k, q_layout, k_layout, causal, window, scoring)
    values = v.split(list(k_layout.lengths))
    return torch.cat([torch.einsum("hij,jhd->ihd", w, x) for w, x in zip(weights, values)])


def paired_runs(q_layout: Layout, k_layout: Layout) -> list[tuple[int, int, int]]:
    """(how many, queries each, keys each) for neighbours alike in both; there may be keys without a query."""
    if q_layout is k_layout:
        return [(n, length, length) for n, length in q_layout.runs]
    found: list[tuple[int, int, int]] = []
    for rows, columns in zip(q_layout.lengths, k_layout.lengths):
        if found and found[-1][1:] == (rows, columns):
            found[-1] = (found[-1][0] + 1, rows, columns)
        else:
            found.append((1, rows, columns))
    return found
