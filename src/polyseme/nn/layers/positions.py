"""Where a token stands, for attention to know."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(qkv: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions (Su et al. 2021, §3.2): queries and keys turned by their place, so that scores know distances.

    Dimension i of the first half of a head and i of the second are one pair, turned by position / base^(2i / head_dim).
    """
    half = qkv.shape[-1] // 2
    dtype = _angle_dtype(qkv)
    cos, sin = rotary_table(positions.to(dtype), half, base)[:, :, None, None]
    a, b = qkv[:, :2].to(dtype).split(half, dim=-1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(qkv.dtype)
    return torch.cat([rotated, qkv[:, 2:]], dim=1)


def rotary_table(positions: Tensor, half: int, base: float) -> Tensor:
    """Cosines and sines of each position and pair, [2, positions, half]."""
    angles = positions[:, None] * base ** (-torch.arange(half, device=positions.device, dtype=positions.dtype) / half)
    return torch.stack([angles.cos(), angles.sin()])


def sinusoidal_embedding(positions: int | Tensor, like: Tensor) -> Tensor:
    """Waves instead of learnt places, [places, dim] (Vaswani et al. 2017, §3.5): sine and cosine in turn.

    The wave lengths go from 2π to 10,000 · 2π.
    """
    dim, dtype = like.shape[-1], _angle_dtype(like)
    frequencies = 10_000.0 ** (-torch.arange(0, dim, 2, device=like.device, dtype=dtype) / dim)
    if isinstance(positions, int):
        positions = torch.arange(positions, device=like.device, dtype=dtype)
    angles = positions.to(dtype)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim].to(like.dtype)


def _angle_dtype(x: Tensor) -> torch.dtype:
    """Angles need float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
