"""Where a token stands, for attention to know."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(qkv: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions (Su et al. 2021, §3.2): queries and keys turned by their place, so that scores know distances.

    Dimension i of the first half of a head and i of the second are one pair, turned by position / base^(2i / head_dim).
    """
    half = qkv.shape[-1] // 2
    exact = torch.promote_types(qkv.dtype, torch.float32)  # which angles need at least
    cos, sin = turns(positions.to(exact), half, base)[:, :, None, None]
    a, b = qkv[:, :2].to(exact).split(half, dim=-1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(qkv.dtype)
    return torch.cat([turned, qkv[:, 2:]], dim=1)


def turns(positions: Tensor, half: int, base: float) -> Tensor:
    """Cosines and sines of each position and pair, [2, positions, half]."""
    angles = positions[:, None] * base ** (-torch.arange(half, device=positions.device, dtype=positions.dtype) / half)
    return torch.stack([angles.cos(), angles.sin()])
