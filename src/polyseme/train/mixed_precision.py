"""Mixed precision on a GPU: a copy of the model in bfloat16 does the work; the weights themselves stay in float32.

Unlike autocast, nothing between two matrix products is in float32 (norms still reckon so inside), and a weight is
rounded once a step, not once a use.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from polyseme.nn.model import Model


class BF16WorkingCopy:
    """The copy, and the two crossings between it and the model.

    With `has_static_grads`, gradients stay at their addresses, as recordings need them: what a step does not touch has
    gradients of zero, and none otherwise.
    """

    def __init__(self, model: Model, has_static_grads: bool = True):
        self.has_static_grads = has_static_grads
        self.model = copy.deepcopy(model).to(torch.bfloat16)
        for master_module, bf16_module in zip(model.modules(), self.model.modules()):
            bf16_module._buffers.update(
                master_module._buffers
            )  # running figures are the model's own, whoever keeps them
        pairs = [(p, h) for p, h in zip(model.parameters(), self.model.parameters()) if p.requires_grad]
        self.master_params: list[Tensor] = [p for p, _ in pairs]
        self.bf16_params: list[Tensor] = [h for _, h in pairs]

    @torch.no_grad()
    def copy_weights_from_master(self) -> Model:
        """The copy with the model's weights as they are now."""
        torch._foreach_copy_(self.bf16_params, self.master_params)
        return self.model

    @torch.no_grad()
    def copy_grads_to_master(self, is_first: bool) -> None:
        """Put the copy's gradients in place of the model's, or add them, and forget them."""
        master_grads, bf16_grads = [], []
        for p, h in zip(self.master_params, self.bf16_params):
            if h.grad is not None:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                master_grads.append(p.grad)
                bf16_grads.append(h.grad)
                h.grad = None
            elif is_first and p.grad is not None:
                p.grad = (
                    p.grad.zero_() if self.has_static_grads else None
                )  # no part of this micro-batch, but of one before
        if is_first:
            torch._foreach_copy_(master_grads, bf16_grads)
        else:
            torch._foreach_add_(master_grads, bf16_grads)
