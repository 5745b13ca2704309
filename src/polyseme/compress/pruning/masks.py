"""Masks of weights: which weights of the hidden layers are zero, and stay so while a model is trained."""

import copy
from dataclasses import dataclass

import torch

from polyseme.compress.pruning.config import PruningConfig
from polyseme.errors import UnsupportedError
from polyseme.nn.model import Model

NUM_UPDATES = 100  # of the masks, at most, in a gradual schedule


class WeightMasks:
    """The removed weights of a model, which `apply` sets to zero; a removed weight never returns."""

    def __init__(self, model: Model):
        matrices = {id(weight): weight for weight, _ in model.trunk.hidden_matrices()}
        if not matrices:
            reason = "there are no hidden layers"
            raise UnsupportedError(f"weights of {model.config.family} models cannot be pruned: {reason}")
        self.model, self.weights = model, list(matrices.values())
        self.is_removed = [torch.zeros_like(weight, dtype=torch.bool) for weight in self.weights]

    @classmethod
    def copy_of(cls, model: Model) -> "WeightMasks":
        """Return masks of a copy of a model."""
        return cls(copy.deepcopy(model))

    @property
    def total(self) -> int:
        """The number of weights that masks cover."""
        return sum(weight.numel() for weight in self.weights)

    @torch.no_grad()
    def prune(self, count: int, random_seed: int | None = None) -> None:
        """Remove weights until `count` are removed: those of the smallest magnitude in all matrices, or random ones."""
        sizes = [weight.numel() for weight in self.weights]
        if random_seed is None:
            scores = torch.cat([weight.abs().flatten() for weight in self.weights])
        else:
            generator = torch.Generator().manual_seed(random_seed)
            scores = torch.rand(sum(sizes), generator=generator).to(self.weights[0].device)
        scores[torch.cat([mask.flatten() for mask in self.is_removed])] = -1.0
        is_removed = torch.zeros_like(scores, dtype=torch.bool)
        is_removed[torch.topk(scores, count, largest=False).indices] = True
        for mask, new_mask in zip(self.is_removed, is_removed.split(sizes)):
            mask.copy_(new_mask.view_as(mask))
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Set the removed weights to zero."""
        for weight, mask in zip(self.weights, self.is_removed):
            weight.masked_fill_(mask, 0)

    def with_model(self, model: Model) -> "WeightMasks":
        """Return the same masks of another model of the same shape, applied."""
        masks = WeightMasks(model)
        masks.is_removed = [mask.to(weight.device) for mask, weight in zip(self.is_removed, masks.weights)]
        masks.apply()
        return masks


@dataclass
class GradualMasks:
    """Masks that grow in the course of a training, by the cubic schedule of a config."""

    masks: WeightMasks
    config: PruningConfig
    total_steps: int

    def after_step(self, step: int) -> None:
        """Remove weights that are due after a step, and set all removed ones to zero."""
        count = self.config.num_removed(self.masks.total)
        if step % max(self.total_steps // NUM_UPDATES, 1) == 0 or step >= self.total_steps:
            self.masks.prune(self.config.gradual_count(count, step, self.total_steps))
        else:
            self.masks.apply()
