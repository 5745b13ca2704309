"""T5 (Raffel et al. 2020) and T5 v1.1: text-to-text encoder-decoder."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.attention.score_bias import BucketedRelativeBiasConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardConfig
from polyseme.nn.layers.norms import RMSNormConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 32128,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    head_dim: int = 0,
    num_decoder_layers: int = 0,
    activation: ActivationName = "relu",
    gated: bool = False,
    tie_word_embeddings: bool = True,
    scale_outputs: bool | None = None,
    num_buckets: int = 32,
    max_distance: int = 128,
    eps: float = 1e-6,
    init_std: float = 1.0,
    has_decoder: bool = True,
) -> EncoderDecoderConfig:
    """Pre-norm stacks without bias vectors, with unscaled scores and bucketed relative positions (§2.1).

    v1.1 is `gated` and without `tie_word_embeddings`. `scale_outputs` multiplies the final states by 1 / √dim; by
    default only with tied embeddings.
    """
    norm = RMSNormConfig(eps)
    init = InitConfig(init_std, init_std * dim**-0.5, scale_by_fan_in=True, token_std=init_std)

    def stack(stack_layers: int, is_decoder: bool) -> TransformerConfig:
        def attention(is_causal: bool) -> AttentionConfig:
            prob = dropout if attention_dropout is None else attention_dropout
            return AttentionConfig(num_heads, prob, bias=False, causal=is_causal, head_dim=head_dim, scale=1.0)

        return TransformerConfig(
            EmbeddingsConfig(
                vocab_size, dim, max_len, dropout=dropout, position_embedding_type="none", tied_to_encoder=is_decoder
            ),
            TransformerBlockConfig(
                attention(is_decoder),
                FeedForwardConfig(ffn_dim or 4 * dim, activation, False, gated, dropout),
                pre_norm=norm,
                dropout=dropout,
                cross_attention=attention(False) if is_decoder else None,
            ),
            layer_to_block=tuple(range(stack_layers)),
            final_norm=norm,
            pooler=PoolerConfig("last"),
            init=init,
            position_bias=BucketedRelativeBiasConfig(num_heads, is_decoder, num_buckets, max_distance),
            final_dropout=dropout,
        )

    return EncoderDecoderConfig(
        stack(num_layers, False),
        stack(num_decoder_layers or num_layers, True) if has_decoder else None,
        tie_word_embeddings,
        dim**-0.5 if (tie_word_embeddings if scale_outputs is None else scale_outputs) else 1.0,
        init,
    )


def pretraining_heads(config: EncoderDecoderConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    if config.decoder is None:
        return {}
    return {
        "next": LMHeadConfig(
            config.embeddings.vocab_size, tie_word_embeddings=config.tie_word_embeddings, scale=config.output_scale
        )
    }


def task_head(name: str, labels: tuple[str, ...], config: EncoderDecoderConfig) -> HeadConfig:
    """Return a task's head over the encoder; the sequence is pooled to its last state, that of `</s>`."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], config.block.dropout)


# (activation, gated) -> published name; its gated-gelu is the tanh approximation
FEED_FORWARDS: dict[tuple[ActivationName, bool], str] = {
    ("relu", False): "relu",
    ("gelu_tanh", True): "gated-gelu",
    ("relu", True): "gated-relu",
    ("gelu", False): "gelu",
    ("gelu_tanh", False): "gelu_new",
}
# (tied, scaled) -> published keys
OUTPUTS: dict[tuple[bool, bool], dict[str, bool]] = {
    (True, True): {"tie_word_embeddings": True},
    (False, False): {"tie_word_embeddings": False},
    (True, False): {"tie_word_embeddings": True, "scale_decoder_outputs": False},
}


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk = config.trunk
    assert isinstance(trunk, EncoderDecoderConfig) and isinstance(trunk.encoder, TransformerConfig)
    block, bias, norm, decoder = trunk.block, trunk.encoder.position_bias, trunk.block.pre_norm, trunk.decoder
    assert isinstance(bias, BucketedRelativeBiasConfig) and isinstance(norm, RMSNormConfig)
    return {
        **({} if decoder else {"architectures": ["T5EncoderModel"]}),
        "model_type": "t5",
        "vocab_size": trunk.embeddings.vocab_size,
        "d_model": trunk.dim,
        "d_kv": block.attention.inner_dim(trunk.dim) // block.attention.num_heads,
        "d_ff": block.ffn.ffn_dim,
        "num_layers": trunk.num_layers,
        "num_decoder_layers": decoder.num_layers if decoder else trunk.num_layers,
        "num_heads": block.attention.num_heads,
        "n_positions": trunk.embeddings.max_len,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "feed_forward_proj": FEED_FORWARDS[block.ffn.activation, block.ffn.gated],
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": norm.eps,
        "initializer_factor": trunk.init.std,
        "is_encoder_decoder": decoder is not None,
        **OUTPUTS[trunk.tie_word_embeddings, trunk.output_scale != 1],
    }


def from_hf_config(hf_config: dict[str, Any]) -> EncoderDecoderConfig:
    """Return the trunk's config from a `config.json`."""
    feed_forwards = {published: feed_forward for feed_forward, published in FEED_FORWARDS.items()}
    values = read_hf_config(
        hf_config,
        int_fields={
            "num_layers": "num_layers",
            "dim": "d_model",
            "num_heads": "num_heads",
            "ffn_dim": "d_ff",
            "vocab_size": "vocab_size",
            "head_dim": "d_kv",
        },
        allowed_values={"feed_forward_proj": ["relu", *feed_forwards]},
    )
    if values["head_dim"] * values["num_heads"] == values["dim"]:
        values["head_dim"] = 0
    activation, gated = feed_forwards[hf_config.get("feed_forward_proj", "relu")]
    # newer v1.1 configs always have tie_word_embeddings true, and scale_decoder_outputs false
    is_tied = hf_config.get("tie_word_embeddings", True)
    is_scaled = hf_config.get("scale_decoder_outputs", is_tied)
    num_decoder_layers = hf_config.get("num_decoder_layers") or values["num_layers"]
    return trunk_config(
        **values,
        max_len=hf_config.get("n_positions", 512),
        dropout=hf_config.get("dropout_rate", 0.1),
        num_decoder_layers=0 if num_decoder_layers == values["num_layers"] else num_decoder_layers,
        activation=activation,
        gated=gated,
        tie_word_embeddings=is_tied and (is_scaled or "lm_head.weight" not in hf_config.get("tensors", ())),
        scale_outputs=is_scaled,
        num_buckets=hf_config.get("relative_attention_num_buckets", 32),
        max_distance=hf_config.get("relative_attention_max_distance", 128),
        eps=hf_config.get("layer_norm_epsilon", 1e-6),
        init_std=float(hf_config.get("initializer_factor", 1.0)),
        has_decoder=hf_config.get("architectures") != ["T5EncoderModel"],
    )


def weight_maps(config: ModelConfig) -> tuple[WeightMap, ...]:
    """Return the weight maps of both stacks."""
    maps = [WeightMap("trunk.encoder.embeddings.tokens.weight", ("shared.weight",))]
    is_gated = config.transformer.block.ffn.gated
    for stack, layer_numbers in (("encoder", (0, None, 1)), ("decoder", (0, 1, 2))):
        prefix, published_prefix = f"trunk.{stack}", f"{stack}.block.{{}}.layer"
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        maps.append(WeightMap(f"{prefix}.position_bias.positions.weight", (table,)))
        maps.append(WeightMap(f"{prefix}.final_norm.weight", (f"{stack}.final_layer_norm.weight",)))
        for sublayer, layer_number in zip(("attention", "cross_attention", "ffn"), layer_numbers):
            if layer_number is None:
                continue
            block, layer = f"{prefix}.blocks.{{}}", f"{published_prefix}.{layer_number}"
            maps.append(WeightMap(f"{block}.{sublayer}_pre_norm.weight", (f"{layer}.layer_norm.weight",)))
            if sublayer == "ffn":
                dense = f"{layer}.DenseReluDense"
                up_names = (f"{dense}.wi_0.weight", f"{dense}.wi_1.weight") if is_gated else (f"{dense}.wi.weight",)
                maps.append(WeightMap(f"{block}.ffn.up.weight", up_names, "concat" if is_gated else "same"))
                maps.append(WeightMap(f"{block}.ffn.down.weight", (f"{dense}.wo.weight",)))
                continue
            published_attention = f"{layer}.{'SelfAttention' if sublayer == 'attention' else 'EncDecAttention'}"
            q, k, v, o = (f"{published_attention}.{name}.weight" for name in "qkvo")
            maps += [
                WeightMap(f"{block}.{sublayer}.qkv.weight", (q, k, v), "concat"),
                WeightMap(f"{block}.{sublayer}.out.weight", (o,)),
            ]
    return tuple(maps)


_V11 = {"gated": True, "activation": "gelu_tanh", "tie_word_embeddings": False}
T5 = Family(
    name="t5",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    tokenizer="unigram",
    objective="span corruption",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "small": {"num_layers": 6, "dim": 512, "num_heads": 8},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
        "3b": {"num_layers": 24, "dim": 1024, "num_heads": 32, "ffn_dim": 16384, "head_dim": 128},
        "11b": {"num_layers": 24, "dim": 1024, "num_heads": 128, "ffn_dim": 65536, "head_dim": 128},
        "v1.1-small": {"num_layers": 8, "dim": 512, "num_heads": 6, "ffn_dim": 1024, "head_dim": 64, **_V11},
        "v1.1-base": {"num_layers": 12, "dim": 768, "num_heads": 12, "ffn_dim": 2048, **_V11},
        "v1.1-large": {"num_layers": 24, "dim": 1024, "num_heads": 16, "ffn_dim": 2816, **_V11},
        "v1.1-xl": {"num_layers": 24, "dim": 2048, "num_heads": 32, "ffn_dim": 5120, **_V11},
        "v1.1-xxl": {"num_layers": 24, "dim": 4096, "num_heads": 64, "ffn_dim": 10240, **_V11},
    },
    num_params={
        "small": 60_506_624,
        "base": 222_903_552,
        "large": 737_668_096,
        "3b": 2_851_598_336,
        "11b": 11_307_321_344,
        "v1.1-small": 60_511_616,
        "v1.1-base": 222_903_552,
        "v1.1-large": 750_251_008,
        "v1.1-xl": 2_783_959_040,
        "v1.1-xxl": 11_003_736_064,
    },
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "T5ForConditionalGeneration": ("next",),
        "T5Model": (),
        "T5EncoderModel": (),
    },
    base_model_prefix="",
    weight_maps=weight_maps,
    head_weight_maps={"next": (WeightMap("heads.next.decoder.weight", ("lm_head.weight",)),)},
    tied_weights={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    ignored_weights=(".EncDecAttention.relative_attention_bias.weight",),
    departures=(
        "A model reads at most `max_len` tokens, although relative positions impose no limit.",
        "The untied output matrix of v1.1 is initialized with a standard deviation of 1 / √dim, not 1.",
    ),
    decoder_start_token="pad",
    num_sentinels=100,
    # tagging uses a head: in generated text, one missing or extra tag would shift all that follow
    is_text_to_text=True,
)
