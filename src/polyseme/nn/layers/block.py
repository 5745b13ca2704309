"""One Transformer layer. Each sublayer has a norm before and after it, one of them an identity: pre- or post-norm."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from polyseme.config import Config
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.attention.relative import PositionInfo, RelativeAttentionConfig
from polyseme.nn.layers.feedforward import FeedForwardConfig
from polyseme.nn.layers.norms import AnyNormConfig, NoNormConfig, add_and_norm
from polyseme.nn.memory import LayerCache
from polyseme.nn.packing import EncoderInput, PackedLayout


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
    ) -> Tensor:
        """Return the hidden states [T, dim] after this layer."""
        y = self.attention(self.attention_pre_norm(x), layout, positions, cache, position_info)  # [T, dim]
        x = add_and_norm(self.attention_post_norm, x, self._apply_dropout(y))
        if self.cross_attention is not None:
            y = self.cross_attention.cross_attend(self.cross_attention_pre_norm(x), layout, source, cache)
            x = add_and_norm(self.cross_attention_post_norm, x, self._apply_dropout(y))
        return add_and_norm(self.ffn_post_norm, x, self._apply_dropout(self.ffn(self.ffn_pre_norm(x))))

    def _apply_dropout(self, y: Tensor) -> Tensor:
        """Apply dropout in training; skipping the module call speeds up decoding."""
        return self.dropout(y) if self.training else y

    def cross_weights(
        self, x: Tensor, layout: PackedLayout, position_info: PositionInfo, source: EncoderInput
    ) -> list[Tensor]:
        """Return the probabilities of cross-attention, [heads, queries, keys] for each sequence."""
        assert self.cross_attention is not None
        y = self.attention(self.attention_pre_norm(x), layout, layout.positions, None, position_info)
        x = add_and_norm(self.attention_post_norm, x, y)
        return self.cross_attention.cross_weights(self.cross_attention_pre_norm(x), layout, source)

    def attention_weights(self, x: Tensor, layout: PackedLayout, position_info: PositionInfo = None) -> list[Tensor]:
        """Return the probabilities of self-attention, [heads, queries, keys] for each sequence."""
        return self.attention.weights(self.attention_pre_norm(x), layout, position_info)
