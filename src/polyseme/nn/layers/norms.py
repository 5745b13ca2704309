"""Normalization layers. An absent norm is an identity, so that pre- and post-norm differ only in their configs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn import kernels


@dataclass(frozen=True)
class LayerNormConfig(Config):
    """Layer normalization (Ba et al. 2016)."""

    eps: float = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, self.eps, bias=self.bias)


@dataclass(frozen=True)
class RMSNormConfig(Config):
    """Root mean square normalization: no mean is subtracted, no bias added (Zhang and Sennrich 2019)."""

    eps: float = 1e-6

    def build(self, dim: int) -> nn.Module:
        return nn.RMSNorm(dim, self.eps)


@dataclass(frozen=True)
class NoNormConfig(Config):
    """No normalization."""

    eps: ClassVar[float] = 0.0

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class BatchNormConfig(Config):
    """Batch normalization over the rows of a batch (Ioffe and Szegedy 2015); running statistics at inference.

    In training the output of a row depends on the other rows, so the packing and sum laws hold only at inference.
    """

    eps: float = 1e-5
    momentum: float = 0.1

    def build(self, dim: int) -> nn.Module:
        return BatchNorm(self, dim)


class BatchNorm(nn.Module):
    """Batch normalization in at least float32. A single row has no variance; it uses the running statistics."""

    constant_init: ClassVar = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, config: BatchNormConfig, dim: int):
        super().__init__()
        self.config = config
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

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
    """Normalize a residual sum x + y, with one fused kernel on a GPU if no gradient is needed."""
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None and not torch.is_grad_enabled() and kernels.supports(x):
        return kernels.add_norm(x, y, norm.weight, norm.bias, norm.eps)
    return norm(x + y)
