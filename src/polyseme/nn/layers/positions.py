"""Rotary and sinusoidal positions."""

import torch
from torch import Tensor


def apply_rotary(qkv: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate queries and keys by their positions (Su et al. 2021, §3.2), so that scores depend on distances.

    Dimension i of the first half of a head and i of the second half are a pair, rotated by
    position / base^(2i / head_dim). `qkv` is [T, 3, heads, head_dim]; values are not rotated.
    """
    half = qkv.shape[-1] // 2
    dtype = _angle_dtype(qkv.dtype)
    cos, sin = rotary_table(positions.to(dtype), half, base)[:, :, None, None]
    a, b = qkv[:, :2].to(dtype).split(half, dim=-1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(qkv.dtype)
    return torch.cat([rotated, qkv[:, 2:]], dim=1)


def rotary_table(positions: Tensor, half: int, base: float) -> Tensor:
    """Return cosines and sines for each position and pair, [2, positions, half]."""
    angles = positions[:, None] * base ** (-torch.arange(half, device=positions.device, dtype=positions.dtype) / half)
    return torch.stack([angles.cos(), angles.sin()])


def sinusoidal_embedding(positions: Tensor, dim: int, dtype: torch.dtype, interleaved: bool = True) -> Tensor:
    """Return sinusoidal embeddings [positions, dim] (Vaswani et al. 2017, §3.5), wavelengths 2π to 10,000 · 2π.

    Sines and cosines alternate, as in the paper, or, if not `interleaved`, all sines come before all cosines.
    """
    angle_dtype = _angle_dtype(dtype)
    frequencies = 10_000.0 ** (-torch.arange(0, dim, 2, device=positions.device, dtype=angle_dtype) / dim)
    angles = positions.to(angle_dtype)[:, None] * frequencies
    sin, cos = angles.sin(), angles.cos()
    embeddings = torch.stack([sin, cos], dim=-1).flatten(1) if interleaved else torch.cat([sin, cos], dim=-1)
    return embeddings[:, :dim].to(dtype)


def _angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a type for angles, at least float32."""
    return torch.promote_types(dtype, torch.float32)
