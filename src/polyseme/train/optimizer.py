"""AdamW with decay groups, Muon and averaged SGD beside it, and their state as plain named tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.model import Model
from polyseme.train.asgd import NTASGD
from polyseme.train.muon import Muon


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """AdamW; Muon for the matrices of the blocks and AdamW for the rest; SGD, averaged once it stops getting better;
    or, for word vectors, methods by rows.

    Decay touches matrices only, not biases and norms (BERT, appendix A.2). `layer_decay` below 1 gives each layer that
    factor of the rate of the one above it (ULMFiT's discriminative rates: 1/2.6). What is in no layer, the heads, has
    `head_lr_scale` times the rate: a new head over a trained encoder may learn faster (coreference: 1e-5 and 2e-4;
    Joshi et al. 2019, §3).
    """

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    layer_decay: float = 1.0
    head_lr_scale: float = 1.0
    name: Literal["adamw", "muon", "nt_asgd", "sparse_sgd", "sparse_adagrad"] = "adamw"
    momentum: float = 0.95  # of Muon
    patience: int = 5  # of NT-ASGD, in measures of the validation loss
    words_per_update: int = 1024  # of methods by rows: words whose gradients are added up before the tables change
    count_damping: float = 0.0  # of plain descent by rows: how much less than their sum many terms of one row count

    def __post_init__(self) -> None:
        self.check_range(
            0,
            math.inf,
            "lr",
            "eps",
            "weight_decay",
            "max_grad_norm",
            "layer_decay",
            "head_lr_scale",
            "patience",
            "count_damping",
        )
        self.check_range(0, 1, "beta1", "beta2", "momentum")
        self.check_range(1, math.inf, "words_per_update")

    @property
    def is_sparse(self) -> bool:
        """Whether a step changes rows of tables, of heads that give gradients of them, and not all weights."""
        return self.name in ("sparse_sgd", "sparse_adagrad")

    def build(self, model: Model, layer_groups: list[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """`layer_groups` are the trunk's, from input to output; what is in none of them (the heads) comes last."""
        if self.is_sparse:
            return torch.optim.SGD(model.parameters(), lr=self.lr)  # holds the rate and what rows have gathered
        group_index = {id(p): i for i, group in enumerate(layer_groups) for p in group}
        num_groups = len(layer_groups)
        num_fused_by_id = (
            {id(p): num_matrices for p, num_matrices in model.trunk.hidden_matrices()} if self.name == "muon" else {}
        )
        params_by_settings: dict[tuple[int, float, bool, int, tuple[int, ...]], list[nn.Parameter]] = {}
        for p in model.parameters():
            if p.requires_grad:
                layer = num_groups if self.layer_decay == 1.0 else group_index.get(id(p), num_groups)
                lr_scale = 1.0 if id(p) in group_index else self.head_lr_scale
                num_fused = num_fused_by_id.get(id(p), 0)
                params_by_settings.setdefault(
                    (layer, lr_scale, p.ndim >= 2, num_fused, tuple(p.shape) if num_fused else ()), []
                ).append(p)
        is_cuda = any(p.is_cuda for p in model.parameters())
        param_groups = [
            {
                "params": group,
                "weight_decay": self.weight_decay if has_decay else 0.0,
                "lr_scale": lr_scale * self.layer_decay ** (num_groups - layer),
                "fused_count": num_fused,
                "momentum": self.momentum,
                # where steps may be recorded, the rate is read from the device at every replay
                "lr": torch.tensor(self.lr, device=group[0].device) if is_cuda else self.lr,
            }
            for (layer, lr_scale, has_decay, num_fused, _), group in params_by_settings.items()
        ]
        if self.name == "nt_asgd":
            return NTASGD(param_groups, self.patience)
        return (Muon if self.name == "muon" else torch.optim.AdamW)(
            param_groups,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=True if is_cuda or _fused_on_cpu() else None,
            capturable=is_cuda,
        )


def _fused_on_cpu() -> bool:
    return torch.get_default_dtype() == torch.float32


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group_lr = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group_lr)
        else:
            group["lr"] = group_lr


def optimizer_state_dict(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Moments and counts under `<parameter>/<what>`; what belongs to no parameter under `/<what>`."""
    extra_state = optimizer.extra_state() if isinstance(optimizer, NTASGD) else {}
    return {f"/{key}": value for key, value in extra_state.items()} | {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
    }


def load_optimizer_state_dict(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    params_by_name = dict(model.named_parameters())
    if isinstance(optimizer, NTASGD):
        optimizer.load_extra_state({name[1:]: value for name, value in state.items() if name.startswith("/")})
    for name, value in state.items():
        if name.startswith("/"):
            continue
        param_name, _, key = name.rpartition("/")
        p = params_by_name[param_name]
        # the step count stays where AdamW keeps it: on the device if fused on CUDA, else on the CPU
        optimizer.state[p][key] = value.clone() if key == "step" and not p.is_cuda else value.to(p.device).clone()
