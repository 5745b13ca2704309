"""Learning rate schedules and optimizers: AdamW with parameter groups, Muon, NT-ASGD, and their state."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.model import Model

NS_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5  # Muon's polynomial: singular values end up in about 0.7 to 1.2


@dataclass(frozen=True)
class OptimizerConfig(Config):
    """AdamW; Muon for the matrices of blocks and AdamW for the rest; NT-ASGD; or sparse updates for word vectors.

    Weight decay applies to matrices only, not to biases and norms (BERT, appendix A.2). With `layer_decay` below 1,
    each layer has that fraction of the learning rate of the layer above it (ULMFiT's discriminative rates: 1/2.6).
    Parameters in no layer, which are those of heads, have `head_lr_scale` times the rate: a new head on a pre-trained
    encoder may learn faster (coreference: 1e-5 and 2e-4; Joshi et al. 2019, §3).
    """

    name_field: ClassVar[str] = "name"
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
    patience: int = 5  # of NT-ASGD, in validations
    words_per_update: int = 1024  # of sparse updates: words whose gradients are summed before the tables are updated
    count_damping: float = 0.0  # of sparse SGD: how much less than their sum many gradients of one row count

    def __post_init__(self) -> None:
        self.check_range(0, math.inf, "lr", "eps", "weight_decay", "max_grad_norm", "layer_decay")
        self.check_range(0, math.inf, "head_lr_scale", "patience", "count_damping")
        self.check_range(0, 1, "beta1", "beta2", "momentum")
        self.check_range(1, math.inf, "words_per_update")

    @property
    def is_sparse(self) -> bool:
        """Whether a step updates rows of tables from sparse gradients, instead of all weights."""
        return self.name in ("sparse_sgd", "sparse_adagrad")

    def build(self, model: Model, layer_groups: list[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """Build the optimizer; `layer_groups` are the trunk's, from input to output."""
        if self.is_sparse:
            return torch.optim.SGD(model.parameters(), lr=self.lr)  # holds the learning rate and the state of rows
        layer_index = {id(p): i for i, group in enumerate(layer_groups) for p in group}
        num_layers = len(layer_groups)
        fused_counts = {id(p): n for p, n in model.trunk.hidden_matrices()} if self.name == "muon" else {}
        params_by_settings: dict[tuple[Any, ...], list[nn.Parameter]] = {}
        for p in model.parameters():
            if p.requires_grad:
                layer = num_layers if self.layer_decay == 1.0 else layer_index.get(id(p), num_layers)
                lr_scale = 1.0 if id(p) in layer_index else self.head_lr_scale
                lr_scale *= self.layer_decay ** (num_layers - layer)
                fused_count = fused_counts.get(id(p), 0)
                settings = (layer, lr_scale, p.ndim >= 2, fused_count, tuple(p.shape) if fused_count else ())
                params_by_settings.setdefault(settings, []).append(p)
        is_cuda = any(p.is_cuda for p in model.parameters())
        param_groups = [
            {
                "params": group,
                "weight_decay": self.weight_decay if has_decay else 0.0,
                "lr_scale": lr_scale,
                "fused_count": fused_count,
                "momentum": self.momentum,
                # a tensor where steps may be captured, so that each replay reads the current rate
                "lr": torch.tensor(self.lr, device=group[0].device) if is_cuda else self.lr,
            }
            for (_, lr_scale, has_decay, fused_count, _), group in params_by_settings.items()
        ]
        if self.name == "nt_asgd":
            return NTASGD(param_groups, self.patience)
        adam: type[torch.optim.AdamW] = Muon if self.name == "muon" else torch.optim.AdamW
        fused = True if is_cuda or torch.get_default_dtype() == torch.float32 else None
        return adam(param_groups, betas=(self.beta1, self.beta2), eps=self.eps, fused=fused, capturable=is_cuda)


@dataclass(frozen=True)
class ScheduleConfig(Config):
    """Linear warm-up, then a shape. `warmup` below 1 is a fraction of the run, otherwise a number of steps.

    `linear` and `cosine` decay to `min_lr_ratio`; `inverse_sqrt` decays with √step (Vaswani et al. 2017, §5.3);
    `slanted` is ULMFiT's slanted triangle (Howard and Ruder 2018, §3.2): its cut_frac is `warmup`, and `slanted_ratio`
    is the ratio of the highest to the lowest rate.
    """

    name_field: ClassVar[str] = "shape"
    shape: Literal["constant", "linear", "cosine", "inverse_sqrt", "slanted"] = "linear"
    warmup: float = 0.1
    min_lr_ratio: float = 0.0
    slanted_ratio: float = 32.0

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "slanted_ratio")

    @property
    def depends_on_length(self) -> bool:
        """Whether the rate after the warm-up depends on the length of the run."""
        return self.shape not in ("constant", "inverse_sqrt")

    def warmup_steps(self, total_steps: int) -> int:
        """Return the number of warm-up steps of a run."""
        return max(int(self.warmup * total_steps if self.warmup < 1 else self.warmup), 1)

    def lr_factor(self, step: int, total_steps: int) -> float:
        """Return the factor on the peak learning rate at a step, counted from 0."""
        warmup = self.warmup_steps(total_steps)
        if self.shape == "slanted":
            fraction = step / warmup if step < warmup else 1 - (step - warmup) / max(total_steps - warmup, 1)
            return (1 + fraction * (self.slanted_ratio - 1)) / self.slanted_ratio
        if step < warmup:
            return (step + 1) / warmup
        if self.shape == "constant":
            return 1.0
        if self.shape == "inverse_sqrt":
            return math.sqrt(warmup / (step + 1))
        progress = min((step - warmup) / max(total_steps - warmup, 1), 1.0)
        fraction = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * fraction


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of each parameter group to `lr` times its `lr_scale`."""
    for group in optimizer.param_groups:
        group_lr = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group_lr)
        else:
            group["lr"] = group_lr


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


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024): the momentum of a matrix is orthogonalized before it is applied.

    All directions of a matrix then change by the same amount, including those with small gradients. It updates groups
    with `fused_count` above 0, matrices that consist of that many stacked ones. Embeddings, heads, norms and biases are
    updated by AdamW, as the authors advise. Updates are scaled to the size of AdamW's (Liu et al. 2025, §2.2), so that
    both have the same learning rate.
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
        rows, columns = params[0].shape
        stack = torch.stack(nesterov).view(-1, rows // group["fused_count"], columns)
        update = newton_schulz(stack).to(params[0].dtype).view(len(params), rows, columns)
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
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if is_wide else x.mT


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
