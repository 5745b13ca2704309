"""Attention by definition, the reference for the implementations of all backends."""

import torch
from torch import Tensor

from polyseme.nn.attention.attend import AttentionOptions, attention_weights
from polyseme.nn.packing import PackedLayout


def attend_eager(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PackedLayout, k_layout: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Attend one sequence at a time by definition."""
    weights = attention_weights(q, k, q_layout, k_layout, options)
    values = v.split(list(k_layout.lengths))
    return torch.cat([torch.einsum("hij,jhd->ihd", w, x) for w, x in zip(weights, values)])
