"""Muon (Jordan et al. 2024): the momentum of a matrix is made orthogonal before it is applied.

Every direction of a matrix then moves by the same amount, also those whose gradients are small. What is no matrix
between hidden states (embeddings, heads, norms, biases) is changed by AdamW, as its authors advise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STEPS = ((3.4445, -4.7750, 2.0315),) * 5  # the authors' polynomial: singular values come to lie in about 0.7 to 1.2


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `stacked` above 0: matrices, each a stack of so many, that Muon changes.

    The update is scaled to the size that AdamW's has (Liu et al. 2025, §2.2), so that both take the same rate.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group["stacked"]:
                self._orthogonal(group)
        self.param_groups = [group for group in groups if not group["stacked"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups

    def _orthogonal(self, group: dict[str, Any]) -> None:
        """All matrices of one shape at once."""
        used = [p for p in group["params"] if p.grad is not None]
        if not used:
            return
        for p in used:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta, gradients = [self.state[p]["momentum"] for p in used], [p.grad for p in used]
        broken = getattr(
            self, "found_inf", None
        )  # as AdamW's kernel heeds it: a step that is not finite changes nothing
        if broken is not None:
            gradients = [torch.where(broken > 0, m, g) for m, g in zip(momenta, gradients)]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        rows, columns = used[0].shape
        stack = torch.stack(ahead).view(-1, rows // group["stacked"], columns)
        update = orthogonal(stack).to(used[0].dtype).view(len(used), rows, columns)
        rate = group["lr"] if broken is None else torch.where(broken > 0, 0.0, group["lr"])
        size = 0.2 * max(stack.shape[1:]) ** 0.5
        torch._foreach_mul_(used, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(used, list((update * (rate * size)).unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrix of each, about, by Newton and Schulz: products alone, in bfloat16 on a GPU."""
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in STEPS:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT
