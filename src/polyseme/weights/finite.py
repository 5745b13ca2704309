"""Rejection of weights that are not finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyseme.errors import ModelError


def check_finite(tensors: Mapping[str, Tensor], source: object) -> None:
    """Raise `ModelError` if a tensor contains NaN or an infinity; `source` is the file or folder."""
    for name, tensor in tensors.items():
        # a finite sum has finite terms, and a sum is the fastest pass over a tensor; it may overflow
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        if num_bad := int((~torch.isfinite(tensor)).sum()):
            total = f"{num_bad:,} of its {tensor.numel():,} values"
            raise ModelError(f"{source}: tensor {name!r} is damaged: {total} are NaN or infinite")
