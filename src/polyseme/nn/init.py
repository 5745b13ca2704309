"""Weight initialization."""

from dataclasses import dataclass

import torch
from torch import nn

from polyseme.config import Config
from polyseme.nn.attention.multihead import MultiHeadAttention
from polyseme.nn.layers.char_cnn import Highway
from polyseme.nn.layers.rnn import RNNCellLayer


@dataclass(frozen=True)
class InitConfig(Config):
    """Normally distributed matrices, zero biases, norms at identity.

    `truncated` redraws values beyond two standard deviations. `position_std` is that of position embeddings,
    `token_std` that of token embeddings and `conv_std` that of convolutions (0 means `std`). `scale_residuals` divides
    the last matrix of each sublayer by √(number of sublayers) (GPT-2, §2.3). `scale_by_fan_in` draws matrices with
    std / √(fan-in), so that products keep the size of their inputs, and scales down queries where attention does not
    scale its scores.
    """

    std: float = 0.02
    position_std: float = 0.02
    truncated: bool = False
    scale_residuals: bool = False
    scale_by_fan_in: bool = False
    token_std: float = 0.0
    conv_std: float = 0.0

    def apply(self, module: nn.Module, num_sublayers: int, generator: torch.Generator | None) -> None:
        """Initialize a module and all its submodules in place."""
        for name, submodule in module.named_modules():
            if isinstance(submodule, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d):
                std = self.position_std if name.endswith("positions") else self.std
                if name.endswith("tokens") and self.token_std:
                    std = self.token_std
                is_conv = isinstance(submodule, nn.Conv1d | nn.Conv2d)
                if is_conv and self.conv_std:
                    std = self.conv_std
                elif self.scale_by_fan_in and not isinstance(submodule, nn.Embedding):
                    std /= submodule.weight[0].numel() ** 0.5
                if self.scale_residuals and name.endswith((".attention.out", "ffn.down")):
                    std /= num_sublayers**0.5
                if self.truncated:
                    nn.init.trunc_normal_(submodule.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
                else:
                    nn.init.normal_(submodule.weight, 0.0, std, generator=generator)
            # a module names the parameters outside torch's layers, and its buffers, to initialize
            for parameter_name in getattr(submodule, "normal_init", ()):
                if (parameter := getattr(submodule, parameter_name)) is not None:
                    nn.init.normal_(parameter, 0.0, self.std, generator=generator)
            for tensor_name, value in getattr(submodule, "constant_init", {}).items():
                if (tensor := getattr(submodule, tensor_name)) is not None:
                    nn.init.constant_(tensor, value)
            if isinstance(submodule, nn.LayerNorm | nn.RMSNorm):
                nn.init.ones_(submodule.weight)
            if isinstance(bias := getattr(submodule, "bias", None), nn.Parameter):
                nn.init.zeros_(bias)
        for submodule in module.modules():
            if isinstance(submodule, RNNCellLayer):
                submodule.initialize(generator)
            if isinstance(submodule, Highway):
                nn.init.constant_(submodule.carry.bias, Highway.initial_bias)
            if self.scale_by_fan_in and isinstance(submodule, MultiHeadAttention):
                with torch.no_grad():
                    submodule.qkv.weight[: submodule.inner_dim] *= submodule.query_scale
