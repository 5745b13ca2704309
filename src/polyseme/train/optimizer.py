"""AdamW with decay groups, Muon and averaged SGD beside it, and their state as plain named tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.nn.model import Model
from polyseme.train.asgd import TriggeredASGD
from polyseme.train.muon import Muon


@dataclass(frozen=True)
class OptimSpec(Spec):
    """AdamW; Muon for the matrices of the blocks and AdamW for the rest; SGD, averaged once it stops getting better;
    or, for word vectors, methods by rows.

    Decay touches matrices only, not biases and norms (BERT, appendix A.2). `layer_decay` below 1 gives each layer that
    factor of the rate of the one above it (ULMFiT's discriminative rates: 1/2.6). What is in no layer, the heads, has
    `head` times the rate: a new head over a trained encoder may learn faster (coreference: 1e-5 and 2e-4; Joshi et al.
    2019, §3).
    """

    rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    decay: float = 0.01
    clip: float = 1.0
    layer_decay: float = 1.0
    head: float = 1.0
    method: Literal["adamw", "muon", "nt_asgd", "rows", "adagrad"] = "adamw"
    momentum: float = 0.95  # of Muon
    patience: int = 5  # of NT-ASGD, in measures of the validation loss
    at_once: int = 1024  # of methods by rows: words whose gradients are added up before the tables change
    damp: float = 0.0  # of plain descent by rows: how much less than their sum many terms of one row count

    def __post_init__(self) -> None:
        self.within(0, math.inf, "rate", "eps", "decay", "clip", "layer_decay", "head", "patience", "damp")
        self.within(0, 1, "beta1", "beta2", "momentum")
        self.within(1, math.inf, "at_once")

    @property
    def by_rows(self) -> bool:
        """Whether a step changes rows of tables, of heads that give gradients of them, and not all weights."""
        return self.method in ("rows", "adagrad")

    def build(self, model: Model, groups: list[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """`groups` are the trunk's, from input to output; what is in none of them (the heads) comes last."""
        if self.by_rows:
            return torch.optim.SGD(model.parameters(), lr=self.rate)  # holds the rate and what rows have gathered
        depth = {id(p): i for i, group in enumerate(groups) for p in group}
        top = len(groups)
        stacked = {id(p): n for p, n in model.trunk.matrices()} if self.method == "muon" else {}
        split: dict[tuple[int, float, bool, int, tuple[int, ...]], list[nn.Parameter]] = {}
        for p in model.parameters():
            if p.requires_grad:
                level = top if self.layer_decay == 1.0 else depth.get(id(p), top)
                factor = 1.0 if id(p) in depth else self.head
                number = stacked.get(id(p), 0)
                split.setdefault((level, factor, p.ndim >= 2, number, tuple(p.shape) if number else ()), []).append(p)
        cuda = any(p.is_cuda for p in model.parameters())
        found = [
            {
                "params": group,
                "weight_decay": self.decay if decays else 0.0,
                "scale": factor * self.layer_decay ** (top - level),
                "stacked": number,
                "momentum": self.momentum,
                # where steps may be recorded, the rate is read from the device at every replay
                "lr": torch.tensor(self.rate, device=group[0].device) if cuda else self.rate,
            }
            for (level, factor, decays, number, _), group in split.items()
        ]
        if self.method == "nt_asgd":
            return TriggeredASGD(found, self.patience)
        return (Muon if self.method == "muon" else torch.optim.AdamW)(
            found,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=True if cuda or _fused_on_cpu() else None,
            capturable=cuda,
        )


def _fused_on_cpu() -> bool:
    return torch.get_default_dtype() == torch.float32


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        scaled = rate * group.get("scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


def optimiser_state(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Moments and counts under `<parameter>/<what>`; what belongs to no parameter under `/<what>`."""
    own = optimiser.counters() if isinstance(optimiser, TriggeredASGD) else {}
    return {f"/{key}": value for key, value in own.items()} | {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for key, value in optimiser.state.get(p, {}).items()
    }


def load_optimiser_state(optimiser: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    if isinstance(optimiser, TriggeredASGD):
        optimiser.recall({name[1:]: value for name, value in state.items() if name.startswith("/")})
    for name, value in state.items():
        if name.startswith("/"):
            continue
        parameter, _, key = name.rpartition("/")
        p = parameters[parameter]
        # the step count stays where AdamW keeps it: on the device if fused on CUDA, else on the CPU
        optimiser.state[p][key] = value.clone() if key == "step" and not p.is_cuda else value.to(p.device).clone()
