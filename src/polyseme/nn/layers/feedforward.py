"""The feed-forward sublayer, and the activations by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Spec, in_range
from polyseme.nn import kernels

ActivationName = Literal["gelu", "gelu_tanh", "relu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
# What cuBLAS can do inside a product: GELU by tanh. It differs from GELU itself by 5e-4 at most, and the vectors of a
# text in bfloat16 lie as far from exact ones with either (0.0054 and 0.0055 for BERT-base on an H200).
IN_PRODUCT = ("gelu", "gelu_tanh")


@dataclass(frozen=True)
class FeedForwardSpec(Spec):
    ffn_dim: int
    activation: ActivationName = "gelu"
    bias: bool = True
    gated: bool = False  # activation(a) · b, a and b the halves of the first product (Shazeer 2020)
    dropout: float = 0.0  # on what goes into the second matrix

    def __post_init__(self) -> None:
        in_range("ffn dropout", self.dropout, 0, 1)
        self.within(1, math.inf, "ffn_dim")

    def build(self, dim: int) -> FeedForward:
        return FeedForward(self, dim)


class FeedForward(nn.Module):
    def __init__(self, spec: FeedForwardSpec, dim: int):
        super().__init__()
        self.spec = spec
        self.activation = ACTIVATIONS[spec.activation]
        self.up = nn.Linear(dim, (1 + spec.gated) * spec.ffn_dim, bias=spec.bias)
        self.stacked = {"up": 1 + spec.gated}
        self.down = nn.Linear(spec.ffn_dim, dim, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        spec, up, down = self.spec, self.up, self.down
        dropout = spec.dropout if self.training else 0.0
        served = kernels.serve(up.weight) and not dropout and spec.bias != spec.gated
        if served and spec.bias and spec.activation in IN_PRODUCT and not torch.is_grad_enabled():
            return down(torch._addmm_activation(up.bias, x, up.weight.t(), use_gelu=True))
        if served and spec.activation in kernels.ACTIVATIONS:
            h = F.linear(x, up.weight)
            found: Tensor = (
                kernels.gated_linear(h, down.weight, spec.activation)
                if spec.gated
                else kernels.activated_linear(h, up.bias, down.weight, down.bias, spec.activation)
            )
            return found
        if spec.gated:
            a, b = up(x).chunk(2, dim=-1)
            return down(F.dropout(self.activation(a) * b, dropout))
        return down(F.dropout(self.activation(up(x)), dropout))
