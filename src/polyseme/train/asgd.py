"""Averaged SGD with a trigger that waits for the validation loss to stop falling: NT-ASGD."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class TriggeredASGD(torch.optim.Optimizer):
    """Plain SGD until a loss on held-out text is worse than the best of those more than `patience` measures ago.

    From then on the mean of all weights since is kept beside them: it is what is measured and saved, while SGD goes on
    from the weights themselves (Merity et al. 2018, algorithm 1; their n is 5, their L one epoch).
    """

    def __init__(self, groups: list[dict[str, Any]], patience: int = 5):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0})
        self.patience = patience
        self.losses: list[float] = []  # measured before the trigger
        self.count = 0  # of weights in the mean; 0 before the trigger

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        broken = getattr(self, "found_inf", None)  # on a GPU: a step that is not finite changes nothing
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            if not used:
                continue
            gradients = [p.grad if broken is None else torch.where(broken > 0, 0.0, p.grad) for p in used]
            rate = group["lr"] if broken is None else torch.where(broken > 0, 0.0, group["lr"])
            torch._foreach_mul_(used, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(used, torch._foreach_mul(gradients, rate))
        if self.count:
            self.count += 1
            weights = list(self._parameters())
            torch._foreach_lerp_([self.state[p]["average"] for p in weights], weights, 1 / self.count)

    @torch.no_grad()
    def observe(self, loss: float) -> None:
        """Hear of a loss on held-out text, and pull the trigger if it is time."""
        if self.count:
            return
        earlier = self.losses[: max(len(self.losses) - self.patience, 0)]
        self.losses.append(loss)
        if earlier and loss > min(earlier):
            self.count = 1
            for p in self._parameters():
                self.state[p]["average"] = p.detach().clone()

    def counters(self) -> dict[str, Tensor]:
        """What it remembers besides a tensor for each parameter."""
        return {"losses": torch.tensor(self.losses, dtype=torch.float64), "count": torch.tensor(self.count)}

    def recall(self, counters: dict[str, Tensor]) -> None:
        """The inverse of `counters`."""
        self.losses, self.count = counters["losses"].tolist(), int(counters["count"])

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]


@contextmanager
def averaged(optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Puts the means of weights, where an optimiser keeps any, in place of the weights for a while."""
    pairs = [(p, state["average"]) for p, state in optimiser.state.items() if "average" in state]
    held = [p.detach().clone() for p, _ in pairs]
    with torch.no_grad():
        for p, mean in pairs:
            p.copy_(mean)
    try:
        yield
    finally:
        with torch.no_grad():
            for (p, _), old in zip(pairs, held):
                p.copy_(old)
