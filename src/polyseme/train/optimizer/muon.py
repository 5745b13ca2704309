"""Muon: orthogonal updates of matrices."""

from typing import Any

import torch
from torch import Tensor

NS_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5  # Muon's polynomial: singular values end up in about 0.7 to 1.2


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024): the momentum of a matrix is orthogonalized before it is applied.

    All directions of a matrix then change by the same amount, including those with small gradients. It updates groups
    with `fused_count` above 0, matrices that consist of that many stacked ones. Embeddings, heads, norms and biases are
    updated by AdamW, as the authors advise. Updates are scaled to the size of AdamW's (Liu et al. 2025, §2.2), so that
    both have the same learning rate. `query_lr_scale` is a factor on the rate of the first of the stacked matrices.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group["fused_count"]:
                self._muon_step(group)
        self.param_groups = [group for group in groups if not group["fused_count"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups

    def _muon_step(self, group: dict[str, Any]) -> None:
        """Update matrices of one shape."""
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta, grads = [self.state[p]["momentum"] for p in params], [p.grad for p in params]
        found_inf = getattr(self, "found_inf", None)  # as in AdamW's kernel: a non-finite step changes nothing
        if found_inf is not None:
            grads = [torch.where(found_inf > 0, m, g) for m, g in zip(momenta, grads)]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(grads, momenta, group["momentum"])
        rows, columns = params[0].flatten(1).shape  # filters of a convolution are rows
        stack = torch.stack(nesterov).view(-1, rows // group["fused_count"], columns)
        update = newton_schulz(stack).to(params[0].dtype).reshape(len(params), *params[0].shape)
        if group["query_lr_scale"] != 1:
            update.unflatten(1, (group["fused_count"], -1))[:, 0] *= group["query_lr_scale"]
        lr = group["lr"] if found_inf is None else torch.where(found_inf > 0, 0.0, group["lr"])
        update_scale = 0.2 * max(stack.shape[1:]) ** 0.5
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(params, list((update * (lr * update_scale)).unbind()))


def newton_schulz(matrices: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices by Newton-Schulz iterations, in bfloat16 on a GPU."""
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    is_wide = x.shape[-2] <= x.shape[-1]
    x = x if is_wide else x.mT
    x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in NS_COEFFICIENTS:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x if is_wide else x.mT
