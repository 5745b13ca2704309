"""Averaged SGD with a trigger that waits for the validation loss to stop falling: NT-ASGD."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class NTASGD(torch.optim.Optimizer):
    """Plain SGD until a loss on held-out text is worse than the best of those more than `patience` measures ago.

    From then on the mean of all weights since is kept beside them: it is what is measured and saved, while SGD goes on
    from the weights themselves (Merity et al. 2018, algorithm 1; their n is 5, their L one epoch).
    """

    def __init__(self, param_groups: list[dict[str, Any]], patience: int = 5):
        super().__init__(param_groups, {"lr": 0.0, "weight_decay": 0.0})
        self.patience = patience
        self.valid_losses: list[float] = []  # measured before the trigger
        self.num_averaged = 0  # of weights in the mean; 0 before the trigger

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        found_inf = getattr(self, "found_inf", None)  # on a GPU: a step that is not finite changes nothing
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad if found_inf is None else torch.where(found_inf > 0, 0.0, p.grad) for p in params]
            lr = group["lr"] if found_inf is None else torch.where(found_inf > 0, 0.0, group["lr"])
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_sub_(params, torch._foreach_mul(grads, lr))
        if self.num_averaged:
            self.num_averaged += 1
            weights = list(self._iter_params())
            torch._foreach_lerp_([self.state[p]["average"] for p in weights], weights, 1 / self.num_averaged)

    @torch.no_grad()
    def report_validation_loss(self, loss: float) -> None:
        """Hear of a loss on held-out text, and pull the trigger if it is time."""
        if self.num_averaged:
            return
        earlier = self.valid_losses[: max(len(self.valid_losses) - self.patience, 0)]
        self.valid_losses.append(loss)
        if earlier and loss > min(earlier):
            self.num_averaged = 1
            for p in self._iter_params():
                self.state[p]["average"] = p.detach().clone()

    def extra_state(self) -> dict[str, Tensor]:
        """What it remembers besides a tensor for each parameter."""
        return {
            "valid_losses": torch.tensor(self.valid_losses, dtype=torch.float64),
            "num_averaged": torch.tensor(self.num_averaged),
        }

    def load_extra_state(self, extra_state: dict[str, Tensor]) -> None:
        """The inverse of `extra_state`."""
        self.valid_losses, self.num_averaged = extra_state["valid_losses"].tolist(), int(extra_state["num_averaged"])

    def _iter_params(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]


@contextmanager
def swap_averaged_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Puts the means of weights, where an optimiser keeps any, in place of the weights for a while."""
    pairs = [(p, state["average"]) for p, state in optimizer.state.items() if "average" in state]
    saved_weights = [p.detach().clone() for p, _ in pairs]
    with torch.no_grad():
        for p, average in pairs:
            p.copy_(average)
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), saved in zip(pairs, saved_weights):
                p.copy_(saved)
