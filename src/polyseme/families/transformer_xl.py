"""Transformer-XL (Dai et al. 2019): causal Transformer with segment-level memory and relative positions."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import (
    HEAD_POOLING,
    NATIVE_LABEL_HEADS,
    Family,
    native_architectures,
    read_hf_config,
    same_names,
    weight_and_bias,
)
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig, AdaptiveSoftmaxHeadConfig
from polyseme.nn.layers.block import TransformerBlockConfig
from polyseme.nn.layers.feedforward import FeedForwardConfig
from polyseme.nn.layers.norms import LayerNormConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig

VOCAB_SIZE = 267_735  # WikiText-103
CUTOFFS = (20_000, 40_000, 200_000)


def trunk_config(
    num_layers: int = 16,
    dim: int = 410,
    num_heads: int = 10,
    ffn_dim: int = 0,
    vocab_size: int = VOCAB_SIZE,
    max_len: int = 1 << 20,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    head_dim: int = 0,
    memory_len: int = 150,
    max_distance: int = 0,
    div_value: int = 1,
    share_uv_biases: bool = True,
    eps: float = 1e-5,
    init_std: float = 0.02,
) -> TransformerConfig:
    """Post-norm blocks over adaptive embeddings (§3, §4.1).

    The cutoffs are those of WikiText-103, scaled to the vocabulary. With `share_uv_biases`, all layers share u and v.
    Distances beyond `max_distance` are clamped (clamp_len in the authors' code).
    """
    uv_bias_shape = num_heads, head_dim or dim // num_heads
    attention = RelativeAttentionConfig(
        num_heads, head_dim, attention_dropout, causal=True, has_uv_biases=not share_uv_biases
    )
    return TransformerConfig(
        AdaptiveEmbeddingsConfig(vocab_size, dim, scale_cutoffs(vocab_size), div_value, max_len, dropout),
        TransformerBlockConfig(
            attention,
            FeedForwardConfig(ffn_dim or 4 * dim, "relu", dropout=dropout),
            post_norm=LayerNormConfig(eps),
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("last"),
        init=InitConfig(init_std),
        position_bias=RelativePositionConfig(max_distance, dropout, uv_bias_shape if share_uv_biases else ()),
        memory_len=memory_len,
    )


def scale_cutoffs(vocab_size: int) -> tuple[int, ...]:
    """Scale the cutoffs of WikiText-103 to another vocabulary size."""
    scaled = [vocab_size * cutoff // VOCAB_SIZE for cutoff in CUTOFFS]
    return tuple(sorted({cutoff for cutoff in scaled if 0 < cutoff < vocab_size}))


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    embeddings = config.embeddings
    assert isinstance(embeddings, AdaptiveEmbeddingsConfig)
    return {
        "next": AdaptiveSoftmaxHeadConfig(
            embeddings.vocab_size, embeddings.dim, embeddings.cutoffs, embeddings.div_value
        )
    }


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.block.dropout)


INT_FIELDS = (
    "num_layers",
    "dim",
    "num_heads",
    "ffn_dim",
    "vocab_size",
    "max_len",
    "head_dim",
    "memory_len",
    "max_distance",
    "div_value",
)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk, block = config.transformer, config.transformer.block
    attention, position_bias, embeddings = block.attention, trunk.position_bias, trunk.embeddings
    assert isinstance(attention, RelativeAttentionConfig) and isinstance(position_bias, RelativePositionConfig)
    assert isinstance(embeddings, AdaptiveEmbeddingsConfig)
    return {
        "model_type": "transformer_xl",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "num_heads": attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": embeddings.vocab_size,
        "max_len": embeddings.max_len,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "head_dim": attention.head_dim,
        "memory_len": trunk.memory_len,
        "max_distance": position_bias.max_distance,
        "div_value": embeddings.div_value,
        "share_uv_biases": not attention.has_uv_biases,
        "layer_norm_eps": block.post_norm.eps,
        "initializer_range": trunk.init.std,
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(
        **read_hf_config(
            hf_config, int_fields={name: name for name in INT_FIELDS}, allowed_values={"share_uv_biases": [True, False]}
        ),
        dropout=hf_config.get("dropout", 0.1),
        attention_dropout=hf_config.get("attention_dropout", 0.0),
        share_uv_biases=hf_config.get("share_uv_biases", True),
        eps=hf_config.get("layer_norm_eps", 1e-5),
        init_std=hf_config.get("initializer_range", 0.02),
    )


_BANDS = range(len(CUTOFFS) + 1)

TRANSFORMER_XL = Family(
    name="transformer_xl",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
    tokenizer="bpe",
    objective="causal LM over segments with memory",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "memory_len": 128},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "base": {"num_layers": 16, "dim": 410, "num_heads": 10, "ffn_dim": 2100},
        "large": {
            "num_layers": 18,
            "dim": 1024,
            "num_heads": 16,
            "ffn_dim": 4096,
            "memory_len": 384,
            "div_value": 4,
            "share_uv_biases": False,
        },
    },
    num_params={"base": 150_838_570, "large": 283_885_936},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("TransformerXL", {"ForCausalLM": ("next",)}),
    base_model_prefix="trunk.",
    weight_maps=(
        *same_names(*(f"trunk.embeddings.{part}.{i}.weight" for part in ("tables", "projections") for i in _BANDS)),
        *same_names("trunk.position_bias.u", "trunk.position_bias.v"),
        *same_names(*(f"trunk.blocks.{{}}.attention.{part}.weight" for part in ("qkv", "distance", "out"))),
        *same_names("trunk.blocks.{}.attention.u", "trunk.blocks.{}.attention.v"),
        *weight_and_bias("trunk.blocks.{}.attention_post_norm"),
        *weight_and_bias("trunk.blocks.{}.ffn.up"),
        *weight_and_bias("trunk.blocks.{}.ffn.down"),
        *weight_and_bias("trunk.blocks.{}.ffn_post_norm"),
    ),
    head_weight_maps={
        "next": same_names(
            *(f"heads.next.biases.{i}" for i in _BANDS),
            "heads.next.clusters.weight",
            "heads.next.clusters.bias",
            "heads.next.projection.weight",
        ),
        **NATIVE_LABEL_HEADS,
    },
    departures=(
        "The vocabulary has subwords instead of words; cutoffs are proportional to those of WikiText-103.",
        "Norm weights start at 1; the authors' code draws them around 1.",
    ),
)
