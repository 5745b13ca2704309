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
        from polyseme.parts.flash import HEAD_DIMS, flash
        from polyseme.parts.fused import NAMES as ACTIVATIONS
        from polyseme.parts.fused import activated_linear, add_norm, gated_linear
        from polyseme.parts.placed import placed_softmax
        from polyseme.parts.vocabulary_loss import vocabulary_loss

        READY = True
    except ImportError:  # torch without Triton
        pass


def serve(x: Tensor) -> bool:
    """Whether they can take this tensor."""
    return READY and x.is_cuda and x.dtype == torch.bfloat16
