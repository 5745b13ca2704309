"""How weights begin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from polyseme.parts.spec import Spec


@dataclass(frozen=True)
class InitSpec(Spec):
    """Normal matrices, zero biases, norms at identity.

    `truncated` redraws beyond two deviations; `position_std` differs where a paper's code has it so;
    `scale_residuals` divides the last matrix of each sublayer by √(number of sublayers) (GPT-2, §2.3).
    """

    std: float = 0.02
    position_std: float = 0.02
    truncated: bool = False
    scale_residuals: bool = False

    def apply(self, module: nn.Module, num_sublayers: int, generator: torch.Generator | None) -> None:
        for name, part in module.named_modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                std = self.position_std if name.endswith("positions") else self.std
                if self.scale_residuals and name.endswith(("attention.out", "ffn.down")):
                    std /= num_sublayers**0.5
                if self.truncated:
                    nn.init.trunc_normal_(part.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
                else:
                    nn.init.normal_(part.weight, 0.0, std, generator=generator)
            for vector in getattr(part, "vectors", list)():  # parameters that no layer holds
                nn.init.normal_(vector, 0.0, self.std, generator=generator)
            if isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)
            if isinstance(bias := getattr(part, "bias", None), nn.Parameter):
                nn.init.zeros_(bias)
