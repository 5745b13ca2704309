"""Norms. An absent norm is a neutral one, so that pre-norm and post-norm are data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn import kernels


@dataclass(frozen=True)
class LayerNormConfig(Config):
    eps: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, self.eps, bias=self.bias)


@dataclass(frozen=True)
class RMSNormConfig(Config):
    """Scale without shift: no mean is taken off, no bias added (Zhang and Sennrich 2019)."""

    eps: float = 1e-6

    def build(self, dim: int) -> nn.Module:
        return nn.RMSNorm(dim, self.eps)


@dataclass(frozen=True)
class NoNormConfig(Config):
    eps: ClassVar[float] = 0.0

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class BatchNormConfig(Config):
    """Each feature by its mean and variance over the rows of a batch; at work by running ones (Ioffe and Szegedy 2015)

    What a row becomes in training depends on its neighbours: the laws of packing and of sums hold for it at work alone.
    """

    eps: float = 1e-5
    momentum: float = 0.1

    def build(self, dim: int) -> nn.Module:
        return BatchNorm(self, dim)


class BatchNorm(nn.Module):
    """Reckons in float32 at least. One row has no variance: it is set right by the running figures, in training too."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, config: BatchNormConfig, dim: int):
        super().__init__()
        self.config = config
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def initialize(self) -> None:
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0)):
            nn.init.constant_(tensor, value)

    def forward(self, x: Tensor) -> Tensor:
        upcast = x.to(self.running_mean.dtype)
        weight, bias = self.weight.to(upcast.dtype), self.bias.to(upcast.dtype)
        training = self.training and len(x) > 1
        normalized = F.batch_norm(
            upcast, self.running_mean, self.running_var, weight, bias, training, self.config.momentum, self.config.eps
        )
        return normalized.to(x.dtype)


AnyNormConfig = LayerNormConfig | RMSNormConfig | NoNormConfig | BatchNormConfig


def add_and_norm(norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The norm of a residual sum: one kernel on a GPU where nothing is differentiated."""
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None and not torch.is_grad_enabled() and kernels.supports(x):
        output: Tensor = kernels.add_norm(x, y, norm.weight, norm.bias, norm.eps)
        return output
    return norm(x + y)
