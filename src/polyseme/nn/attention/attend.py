"""Attention over packed sequences: one function, one implementation per backend, never a T × T mask."""

from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn import kernels
from polyseme.nn.attention.groups import group_sequences, prefers_padding
from polyseme.nn.layers.positions import apply_rotary, rotary_table
from polyseme.nn.packing import CacheLayout, PackedLayout
from polyseme.nn.padding import PaddedLayout

KeyLayout = PackedLayout | CacheLayout


class AttentionOptions(NamedTuple):
    """Which keys a query attends to, and changes to the attention score q·k / √head_dim.

    With `causal`, query i of a sequence of n queries and m keys attends to keys 0 … m − n + i: the mask is aligned at
    the end, as a KV cache needs it. With a `window`, it attends only to keys at most that far away. `scale` replaces
    the factor 1 / √head_dim unless it is None. `bias` is added to the scores by relative position: [heads, 2n − 1],
    with relative position 0 in the middle and earlier keys to the left.
    """

    causal: bool = False
    window: int = 0
    dropout: float = 0.0
    scale: float | None = None
    bias: Tensor | None = None

    def resolve_scale(self, head_dim: int) -> float:
        """Return the factor on q·k."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def flash_args(self, causal: bool) -> dict[str, int | float | None]:
        """Return keyword arguments of torch's flash kernel."""
        window = {"window_size_left": self.window, "window_size_right": 0 if causal else self.window}
        return {"scale": self.scale, **(window if self.window else {})}


def attend_self(qkv: Tensor, layout: PackedLayout, options: AttentionOptions, rope_theta: float) -> Tensor:
    """Compute self-attention from fused queries, keys and values [T, 3, heads, head_dim].

    If `rope_theta` (the base of the rotary wavelengths) is not 0, queries and keys are rotated by position first.
    """
    head_dim = qkv.shape[-1]
    is_supported_dim = head_dim in kernels.HEAD_DIMS and not (rope_theta and head_dim < 32)
    if options.scale is None and options.bias is None and is_supported_dim and kernels.supports(qkv):
        positions = torch.arange(layout.max_seqlen, dtype=torch.float32, device=qkv.device)
        cos_sin = rotary_table(positions, head_dim // 2, rope_theta) if rope_theta else None
        settings = options.causal, options.dropout, options.window
        return kernels.flash(qkv, layout.cu_seqlens, layout.max_seqlen, *settings, cos_sin)
    q, k, v = (apply_rotary(qkv, layout.positions, rope_theta) if rope_theta else qkv).unbind(1)
    return attend(q, k, v, layout, layout, options)


def attend(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PackedLayout, k_layout: KeyLayout, options: AttentionOptions
) -> Tensor:
    """Compute softmax attention of each query over the keys of its own sequence.

    q is [Tq, heads, head_dim], k and v are [Tk, heads, head_dim] or, with a `CacheLayout`, buffers [rows, max_len,
    heads, head_dim].
    """
    if isinstance(k_layout, CacheLayout):
        return attend_cached(q, k, v, k_layout, options)
    if isinstance(k_layout, PaddedLayout) and isinstance(q_layout, PaddedLayout):
        return attend_padded(q, k, v, q_layout, k_layout, options)
    if _supports_flash(q, options):
        return attend_varlen(q, k, v, q_layout, k_layout, options)
    if options.bias is not None and q_layout is k_layout and q_layout.has_static_shape and prefers_padding(q):
        return attend_grouped(q, k, v, q_layout, options)  # compiled and captured, unlike what follows
    return attend_bucketed(q, k, v, q_layout, k_layout, options)


def _supports_flash(q: Tensor, options: AttentionOptions) -> bool:
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and options.bias is None


def attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PackedLayout, k_layout: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Attend with the variable-length flash kernel, for CUDA in half precision.

    `torch.nn.attention.varlen.varlen_attn` wraps the same operator without dropout, which BERT needs.
    """
    seqlen_args = q_layout.cu_seqlens, k_layout.cu_seqlens, q_layout.max_seqlen, k_layout.max_seqlen
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *seqlen_args, options.dropout, options.causal, False, **options.flash_args(options.causal)
    )[0]


def attend_cached(q: Tensor, k: Tensor, v: Tensor, cache_layout: CacheLayout, options: AttentionOptions) -> Tensor:
    """Attend to keys and values in cache buffers [rows, max_len, heads, head_dim].

    Each row has the same number of queries. With a window or a bias there is one query per row, at the position of the
    row's last key.
    """
    num_rows, max_seqlen, num_heads, head_dim = k.shape
    if _supports_flash(q, options):
        queries_per_row = len(q) // num_rows
        row_index = torch.arange(num_rows + 1, dtype=torch.int32, device=q.device)
        seqlen_args = row_index * queries_per_row, row_index * max_seqlen, queries_per_row, max_seqlen
        return torch.ops.aten._flash_attention_forward(
            q, k.reshape(-1, num_heads, head_dim), v.reshape(-1, num_heads, head_dim), *seqlen_args, 0.0, False, False,
            seqused_k=cache_layout.lengths.int(), **options.flash_args(causal=True),
        )[0]  # fmt: skip
    queries = q.view(num_rows, -1, num_heads, head_dim).transpose(1, 2)  # [rows, heads, queries, head_dim]
    mask = cache_layout.attention_bias(options.window, options.bias, q.dtype)
    output = F.scaled_dot_product_attention(queries, k.transpose(1, 2), v.transpose(1, 2), mask, scale=options.scale)
    return output.transpose(1, 2).reshape(q.shape)


def attend_bucketed(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PackedLayout, k_layout: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Attend on a CPU, in float32, or with a bias: adjacent sequences of equal length form one dense batch.

    The loader sorts a micro-batch by length, so there are few such runs. Lengths change from batch to batch, so a
    compiled model breaks its graph here (`exclude_from_compile`).
    """
    causal, window, dropout, scale, bias = options
    runs = equal_length_pairs(q_layout, k_layout)
    if bias is not None and q_layout is k_layout and len(runs) > 1 and prefers_padding(q):
        return attend_grouped(q, k, v, q_layout, options)
    q_sizes, k_sizes = [n * num_queries for n, num_queries, _ in runs], [n * num_keys for n, _, num_keys in runs]
    outputs = []
    for (n, num_queries, num_keys), *qkv in zip(runs, q.split(q_sizes), k.split(k_sizes), v.split(k_sizes)):
        if not num_queries:
            continue
        is_plain_causal = causal and num_queries == num_keys and not 0 < window < num_keys and bias is None
        mask = None if is_plain_causal else visibility_mask(num_queries, num_keys, causal, window, q.device)
        if bias is not None:
            score_bias = expand_relative_bias(bias, num_queries, num_keys).to(q.dtype)
            mask = score_bias if mask is None else score_bias.masked_fill(~mask, float("-inf"))
        sizes = num_queries, num_keys, num_keys
        # [n, heads, queries or keys, head_dim]
        qs, ks, vs = (x.view(n, size, *q.shape[1:]).transpose(1, 2) for x, size in zip(qkv, sizes))
        if bias is not None and mask is not None and not q.is_cuda:
            output = _attend_dense(qs, ks, vs, mask, dropout, options.resolve_scale(q.shape[-1]))
        else:
            output = F.scaled_dot_product_attention(qs, ks, vs, mask, dropout, is_plain_causal, scale=scale)
        outputs.append(output.transpose(1, 2).reshape(n * num_queries, *q.shape[1:]))
    return torch.cat(outputs) if outputs else torch.zeros_like(q)


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, options: AttentionOptions) -> Tensor:
    """Compute self-attention with a bias on a GPU: adjacent sequences of similar length are padded to a dense batch."""
    assert options.bias is not None
    sides = [group.queries for group in group_sequences(layout, layout)]
    sizes, outputs = [side.num_rows for side in sides], []
    for side, *qkv in zip(sides, q.split(sizes), k.split(sizes), v.split(sizes)):
        qs, ks, vs = (side.pad(x) for x in qkv)  # [heads, sequences, length, head_dim]
        visible = visibility_mask(side.length, side.length, options.causal, options.window, q.device)
        masked_out = side.is_padding[:, None]  # [sequences, 1 or length, length]
        masked_out = masked_out if visible is None else masked_out | ~visible
        score_bias = expand_relative_bias(options.bias, side.length, side.length).to(q.dtype)[:, None]
        score_bias = score_bias.masked_fill(masked_out, torch.finfo(q.dtype).min)  # finite, for rows of padding
        output = _attend_dense(qs, ks, vs, score_bias, options.dropout, options.resolve_scale(q.shape[-1]))
        outputs.append(side.unpad(output))
    return torch.cat(outputs) if outputs else torch.zeros_like(q)


def _attend_dense(q: Tensor, k: Tensor, v: Tensor, score_bias: Tensor, dropout: float, scale: float) -> Tensor:
    """Attend with plain matrix products; SDPA with a bias that needs a gradient is up to a third slower."""
    scores = q @ k.transpose(-1, -2)
    scores = scores if scale == 1 else scores * scale
    weights = scores.add_(score_bias).softmax(-1)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


def attend_padded(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PaddedLayout, k_layout: PaddedLayout, options: AttentionOptions
) -> Tensor:
    """Attend in padded batches, without a branch on their shapes, which may be symbolic.

    A row of padding may see no key within its window; its scores are then equal, not all −∞, so that it stays finite.
    """
    queries = q_layout.unflatten(q).transpose(1, 2)  # [B, heads, Lq, head_dim]
    keys, values = (k_layout.unflatten(x).transpose(1, 2) for x in (k, v))  # [B, heads, Lk, head_dim]
    distance = q_layout.distances_to(k_layout)  # [B or 1, Lq, Lk]
    mask = k_layout.mask[:, None, None]  # [B, 1, 1, Lk]
    if options.causal:
        mask = mask & (distance <= 0)[:, None]
    if options.window:
        mask = mask & (distance.abs() <= options.window)[:, None]
    scores_bias = q.new_zeros(1)
    if options.bias is not None:
        index = (distance + k_layout.max_seqlen - 1).flatten()
        scores_bias = options.bias.index_select(1, index).view(-1, *distance.shape).transpose(0, 1).to(q.dtype)
    scores_bias = torch.where(mask, scores_bias, torch.finfo(q.dtype).min)  # [B, 1 or heads, 1 or Lq, Lk]
    output = F.scaled_dot_product_attention(queries, keys, values, scores_bias, scale=options.scale)
    # a copy, because the memory layout differs between the kernel that is traced and those that run it
    return output.transpose(1, 2).clone(memory_format=torch.contiguous_format).view(q.shape)


def visibility_mask(num_queries: int, num_keys: int, causal: bool, window: int, device: torch.device) -> Tensor | None:
    """Return which keys each query may attend to, bool [queries, keys] aligned at the end, or None for all."""
    if not (causal and num_queries > 1) and not 0 < window < num_keys:
        return None
    key_positions = torch.arange(num_keys, device=device)
    distance = key_positions - key_positions[num_keys - num_queries :, None]
    mask = distance <= (0 if causal else window)
    return mask & (distance >= -window) if window else mask


def expand_relative_bias(bias: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Expand a bias by relative position to [heads, queries, keys]; each row starts one entry before the row above."""
    start = bias.shape[1] // 2 - (num_keys - 1)
    return bias[:, start : start + num_queries + num_keys - 1].unfold(1, num_keys, 1).flip(1)


def equal_length_pairs(q_layout: PackedLayout, k_layout: PackedLayout) -> list[tuple[int, int, int]]:
    """Return (sequences, queries each, keys each) for runs of adjacent sequences with equal lengths.

    The number of queries may be 0.
    """
    if q_layout is k_layout:
        return [(n, length, length) for n, length in q_layout.equal_length_runs]
    return [(len(list(run)), *lengths) for lengths, run in groupby(zip(q_layout.lengths, k_layout.lengths))]
