"""NT-ASGD, the optimizer of AWD-LSTM."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class NTASGD(torch.optim.Optimizer):
    """Non-monotonically triggered averaged SGD (Merity et al. 2018, algorithm 1; their n is 5, their L one epoch).

    Plain SGD until a validation loss is worse than the best of those more than `patience` validations ago. From then on
    it averages all weights; the average is validated and saved, while SGD continues from the weights themselves.
    """

    def __init__(self, param_groups: list[dict[str, Any]], patience: int = 5):
        super().__init__(param_groups, {"lr": 0.0, "weight_decay": 0.0})
        self.patience = patience
        self.valid_losses: list[float] = []  # before the trigger
        self.num_averaged = 0  # weights in the average; 0 before the trigger

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        found_inf = getattr(self, "found_inf", None)  # on a GPU: a non-finite step changes nothing
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
            weights = self._params()
            torch._foreach_lerp_([self.state[p]["average"] for p in weights], weights, 1 / self.num_averaged)

    @torch.no_grad()
    def report_validation_loss(self, loss: float) -> None:
        """Start averaging if this loss is worse than the best of the earlier ones."""
        if self.num_averaged:
            return
        earlier = self.valid_losses[: max(len(self.valid_losses) - self.patience, 0)]
        self.valid_losses.append(loss)
        if earlier and loss > min(earlier):
            self.num_averaged = 1
            for p in self._params():
                self.state[p]["average"] = p.detach().clone()

    def extra_state(self) -> dict[str, Tensor]:
        """Return the state that belongs to no parameter."""
        return {
            "valid_losses": torch.tensor(self.valid_losses, dtype=torch.float64),
            "num_averaged": torch.tensor(self.num_averaged),
        }

    def load_extra_state(self, extra_state: dict[str, Tensor]) -> None:
        """Load what `extra_state` returns."""
        self.valid_losses, self.num_averaged = extra_state["valid_losses"].tolist(), int(extra_state["num_averaged"])

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


@contextmanager
def swap_averaged_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Temporarily replace weights by their averages, if the optimizer has any."""
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
