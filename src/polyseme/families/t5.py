"""T5 (Raffel et al. 2020): encoder and decoder, text in and text out; and its second version, v1.1."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import READS, Family, Rule, read_config
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.attention.score_bias import BucketBiasSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardSpec
from polyseme.nn.layers.norms import RMSNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
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
    tied: bool = True,
    scaled: bool | None = None,
    num_buckets: int = 32,
    max_distance: int = 128,
    eps: float = 1e-6,
    init_std: float = 1.0,
    decoder: bool = True,
) -> EncoderDecoderSpec:
    """Pre-norm stacks without any bias vector, scores neither scaled nor aware of places but by buckets (§2.1).

    v1.1 is `gated` with its output matrix not `tied`; where it is, states are `scaled` by 1 / √dim before it.
    """
    norm = RMSNormSpec(eps)
    init = InitSpec(init_std, init_std * dim**-0.5, fan_in=True, token_std=init_std)

    def stack(depth: int, decodes: bool) -> TransformerSpec:
        def attention(causal: bool) -> AttentionSpec:
            chance = dropout if attention_dropout is None else attention_dropout
            return AttentionSpec(num_heads, chance, bias=False, causal=causal, head_dim=head_dim, scale=1.0)

        return TransformerSpec(
            EmbeddingsSpec(vocab_size, dim, max_len, dropout=dropout, positions="none", shared=decodes),
            BlockSpec(
                attention(decodes),
                FeedForwardSpec(ffn_dim or 4 * dim, activation, False, gated, dropout),
                before=norm,
                dropout=dropout,
                cross=attention(False) if decodes else None,
            ),
            order=tuple(range(depth)),
            final_norm=norm,
            pooler=PoolerSpec("last"),
            init=init,
            relations=BucketBiasSpec(num_heads, decodes, num_buckets, max_distance),
            final_dropout=dropout,
        )

    return EncoderDecoderSpec(
        stack(num_layers, False),
        stack(num_decoder_layers or num_layers, True) if decoder else None,
        tied,
        dim**-0.5 if (tied if scaled is None else scaled) else 1.0,
        init,
    )


def heads(spec: EncoderDecoderSpec) -> dict[str, HeadSpec]:
    if spec.decoder is None:
        return {}
    return {"next": LanguageHeadSpec(spec.embeddings.vocab_size, tied=spec.tied, scale=spec.output_scale)}


def label_head(name: str, labels: tuple[str, ...], spec: EncoderDecoderSpec) -> HeadSpec:
    """On the encoder's states; of the whole sequence, that of its end mark."""
    return LabelHeadSpec(labels, READS[name], spec.block.dropout)


# activation, gated -> what a config calls both; their gated gelu is the tanh form
FEED_FORWARDS: dict[tuple[ActivationName, bool], str] = {
    ("relu", False): "relu",
    ("gelu_tanh", True): "gated-gelu",
    ("relu", True): "gated-relu",
    ("gelu", False): "gelu",
    ("gelu_tanh", False): "gelu_new",
}
# tied, scaled
OUTPUTS: dict[tuple[bool, bool], dict[str, bool]] = {
    (True, True): {"tie_word_embeddings": True},
    (False, False): {"tie_word_embeddings": False},
    (True, False): {"tie_word_embeddings": True, "scale_decoder_outputs": False},
}


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, EncoderDecoderSpec) and isinstance(trunk.encoder, TransformerSpec)
    block, bias, norm, decoder = trunk.block, trunk.encoder.relations, trunk.block.before, trunk.decoder
    assert isinstance(bias, BucketBiasSpec) and isinstance(norm, RMSNormSpec)
    return {
        **({} if decoder else {"architectures": ["T5EncoderModel"]}),
        "model_type": "t5",
        "vocab_size": trunk.embeddings.vocab_size,
        "d_model": trunk.dim,
        "d_kv": block.attention.width(trunk.dim) // block.attention.num_heads,
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
        **OUTPUTS[trunk.tied, trunk.output_scale != 1],
    }


def from_config(config: dict[str, Any]) -> EncoderDecoderSpec:
    names = {theirs: ours for ours, theirs in FEED_FORWARDS.items()}
    values = read_config(
        config,
        needed={
            "num_layers": "num_layers",
            "dim": "d_model",
            "num_heads": "num_heads",
            "ffn_dim": "d_ff",
            "vocab_size": "vocab_size",
            "head_dim": "d_kv",
        },
        fixed={"feed_forward_proj": ["relu", *names]},
    )
    if values["head_dim"] * values["num_heads"] == values["dim"]:
        values["head_dim"] = 0
    activation, gated = names[config.get("feed_forward_proj", "relu")]
    # newer files of v1.1 call themselves tied whatever they hold, and say apart that outputs are not scaled
    ties = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", ties)
    decoders = config.get("num_decoder_layers") or values["num_layers"]
    return trunk(
        **values,
        max_len=config.get("n_positions", 512),
        dropout=config.get("dropout_rate", 0.1),
        num_decoder_layers=0 if decoders == values["num_layers"] else decoders,
        activation=activation,
        gated=gated,
        tied=ties and (scaled or "lm_head.weight" not in config.get("tensors", ())),
        scaled=scaled,
        num_buckets=config.get("relative_attention_num_buckets", 32),
        max_distance=config.get("relative_attention_max_distance", 128),
        eps=config.get("layer_norm_epsilon", 1e-6),
        init_std=float(config.get("initializer_factor", 1.0)),
        decoder=config.get("architectures") != ["T5EncoderModel"],
    )


def rules(spec: ModelSpec) -> tuple[Rule, ...]:
    found = [Rule("trunk.encoder.embeddings.tokens.weight", ("shared.weight",))]
    gated = spec.transformer.block.ffn.gated
    for stack, parts in (("encoder", (0, None, 1)), ("decoder", (0, 1, 2))):
        ours, theirs = f"trunk.{stack}", f"{stack}.block.{{}}.layer"
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found.append(Rule(f"{ours}.relations.positions.weight", (table,)))
        found.append(Rule(f"{ours}.final_norm.weight", (f"{stack}.final_layer_norm.weight",)))
        for what, part in zip(("attention", "cross", "ffn"), parts):
            if part is None:
                continue
            block, layer = f"{ours}.blocks.{{}}", f"{theirs}.{part}"
            found.append(Rule(f"{block}.{what}_before.weight", (f"{layer}.layer_norm.weight",)))
            if what == "ffn":
                dense = f"{layer}.DenseReluDense"
                ups = (f"{dense}.wi_0.weight", f"{dense}.wi_1.weight") if gated else (f"{dense}.wi.weight",)
                found.append(Rule(f"{block}.ffn.up.weight", ups, "stack" if gated else "same"))
                found.append(Rule(f"{block}.ffn.down.weight", (f"{dense}.wo.weight",)))
                continue
            inner = f"{layer}.{'SelfAttention' if what == 'attention' else 'EncDecAttention'}"
            q, k, v, o = (f"{inner}.{name}.weight" for name in "qkvo")
            found += [Rule(f"{block}.{what}.qkv.weight", (q, k, v), "stack"), Rule(f"{block}.{what}.out.weight", (o,))]
    return tuple(found)


_V11 = {"gated": True, "activation": "gelu_tanh", "tied": False}
T5 = Family(
    name="t5",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    tokenizer="unigram",
    objective="span corruption",
    trunk=trunk,
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
    published={
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
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "T5ForConditionalGeneration": ("next",),
        "T5Model": (),
        "T5EncoderModel": (),
    },
    prefix="",
    rules=rules,
    head_rules={"next": (Rule("heads.next.own.weight", ("lm_head.weight",)),)},
    tied={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    ignored=(".EncDecAttention.relative_attention_bias.weight",),
    departures=(
        "A model reads at most `max_len` tokens, though its positions have no end.",
        "The untied output matrix of v1.1 starts at 1 / √dim, not at 1.",
    ),
    start="pad",
    sentinels=100,
    # tags stay with a head: written as text, one word too many or too few would shift all that follow
    writes=("classification", "pair", "regression", "choice", "span"),
)
