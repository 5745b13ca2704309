"""Mixed precision on a GPU: a copy of the model in bfloat16 does the work; the weights themselves stay in float32.

Unlike autocast, nothing between two matrix products is in float32 (norms still reckon so inside), and a weight is
rounded once a step, not once a use.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from polyseme.nn.model import Model


class Half:
    """The copy, and the two crossings between it and the model. With `fixed`, gradients stay where they are in memory,
    as recordings need them: what a step does not touch has gradients of zero, and none otherwise."""

    def __init__(self, model: Model, fixed: bool = True):
        self.fixed = fixed
        self.model = copy.deepcopy(model).to(torch.bfloat16)
        for mine, copied in zip(model.modules(), self.model.modules()):
            copied._buffers.update(mine._buffers)  # running figures are the model's own, whoever keeps them
        pairs = [(p, h) for p, h in zip(model.parameters(), self.model.parameters()) if p.requires_grad]
        self.weights: list[Tensor] = [p for p, _ in pairs]
        self.halves: list[Tensor] = [h for _, h in pairs]

    @torch.no_grad()
    def load(self) -> Model:
        """The copy with the model's weights as they are now."""
        torch._foreach_copy_(self.halves, self.weights)
        return self.model

    @torch.no_grad()
    def give(self, fresh: bool) -> None:
        """Put the copy's gradients in place of the model's, or add them, and forget them."""
        mine, given = [], []
        for p, h in zip(self.weights, self.halves):
            if h.grad is not None:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                mine.append(p.grad)
                given.append(h.grad)
                h.grad = None
            elif fresh and p.grad is not None:
                p.grad = p.grad.zero_() if self.fixed else None  # no part of this micro-batch, but of one before
        if fresh:
            torch._foreach_copy_(mine, given)
        else:
            torch._foreach_add_(mine, given)
