"""The state of an optimizer as named tensors, for checkpoints."""

import torch
from torch import Tensor, nn

from polyseme.train.optimizer.asgd import NTASGD


def optimizer_state_dict(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return state tensors as `<parameter>/<key>`; those that belong to no parameter as `/<key>`."""
    extra_state = optimizer.extra_state() if isinstance(optimizer, NTASGD) else {}
    return {f"/{key}": value for key, value in extra_state.items()} | {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
    }


def load_optimizer_state_dict(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load what `optimizer_state_dict` returns."""
    params_by_name = dict(model.named_parameters())
    if isinstance(optimizer, NTASGD):
        optimizer.load_extra_state({name[1:]: value for name, value in state.items() if name.startswith("/")})
    for name, value in state.items():
        param_name, _, key = name.rpartition("/")
        if param_name:
            p = params_by_name[param_name]
            # AdamW keeps the step count on the CPU, or on the device if it is fused on CUDA
            optimizer.state[p][key] = value.clone() if key == "step" and not p.is_cuda else value.to(p.device).clone()
