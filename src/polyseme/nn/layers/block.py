"""A Transformer layer and its parts: norms, activation functions, the feed-forward sublayer.

Each sublayer has a norm before and after it, one of them an identity: pre- and post-norm differ only in their configs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyseme.config import Config, check_in_range
from polyseme.nn import kernels
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.attention.relative import PositionInfo, RelativeAttentionConfig
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import EncoderInput, PackedLayout

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


@dataclass(frozen=True)
class TransformerBlockConfig(Config):
    """One Transformer layer: self-attention, optional cross-attention, feed-forward."""

    attention: AttentionConfig | RelativeAttentionConfig
    ffn: FeedForwardConfig
    pre_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    post_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    dropout: float = 0.0  # of each sublayer's output, before the residual sum
    skip_attention_pre_norm: bool = False  # for a first block whose input is already normalized
    cross_attention: AttentionConfig | None = None  # over a source, between self-attention and feed-forward

    def build(self, dim: int) -> TransformerBlock:
        return TransformerBlock(self, dim)


class TransformerBlock(nn.Module):
    """Transformer layer over packed sequences."""

    def __init__(self, config: TransformerBlockConfig, dim: int):
        super().__init__()
        self.attention_pre_norm = (NoNormConfig() if config.skip_attention_pre_norm else config.pre_norm).build(dim)
        self.attention = config.attention.build(dim)
        self.attention_post_norm = config.post_norm.build(dim)
        self.cross_attention_pre_norm = (config.pre_norm if config.cross_attention else NoNormConfig()).build(dim)
        self.cross_attention = config.cross_attention.build(dim) if config.cross_attention else None
        self.cross_attention_post_norm = (config.post_norm if config.cross_attention else NoNormConfig()).build(dim)
        self.ffn_pre_norm = config.pre_norm.build(dim)
        self.ffn = config.ffn.build(dim)
        self.ffn_post_norm = config.post_norm.build(dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        layout: PackedLayout,
        positions: Tensor,
        cache: LayerCache | None,
        position_info: PositionInfo,
        source: EncoderInput | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states [T, dim] after this layer, or only those of some rows, [n, dim]."""
        y = self.attention(self.attention_pre_norm(x), layout, positions, cache, position_info)  # [T, dim]
        if rows is not None:
            x, y = x.index_select(0, rows), y.index_select(0, rows)
        x = add_and_norm(self.attention_post_norm, x, self._apply_dropout(y))
        if self.cross_attention is not None:
            y = self.cross_attention.cross_attend(self.cross_attention_pre_norm(x), layout, source, cache)
            x = add_and_norm(self.cross_attention_post_norm, x, self._apply_dropout(y))
        return add_and_norm(self.ffn_post_norm, x, self._apply_dropout(self.ffn(self.ffn_pre_norm(x))))

    def _apply_dropout(self, y: Tensor) -> Tensor:
        """Apply dropout in training; skipping the module call speeds up decoding."""
        return self.dropout(y) if self.training else y

    def attention_terms(
        self,
        x: Tensor,
        layout: PackedLayout,
        positions: Tensor,
        cache: LayerCache | None,
        position_info: PositionInfo,
        source: EncoderInput | None,
    ) -> Iterator[tuple[str, AttentionTerms]]:
        """Yield what the attention sublayers of `forward` compute for one sequence: `self`, then `cross` if any."""
        normed = self.attention_pre_norm(x)
        yield "self", self.attention.terms(normed, layout, positions, cache, position_info)
        if self.cross_attention is not None:
            assert source is not None, "cross attention needs a source"
            y = self.attention(normed, layout, positions, cache, position_info)
            x = add_and_norm(self.attention_post_norm, x, y)
            yield "cross", self.cross_attention.cross_terms(self.cross_attention_pre_norm(x), source)
