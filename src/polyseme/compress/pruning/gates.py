"""Gates on attention heads that are trained to close: hard concrete gates with an L0 penalty (Voita et al. 2019)."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.compress.pruning.structure import Parts
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.train.loop import TrainState

TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1  # β, γ and ζ of Louizos et al. 2018, §4.1
INITIAL_LOGIT = 2.0  # of log α: a gate is open with probability 0.97
GATE_LR = 0.05  # of the logits, which have to travel much farther than weights
GATES_TERM = "gates"


class HeadGates(nn.Module):
    """A gate for each head of attention sublayers; sublayers of a group, which keep the same heads, share them.

    In training a gate is a random number from a distribution with mass at exactly 0 and 1; in evaluation, its
    deterministic counterpart. The penalty is the expected number of open gates above `num_open`, so that it ends when
    as many heads are left as are to be kept; that of Voita et al. goes on, and leaves their number to its weight.
    """

    def __init__(self, parts: Parts, num_removed: int):
        super().__init__()
        self.groups, sizes = parts.groups, parts.group_sizes.values()
        self.num_open = sum(sizes) - num_removed
        self.logits = nn.ParameterList(torch.full((size,), INITIAL_LOGIT) for size in sizes)

    @property
    def importance(self) -> dict[str, Tensor]:
        """The logits of each group of sublayers: the heads of the lowest ones are removed."""
        return {name: logits.detach().double().cpu() for name, logits in zip(self.groups, self.logits)}

    def _sublayers(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, logits) for group, logits in zip(self.groups.values(), self.logits) for name in group)

    @staticmethod
    def values(logits: Tensor, is_random: bool) -> Tensor:
        """Return the gates of a sublayer: random ones in training, and otherwise the same ones every time."""
        if is_random:
            uniform = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
            logits = (logits + uniform.log() - (-uniform).log1p()) / TEMPERATURE
        return (torch.sigmoid(logits) * (HIGH - LOW) + LOW).clamp(0, 1)

    def penalty(self) -> Tensor:
        """Return by how much the expected number of open gates exceeds the number to keep."""
        shift = TEMPERATURE * math.log(-LOW / HIGH)
        num_open = torch.stack([torch.sigmoid(logits - shift).sum() for logits in self.logits]).sum()
        return (num_open - self.num_open).clamp(min=0)

    @contextmanager
    def attached(self, model: Model) -> Iterator[None]:
        """Multiply the outputs of the heads of a model by their gates."""
        with ExitStack() as stack:
            for name, logits in self._sublayers():
                hook = self._hook(logits)
                stack.callback(model.get_submodule(f"{name}.out").register_forward_pre_hook(hook).remove)
            yield

    def _hook(self, logits: Tensor) -> Any:
        def multiply(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x = inputs[0]  # [T, heads · head_dim]
            gates = self.values(logits, layer.training).to(x.dtype)[:, None]
            return ((x.unflatten(-1, (len(logits), -1)) * gates).flatten(-2), *inputs[1:])

        return multiply

    @torch.no_grad()
    def fold(self, model: Model) -> None:
        """Multiply the columns of the output layers by the gates of evaluation, which then have no effect."""
        for name, logits in self._sublayers():
            weight = model.get_submodule(f"{name}.out").weight
            assert isinstance(weight, Tensor)
            weight.view(len(weight), len(logits), -1).mul_(self.values(logits, is_random=False)[:, None])

    def add_to(self, state: TrainState) -> None:
        """Let the optimizer of a training state train the gates, with a learning rate of their own."""
        self.to(state.device)
        settings = {name: value for name, value in state.optimizer.param_groups[0].items() if name != "params"}
        settings |= {"weight_decay": 0.0, "fused_count": 0, "lr_scale": GATE_LR / state.optimizer_config.lr}
        if isinstance(settings["lr"], Tensor):
            settings["lr"] = settings["lr"].clone()
        state.optimizer.add_param_group({**settings, "params": list(self.logits)})
        state.use_cuda_graphs = False  # a captured step would not draw new gates

    def losses(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses of a batch, and the penalty."""
        targets = {name: target for name, target in batch.targets.items() if name != GATES_TERM}
        return compute_losses(model, replace(batch, targets=targets)) | {GATES_TERM: self.penalty()}


def gate_targets(penalty: float) -> dict[str, Targets]:
    """Return the targets that add the penalty to the loss."""
    no_rows = torch.zeros(0, dtype=torch.int64)
    return {GATES_TERM: Targets(no_rows, no_rows, 1, penalty)}
