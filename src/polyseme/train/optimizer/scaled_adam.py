"""LAMB and StableAdamW, the optimizers of ALBERT and ModernBERT: Adam with a step size for each matrix."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from polyseme.train.optimizer.tensorwise import TensorwiseOptimizer, root_mean_square, split_fused


class ScaledAdam(TensorwiseOptimizer):
    """Adam with decoupled weight decay whose updates are multiplied by a factor for each matrix or vector."""

    def __init__(self, param_groups: list[dict[str, Any]], betas: tuple[float, float], eps: float):
        super().__init__(param_groups)
        self.betas, self.eps = betas, eps

    @abstractmethod
    def scale(self, weights: Tensor, update: Tensor, grad: Tensor, mean_square: Tensor) -> Tensor | float:
        """Return the factor on an update, which contains the weight decay, of [fused, rows, columns] or a vector.

        `mean_square` is the running mean of squared gradients, without bias.
        """

    def update(self, p: Tensor, grad: Tensor, group: dict[str, Any], found_inf: Tensor | None) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        is_finite: Tensor | float = 1.0
        if found_inf is not None:
            is_finite = (found_inf == 0).to(p.dtype)
            grad = torch.where(found_inf == 0, grad, 0.0)
        state["step"] += is_finite
        corrections = [1 - beta ** state["step"].to(p.dtype) for beta in self.betas]
        for name, value, beta in zip(("exp_avg", "exp_avg_sq"), (grad, grad.square()), self.betas):
            state[name].lerp_(value, (1 - beta) * is_finite)
        mean, mean_square = (state[name] / c for name, c in zip(("exp_avg", "exp_avg_sq"), corrections))
        update = mean / (mean_square.sqrt() + self.eps) + group["weight_decay"] * p
        parts = [split_fused(tensor, group["fused_count"]) for tensor in (p, update, grad, mean_square)]
        delta = (group["lr"] * self.scale(*parts)) * parts[1]
        # after a first step that was not finite, the corrections are 0
        parts[0].sub_(delta if found_inf is None else torch.where(found_inf == 0, delta, 0.0))


class LAMB(ScaledAdam):
    """LAMB (You et al. 2020, algorithm 2): the update of a matrix has the norm of its weights.

    As in the program of ALBERT's authors, norms and biases are updated by Adam, and so is a matrix of zeros.
    """

    def scale(self, weights: Tensor, update: Tensor, grad: Tensor, mean_square: Tensor) -> Tensor | float:
        if weights.ndim < 2:
            return 1.0
        weight_norm, update_norm = (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in (weights, update))
        return torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)


class StableAdamW(ScaledAdam):
    """StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with smaller steps after a sudden change of the gradient.

    As in Adafactor, updates are clipped by the root mean square of the gradient over its running estimate.
    """

    def scale(self, weights: Tensor, update: Tensor, grad: Tensor, mean_square: Tensor) -> Tensor:
        ratio = grad / mean_square.clamp(min=self.eps**2).sqrt()
        return 1 / root_mean_square(ratio).clamp(min=1.0)
