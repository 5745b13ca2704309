"""How weights begin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from polyseme.config import Spec
from polyseme.nn.attention.multihead import Attention
from polyseme.nn.layers.norms import BatchNorm


@dataclass(frozen=True)
class InitSpec(Spec):
    """Normal matrices, zero biases, norms at identity.

    `truncated` redraws beyond two deviations; `position_std` differs where a paper's code has it so;
    `scale_residuals` divides the last matrix of each sublayer by √(number of sublayers) (GPT-2, §2.3).
    With `fan_in` a matrix starts at std / √(its inputs), so that products keep the size of what they read, and queries
    so small as scores need it that are not scaled. `token_std` is of the token vectors; 0 is `std`.
    """

    std: float = 0.02
    position_std: float = 0.02
    truncated: bool = False
    scale_residuals: bool = False
    fan_in: bool = False
    token_std: float = 0.0

    def apply(self, module: nn.Module, num_sublayers: int, generator: torch.Generator | None) -> None:
        for name, part in module.named_modules():
            if isinstance(part, nn.Linear | nn.Embedding | nn.Conv1d):
                std = self.position_std if name.endswith("positions") else self.std
                if name.endswith("tokens") and self.token_std:
                    std = self.token_std
                if self.fan_in and not isinstance(part, nn.Embedding):
                    std /= part.weight[0].numel() ** 0.5
                if self.scale_residuals and name.endswith(("attention.out", "ffn.down")):
                    std /= num_sublayers**0.5
                if self.truncated:
                    nn.init.trunc_normal_(part.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
                else:
                    nn.init.normal_(part.weight, 0.0, std, generator=generator)
            for vector in getattr(part, "vectors", list)():  # parameters that no layer holds
                nn.init.normal_(vector, 0.0, self.std, generator=generator)
            for vector in getattr(part, "zeros", list)():
                nn.init.zeros_(vector)
            for vector in getattr(part, "ones", list)():
                nn.init.ones_(vector)
            if isinstance(part, nn.LayerNorm | nn.RMSNorm):
                nn.init.ones_(part.weight)
            if isinstance(part, BatchNorm):
                part.initialise()
            if isinstance(bias := getattr(part, "bias", None), nn.Parameter):
                nn.init.zeros_(bias)
        if self.fan_in:
            for part in module.modules():
                if isinstance(part, Attention) and part.spec.scale:
                    head_dim = part.width // part.spec.num_heads
                    with torch.no_grad():
                        part.qkv.weight[: part.width] *= head_dim**-0.5 / part.spec.scale
