"""Our Triton kernels, where there is a GPU and Triton: `READY` says so. Elsewhere the plain bodies serve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "ACTIVATIONS",
    "HEAD_DIMS",
    "READY",
    "activated_linear",
    "add_norm",
    "flash",
    "gated_linear",
    "placed_softmax",
    "serve",
    "vocabulary_loss",
]

READY = False
flash: Any = None
vocabulary_loss: Any = None
activated_linear: Any = None
add_norm: Any = None
gated_linear: Any = None
placed_softmax: Any = None
HEAD_DIMS: tuple[int, ...] = ()
ACTIVATIONS: tuple[str, ...] = ()

if torch.cuda.is_available():
    try:
        from polyseme.nn.kernels.cross_entropy import vocabulary_loss
        from polyseme.nn.kernels.flash_attention import HEAD_DIMS, flash
        from polyseme.nn.kernels.fused import NAMES as ACTIVATIONS
        from polyseme.nn.kernels.fused import activated_linear, add_norm, gated_linear
        from polyseme.nn.kernels.relative_softmax import placed_softmax

        READY = True
    except ImportError:  # torch without Triton
        pass


def serve(x: Tensor) -> bool:
    """Whether they can take this tensor."""
    return READY and x.is_cuda and x.dtype == torch.bfloat16
