"""Music Transformer (Huang et al. 2018): causal Transformer with relative attention over music events."""

from __future__ import annotations

import math
from typing import Any, Literal

from polyseme.config import check_in_range
from polyseme.families.family import (
    HEAD_POOLING,
    NATIVE_LABEL_HEADS,
    Family,
    native_architectures,
    read_hf_config,
    same_names,
    weight_and_bias,
)
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.attention.score_bias import NoPositionBiasConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import FeedForwardConfig
from polyseme.nn.layers.norms import LayerNormConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 6,
    dim: int = 384,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 392,
    max_len: int = 4096,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    positions: Literal["relative", "learned"] = "relative",
    max_distance: int = 1024,
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Pre-norm blocks; each head learns a vector for each distance up to `max_distance`, shared beyond (§3.4).

    With `positions="learned"`, the model has absolute position embeddings instead, for comparison.
    """
    is_relative = positions == "relative"
    check_in_range("max_distance", max_distance, int(is_relative), math.inf)
    attention = (
        RelativeAttentionConfig(
            num_heads, 0, attention_dropout, causal=True, has_uv_biases=False, max_learned_distance=max_distance
        )
        if is_relative
        else AttentionConfig(num_heads, attention_dropout, bias=False, causal=True)
    )
    norm = LayerNormConfig(eps)
    return TransformerConfig(
        EmbeddingsConfig(
            vocab_size, dim, max_len, dropout=dropout, position_embedding_type="none" if is_relative else "learned"
        ),
        TransformerBlockConfig(
            attention, FeedForwardConfig(ffn_dim or 4 * dim, "relu"), pre_norm=norm, dropout=dropout
        ),
        layer_to_block=tuple(range(num_layers)),
        final_norm=norm,
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std),
        position_bias=RelativePositionConfig(has_sinusoids=False) if is_relative else NoPositionBiasConfig(),
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"next": LMHeadConfig(config.embeddings.vocab_size)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.block.dropout)


INT_FIELDS = ("num_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len", "max_distance")


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk, block = config.transformer, config.transformer.block
    attention = block.attention
    max_distance = attention.max_learned_distance if isinstance(attention, RelativeAttentionConfig) else 0
    return {
        "model_type": "music",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "num_heads": attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "positions": "relative" if max_distance else "learned",
        "max_distance": max_distance,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "layer_norm_eps": block.pre_norm.eps,
        "initializer_range": trunk.init.std,
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(
        **read_hf_config(
            hf_config,
            int_fields={name: name for name in INT_FIELDS},
            allowed_values={"positions": ["relative", "learned"]},
        ),
        positions=hf_config.get("positions", "relative"),
        dropout=hf_config.get("dropout", 0.1),
        attention_dropout=hf_config.get("attention_dropout", 0.1),
        eps=hf_config.get("layer_norm_eps", 1e-5),
        init_std=hf_config.get("initializer_range", 0.02),
    )


MUSIC = Family(
    name="music",
    paper="Huang et al. 2018, Music Transformer: Generating Music with Long-Term Structure",
    tokenizer="events",
    objective="causal LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "max_distance": 256},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4, "max_distance": 512},
        "base": {"num_layers": 6, "dim": 384, "num_heads": 8, "ffn_dim": 1024},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("Music", {"ForCausalLM": ("next",)}),
    base_model_prefix="trunk.",
    weight_maps=(
        *same_names("trunk.embeddings.tokens.weight", "trunk.embeddings.positions.weight"),
        *same_names(*(f"trunk.blocks.{{}}.attention.{part}.weight" for part in ("qkv", "distance", "out"))),
        *weight_and_bias("trunk.blocks.{}.attention_pre_norm"),
        *weight_and_bias("trunk.blocks.{}.ffn_pre_norm"),
        *weight_and_bias("trunk.blocks.{}.ffn.up"),
        *weight_and_bias("trunk.blocks.{}.ffn.down"),
        *weight_and_bias("trunk.final_norm"),
    ),
    head_weight_maps={"next": (), **NATIVE_LABEL_HEADS},
    departures=(
        "Pre-norm, with a norm after the last layer, as in GPT-2.",
        "There are no absolute positions besides the relative ones, so a piece may be longer than in training.",
        "The sizes are not from the paper; input and output embeddings are tied.",
        "A performance is one piano: channels are merged, drums are omitted, notes last at least 10 ms.",
    ),
)
