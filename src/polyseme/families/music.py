"""Music Transformer (Huang et al. 2018): causal Transformer with relative attention over music events."""

import math
from typing import Literal

from polyseme.config import check_in_range
from polyseme.families import hf
from polyseme.families.family import Family, causal_lm_head
from polyseme.nn.attention.multihead import AttentionConfig, NoPositionBiasConfig
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
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
            num_heads, attention_dropout, causal=True, has_uv_biases=False, max_learned_distance=max_distance
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


def _max_distance(config: ModelConfig) -> int:
    return getattr(config.transformer.block.attention, "max_learned_distance", 0)


HF_ROWS = (
    *hf.required("num_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len"),
    *hf.choices(positions=("relative", "learned")),
    *hf.required("max_distance"),
    *hf.optional("dropout", "attention_dropout", layer_norm_eps="eps", initializer_range="init_std"),
)
PATHS: dict[str, hf.ConfigPath] = {
    "eps": "block.pre_norm.eps",
    "max_distance": _max_distance,
    "positions": lambda config: "relative" if _max_distance(config) else "learned",
}

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
    pretraining_heads=causal_lm_head,
    hf_config=hf.ConfigTable("music", trunk_config, HF_ROWS, PATHS),
    architectures=hf.architectures("Music", ForCausalLM=("next",)),
    head_weight_maps={"next": (), **hf.NATIVE_LABEL_HEADS},
    departures=(
        "Pre-norm, with a norm after the last layer, as in GPT-2.",
        "There are no absolute positions besides the relative ones, so a piece may be longer than in training.",
        "The sizes are not from the paper; input and output embeddings are tied.",
        "A performance is one piano: channels are merged, drums are omitted, notes last at least 10 ms.",
    ),
)
