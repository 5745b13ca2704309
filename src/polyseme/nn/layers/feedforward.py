"""Feed-forward sublayer and activation functions by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.nn import kernels

ActivationName = Literal["gelu", "gelu_tanh", "relu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
# cuBLAS can fuse GELU with the tanh approximation into a product. It differs from exact GELU by at most 5e-4; the error
# of text embeddings in bfloat16 is the same with either (0.0054 and 0.0055 for BERT-base on an H200).
EPILOGUE_ACTIVATIONS = ("gelu", "gelu_tanh")


@dataclass(frozen=True)
class FeedForwardConfig(Config):
    """Feed-forward sublayer."""

    ffn_dim: int
    activation: ActivationName = "gelu"
    bias: bool = True
    gated: bool = False  # activation(a) · b, where a and b are the halves of the first projection (Shazeer 2020)
    dropout: float = 0.0  # of the input of the second projection

    def __post_init__(self) -> None:
        check_in_range("ffn dropout", self.dropout, 0, 1)
        self.check_range(1, math.inf, "ffn_dim")

    def build(self, dim: int) -> FeedForward:
        return FeedForward(self, dim)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, gated or not."""

    def __init__(self, config: FeedForwardConfig, dim: int):
        super().__init__()
        self.config, self.activation = config, ACTIVATIONS[config.activation]
        self.up = nn.Linear(dim, (1 + config.gated) * config.ffn_dim, bias=config.bias)
        self.fused_count = {"up": 1 + config.gated}
        self.down = nn.Linear(config.ffn_dim, dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        config, up, down = self.config, self.up, self.down
        dropout = config.dropout if self.training else 0.0
        use_kernels = kernels.supports(up.weight) and not dropout and config.bias != config.gated
        if use_kernels and config.bias and config.activation in EPILOGUE_ACTIVATIONS and not torch.is_grad_enabled():
            return down(torch._addmm_activation(up.bias, x, up.weight.t(), use_gelu=True))
        if use_kernels and config.activation in kernels.ACTIVATION_NAMES:
            h = F.linear(x, up.weight)  # [T, ffn_dim], without bias
            if config.gated:
                return kernels.gated_linear(h, down.weight, config.activation)
            return kernels.activated_linear(h, up.bias, down.weight, down.bias, config.activation)
        h, *gates = up(x).chunk(1 + config.gated, dim=-1)
        h = self.activation(h) * gates[0] if config.gated else self.activation(h)
        return down(F.dropout(h, dropout))
