"""Storage of weights in a quarter of their size: int8 matrices with a scale per row, and the rest in bf16.

The scales are bf16. Their product with an int8 number is exact in float32, and the largest number of a row is ±127, so
the weights that are loaded have the same scales: storing them again changes nothing. Nothing is computed in int8.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polyseme.errors import ModelError

INT8_FILE = "model.int8.safetensors"  # not a name that `transformers` would open
SCALE_SUFFIX = ".scale"
MAX_INT8 = 127


@dataclass(frozen=True)
class StorageError:
    """How far stored weights are from the originals: the largest difference, and its norm relative to theirs."""

    max_error: float
    relative_error: float


def quantize_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return matrices as int8 with a tensor `NAME.scale`, one scale per row; other floating-point tensors as bf16."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            stored[name] = tensor
        elif tensor.ndim != 2 or not tensor.numel():
            stored[name] = tensor.bfloat16()
        else:
            stored[name], stored[name + SCALE_SUFFIX] = _quantize_rows(tensor.float())
    return stored


def _quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    scale = (matrix.abs().amax(1) / MAX_INT8).bfloat16()  # [rows]
    scale[scale < torch.finfo(torch.bfloat16).tiny] = 0.0  # such a row is stored as zeros
    divisor = torch.where(scale == 0, 1.0, scale.float())
    levels = (matrix / divisor[:, None]).round() * (scale != 0)[:, None]
    return levels.clamp(-MAX_INT8, MAX_INT8).to(torch.int8), scale


def dequantize_weights(stored: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Return the weights of `quantize_weights` in float32; raise `ModelError` if scales and matrices do not match."""
    scale_names = {name + SCALE_SUFFIX for name, tensor in stored.items() if tensor.dtype == torch.int8}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if tensor.dtype == torch.int8:
            scale = stored.get(name + SCALE_SUFFIX)
            if scale is None or tensor.ndim != 2 or scale.shape != tensor.shape[:1] or not scale.is_floating_point():
                raise ModelError(f"{source}: the int8 matrix {name!r} has no scale for each of its rows")
            tensors[name] = tensor.float().mul_(scale.float()[:, None])
        elif name not in scale_names:
            tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def measure_error(originals: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> StorageError:
    """Return the error of weights that were stored and loaded again."""
    max_error, squared_error, squared_norm = 0.0, 0.0, 0.0
    for name, tensor in originals.items():
        if tensor.numel() and tensor.is_floating_point():
            original = tensor.detach().double().cpu()
            difference = original - loaded[name].detach().cpu()
            max_error = max(max_error, float(difference.abs().max()))
            squared_error += float(difference.square().sum())
            squared_norm += float(original.square().sum())
    return StorageError(max_error, (squared_error / squared_norm) ** 0.5 if squared_norm else 0.0)
