"""Transformer (Vaswani et al. 2017): the original encoder-decoder for translation."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config, same_names, weight_and_bias
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardConfig
from polyseme.nn.layers.norms import LayerNormConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 6,
    dim: int = 512,
    num_heads: int = 8,
    ffn_dim: int = 0,
    vocab_size: int = 37000,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    num_decoder_layers: int = 0,
    target_vocab_size: int = 0,
    activation: ActivationName = "relu",
    eps: float = 1e-6,
) -> EncoderDecoderConfig:
    """Post-norm stacks over token embeddings times √dim plus sinusoids; one table for both sides and the output (§3.4).

    With a `target_vocab_size`, the target side has its own vocabulary and table, which the output shares. Attention
    projections have no biases, feed-forward layers have (§3.2, §3.3).
    """
    norm = LayerNormConfig(eps)
    init = InitConfig(1.0, scale_by_fan_in=True, token_std=dim**-0.5)

    def stack(stack_layers: int, is_decoder: bool) -> TransformerConfig:
        return TransformerConfig(
            EmbeddingsConfig(
                (is_decoder and target_vocab_size) or vocab_size,
                dim,
                max_len,
                dropout=dropout,
                position_embedding_type="sinusoidal",
                scale=dim**0.5,
                tied_to_encoder=is_decoder and not target_vocab_size,
            ),
            TransformerBlockConfig(
                AttentionConfig(num_heads, attention_dropout, bias=False, causal=is_decoder),
                FeedForwardConfig(ffn_dim or 4 * dim, activation),
                post_norm=norm,
                dropout=dropout,
                cross_attention=AttentionConfig(num_heads, attention_dropout, bias=False) if is_decoder else None,
            ),
            layer_to_block=tuple(range(stack_layers)),
            pooler=PoolerConfig("last"),
            init=init,
        )

    return EncoderDecoderConfig(stack(num_layers, False), stack(num_decoder_layers or num_layers, True), init=init)


def pretraining_heads(config: EncoderDecoderConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"next": LMHeadConfig((config.decoder or config).embeddings.vocab_size)}


def task_head(name: str, labels: tuple[str, ...], config: EncoderDecoderConfig) -> HeadConfig:
    """Return a task's head over the encoder; the sequence is pooled to its last state."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.block.dropout)


INT_FIELDS = ("num_layers", "num_decoder_layers", "dim", "num_heads", "ffn_dim", "vocab_size", "max_len")
OTHER_FIELDS = ("target_vocab_size", "dropout", "attention_dropout", "activation", "eps")


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, EncoderDecoderConfig) and trunk.decoder is not None
    block, norm = trunk.block, trunk.block.post_norm
    return {
        "model_type": "transformer",
        "num_layers": trunk.num_layers,
        "num_decoder_layers": trunk.decoder.num_layers,
        "dim": trunk.dim,
        "num_heads": block.attention.num_heads,
        "ffn_dim": block.ffn.ffn_dim,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "activation": block.ffn.activation,
        "eps": norm.eps,
        **(
            {}
            if getattr(trunk.decoder.embeddings, "tied_to_encoder", True)
            else {"target_vocab_size": trunk.decoder.embeddings.vocab_size}
        ),
        "is_encoder_decoder": True,
    }


def from_hf_config(hf_config: dict[str, Any]) -> EncoderDecoderConfig:
    """Return the trunk's config from a `config.json`."""
    int_values = read_hf_config(
        hf_config, int_fields={name: name for name in INT_FIELDS}, allowed_values={"tie_word_embeddings": [True]}
    )
    return trunk_config(**int_values, **{name: hf_config[name] for name in OTHER_FIELDS if name in hf_config})


def weight_maps(config: ModelConfig) -> tuple[WeightMap, ...]:
    """Return weight maps to our own names: `transformers` lacks this family."""
    trunk = config.trunk
    assert isinstance(trunk, EncoderDecoderConfig) and trunk.decoder is not None
    tables = ("encoder",) if getattr(trunk.decoder.embeddings, "tied_to_encoder", True) else ("encoder", "decoder")
    maps = [*same_names(*(f"trunk.{stack}.embeddings.tokens.weight" for stack in tables))]
    for stack, attentions in (("encoder", ("attention",)), ("decoder", ("attention", "cross_attention"))):
        block = f"trunk.{stack}.blocks.{{}}"
        for part in attentions:
            maps += same_names(f"{block}.{part}.qkv.weight", f"{block}.{part}.out.weight")
        for part in (*(f"{attention}_post_norm" for attention in attentions), "ffn.up", "ffn.down", "ffn_post_norm"):
            maps += weight_and_bias(f"{block}.{part}")
    return tuple(maps)


TRANSFORMER = Family(
    name="transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    tokenizer="bpe",
    objective="translation",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 6, "dim": 512, "num_heads": 8},
        "big": {"num_layers": 6, "dim": 1024, "num_heads": 16},
    },
    num_params={},  # table 3 of the paper has 65 and 213 million, rounded
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={"Translation": ("next",), "EncoderDecoder": ()},
    base_model_prefix="trunk.",
    weight_maps=weight_maps,
    head_weight_maps={"next": ()},
    departures=(
        "Weights are initialized with a standard deviation of 1 / √fan-in; the paper does not specify it.",
        "The vocabulary is a byte-level BPE of both languages.",
    ),
)
