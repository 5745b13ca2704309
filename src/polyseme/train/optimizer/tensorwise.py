"""Optimizers that update one weight at a time, and the stacked matrices in a weight apart."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class TensorwiseOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that updates one weight at a time.

    A group with `fused_count` above 1 has weights that consist of that many stacked matrices.
    """

    def __init__(self, param_groups: list[dict[str, Any]]):
        super().__init__(param_groups, {"lr": 0.0, "weight_decay": 0.0, "fused_count": 1})

    @abstractmethod
    def update(self, p: Tensor, grad: Tensor, group: dict[str, Any], found_inf: Tensor | None) -> None:
        """Update a weight. On a GPU, it must not change where `found_inf` is above 0: a gradient was not finite."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group, found_inf)


def split_fused(tensor: Tensor, fused_count: int) -> Tensor:
    """Return the matrices that a tensor consists of, [fused, rows, columns], as a view; other tensors unchanged."""
    return tensor.view(fused_count, -1, tensor.shape[-1]) if fused_count > 1 else tensor


def root_mean_square(tensor: Tensor) -> Tensor:
    """Return the root mean square of each matrix [fused, 1, 1], or of a whole vector or matrix."""
    dims = (-2, -1) if tensor.ndim > 2 else tuple(range(tensor.ndim))
    return tensor.square().mean(dims, keepdim=True).sqrt()
