"""Triton kernels, if there is a GPU and Triton (`AVAILABLE`); otherwise callers use plain torch."""
# ruff: noqa: F401  # names imported for callers

from typing import Any

import torch
from torch import Tensor

AVAILABLE = False
_MISSING: Any = None
flash = linear_cross_entropy = activated_linear = add_norm = gated_linear = relative_softmax = _MISSING
HEAD_DIMS: tuple[int, ...] = ()
ACTIVATION_NAMES: tuple[str, ...] = ()

if torch.cuda.is_available():
    try:
        from polyseme.nn.kernels.cross_entropy import linear_cross_entropy
        from polyseme.nn.kernels.flash_attention import HEAD_DIMS, flash
        from polyseme.nn.kernels.fused import ACTIVATION_NAMES, activated_linear, add_norm, gated_linear
        from polyseme.nn.kernels.relative_softmax import relative_softmax

        AVAILABLE = True
    except ImportError:  # torch without Triton
        pass


def supports(x: Tensor) -> bool:
    """Whether the kernels support a tensor: on a GPU, in bfloat16."""
    return AVAILABLE and x.is_cuda and x.dtype == torch.bfloat16
