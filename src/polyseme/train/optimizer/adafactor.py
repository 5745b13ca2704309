"""Adafactor and Adagrad: the optimizers of T5 and of ELMo."""

from typing import Any

import torch
from torch import Tensor

from polyseme.train.optimizer.tensorwise import TensorwiseOptimizer, root_mean_square, split_fused

GRAD_EPS, WEIGHT_EPS = 1e-30, 1e-3  # Adafactor's ε₁ and ε₂
DECAY_EXPONENT = 0.8  # of 1 − β₂ by the step
MAX_UPDATE_RMS = 1.0


class Adafactor(TensorwiseOptimizer):
    """Adafactor (Shazeer and Stern 2018, algorithm 4) with parameter scaling and without momentum, as T5 uses it.

    It keeps the mean squares of the gradient's rows and columns instead of those of all its entries. The step size is
    the learning rate times the root mean square of the weights. Stacked matrices are updated apart.
    """

    def update(self, p: Tensor, grad: Tensor, group: dict[str, Any], found_inf: Tensor | None) -> None:
        matrices, grad = (split_fused(tensor, group["fused_count"]) for tensor in (p, grad))
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            for name, shape in second_moment_shapes(matrices.shape).items():
                state[name] = torch.zeros(shape, dtype=p.dtype, device=p.device)
        is_finite = None if found_inf is None else found_inf == 0  # otherwise the step changes nothing
        grad = grad if is_finite is None else torch.where(is_finite, grad, 0.0)
        state["step"] += 1 if is_finite is None else is_finite
        weight = state["step"] ** -DECAY_EXPONENT  # 1 − β₂, 1 in the first step
        weight = weight if is_finite is None else torch.where(is_finite, weight, 0.0)
        squares = grad.square() + GRAD_EPS
        if "row" in state:
            row, column = state["row"], state["column"]
            row.lerp_(squares.mean(-1), weight)
            column.lerp_(squares.mean(-2), weight)
            scale = (row / row.mean(-1, keepdim=True)).rsqrt()[..., None] * column.rsqrt()[..., None, :]
        else:
            scale = state["square"].lerp_(squares, weight).rsqrt()
        update = grad * scale
        update = update / (root_mean_square(update) / MAX_UPDATE_RMS).clamp(min=1.0)
        lr = group["lr"] if is_finite is None else torch.where(is_finite, group["lr"], 0.0)
        step_size = lr * root_mean_square(matrices).clamp(min=WEIGHT_EPS)
        if group["weight_decay"]:
            matrices.mul_(1 - lr * group["weight_decay"])
        # after a step that was not finite, squares of gradients may still be 0, and their roots infinite
        matrices.sub_(update * step_size if is_finite is None else torch.where(is_finite, update * step_size, 0.0))


class Adagrad(TensorwiseOptimizer):
    """Adagrad (Duchi et al. 2011): each weight has its own step size, which falls with its sum of squared gradients."""

    def __init__(self, param_groups: list[dict[str, Any]], initial_sum: float = 0.0, eps: float = 1e-10):
        super().__init__(param_groups)
        self.initial_sum, self.eps = initial_sum, eps

    def update(self, p: Tensor, grad: Tensor, group: dict[str, Any], found_inf: Tensor | None) -> None:
        if not self.state[p]:
            self.state[p]["sum"] = torch.full_like(p, self.initial_sum)
        grad = grad if found_inf is None else torch.where(found_inf > 0, 0.0, grad)
        lr = group["lr"] if found_inf is None else torch.where(found_inf > 0, 0.0, group["lr"])
        total = self.state[p]["sum"].addcmul_(grad, grad)
        p.mul_(1 - lr * group["weight_decay"])
        p.sub_(lr * (grad / (total.sqrt() + self.eps)))


def second_moment_shapes(shape: torch.Size) -> dict[str, torch.Size]:
    """Return the shapes of what Adafactor keeps for matrices of this shape, or for a vector."""
    return {"row": shape[:-1], "column": shape[:-2] + shape[-1:]} if len(shape) > 1 else {"square": shape}
