"""Attention by definition, the reference for the implementations of all backends."""

import torch
from torch import Tensor

from polyseme.nn.attention.attend import AttentionOptions
from polyseme.nn.attention.terms import attention_terms
from polyseme.nn.packing import PackedLayout


def attend_eager(
    q: Tensor, k: Tensor, v: Tensor, q_layout: PackedLayout, k_layout: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Attend one sequence at a time by definition."""
    sequences = zip(q.split(list(q_layout.lengths)), *(x.split(list(k_layout.lengths)) for x in (k, v)))
    return torch.cat([attention_terms(*sequence, options).attended.transpose(0, 1) for sequence in sequences])
