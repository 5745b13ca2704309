"""T5 (Raffel et al. 2020) and T5 v1.1: text-to-text encoder-decoder."""

from typing import Any

from polyseme.families import hf
from polyseme.families.family import Family, transformer_sizes
from polyseme.nn.attention.multihead import AttentionConfig, BucketedRelativeBiasConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName, FeedForwardConfig, RMSNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
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
    """Return the head of the decoder, if there is one."""
    head = LMHeadConfig(config.embeddings.vocab_size, scale=config.output_scale)
    return {"next": head.replace(tie_word_embeddings=config.tie_word_embeddings)} if config.decoder else {}


# (activation, gated) -> published name; its gated-gelu is the tanh approximation
FEED_FORWARDS: dict[tuple[ActivationName, bool], str] = {
    ("relu", False): "relu",
    ("gelu_tanh", True): "gated-gelu",
    ("relu", True): "gated-relu",
    ("gelu", False): "gelu",
    ("gelu_tanh", False): "gelu_new",
}
# (tied, scaled) -> scale_decoder_outputs, omitted if equal to tie_word_embeddings
SCALE_DECODER_OUTPUTS = {(True, True): None, (False, False): None, (True, False): False}


def _head_dim(config: Any) -> int:
    trunk = config.trunk
    return trunk.block.attention.inner_dim(trunk.dim) // trunk.num_heads


def _finish(hf_config: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Add the arguments that depend on several keys; default sizes become 0, as in the published sizes."""
    if args["head_dim"] * args["num_heads"] == args["dim"]:
        args["head_dim"] = 0
    if args.get("num_decoder_layers") in (None, args["num_layers"]):
        args["num_decoder_layers"] = 0
    activation, gated = args.pop("feed_forward", ("relu", False))
    # newer v1.1 configs always have tie_word_embeddings true, and scale_decoder_outputs false
    is_tied = hf_config.get("tie_word_embeddings", True)
    is_scaled = hf_config.get("scale_decoder_outputs", is_tied)
    return args | {
        "activation": activation,
        "gated": gated,
        "tie_word_embeddings": is_tied and (is_scaled or "lm_head.weight" not in hf_config.get("tensors", ())),
        "scale_outputs": is_scaled,
        "has_decoder": hf_config.get("architectures") != ["T5EncoderModel"],
    }


HF_ROWS = (
    hf.ConfigMap("architectures", path=lambda config: None if config.trunk.decoder else ["T5EncoderModel"], omit=None),
    *hf.required("vocab_size", d_model="dim", d_kv="head_dim", d_ff="ffn_dim"),
    *hf.required("num_layers"),
    *hf.optional("num_decoder_layers"),
    *hf.required("num_heads"),
    *hf.optional(n_positions="max_len", relative_attention_num_buckets="num_buckets"),
    *hf.optional(relative_attention_max_distance="max_distance"),
    hf.ConfigMap("feed_forward_proj", "feed_forward", values=FEED_FORWARDS),
    *hf.optional(dropout_rate="dropout", layer_norm_epsilon="eps"),
    hf.ConfigMap("initializer_factor", "init_std", parse=float),
    hf.ConfigMap("is_encoder_decoder", path=lambda config: config.trunk.decoder is not None),
    hf.ConfigMap("tie_word_embeddings", path="tie_word_embeddings"),
    hf.ConfigMap(
        "scale_decoder_outputs",
        path=lambda config: SCALE_DECODER_OUTPUTS[config.trunk.tie_word_embeddings, config.trunk.output_scale != 1],
        omit=None,
    ),
)
PATHS: dict[str, hf.ConfigPath] = {
    "head_dim": _head_dim,
    "num_decoder_layers": lambda config: (config.trunk.decoder or config.trunk).num_layers,
    "feed_forward": lambda config: (config.trunk.block.ffn.activation, config.trunk.block.ffn.gated),
    "num_buckets": "encoder.position_bias.num_buckets",
    "max_distance": "encoder.position_bias.max_distance",
    "eps": "block.pre_norm.eps",
}


def weight_maps(config: ModelConfig) -> tuple[hf.WeightMap, ...]:
    """Return the weight maps of both stacks."""
    maps = [hf.WeightMap("trunk.encoder.embeddings.tokens.weight", ("shared.weight",))]
    up_layers = ("wi_0", "wi_1") if config.transformer.block.ffn.gated else ("wi",)

    def add(name: str, layer: str, *published: str) -> None:
        names = tuple(f"{layer}.{part}.weight" for part in published)
        maps.append(hf.WeightMap(f"{name}.weight", names, "concat" if len(names) > 1 else "same"))

    for stack, sublayers in (("encoder", ("attention", "ffn")), ("decoder", ("attention", "cross_attention", "ffn"))):
        attention = f"{stack}.block.0.layer.0.SelfAttention"
        add(f"trunk.{stack}.position_bias.positions", attention, "relative_attention_bias")
        add(f"trunk.{stack}.final_norm", stack, "final_layer_norm")
        for i, sublayer in enumerate(sublayers):
            name, layer = f"trunk.{stack}.blocks.{{}}.{sublayer}", f"{stack}.block.{{}}.layer.{i}"
            add(f"{name}_pre_norm", layer, "layer_norm")
            if sublayer == "ffn":
                add(f"{name}.up", f"{layer}.DenseReluDense", *up_layers)
                add(f"{name}.down", f"{layer}.DenseReluDense", "wo")
            else:
                attention = f"{layer}.{'SelfAttention' if sublayer == 'attention' else 'EncDecAttention'}"
                add(f"{name}.qkv", attention, "q", "k", "v")
                add(f"{name}.out", attention, "o")
    return tuple(maps)


_V11 = {"gated": True, "activation": "gelu_tanh", "tie_word_embeddings": False}
T5 = Family(
    name="t5",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    tokenizer="unigram",
    objective="span corruption",
    trunk_config=trunk_config,
    sizes={
        **transformer_sizes(tiny=(2, 128, 2), small=(6, 512, 8), base=(12, 768, 12), large=(24, 1024, 16)),
        "3b": {"num_layers": 24, "dim": 1024, "num_heads": 32, "ffn_dim": 16384, "head_dim": 128},
        "11b": {"num_layers": 24, "dim": 1024, "num_heads": 128, "ffn_dim": 65536, "head_dim": 128},
        "v1.1-small": {"num_layers": 8, "dim": 512, "num_heads": 6, "ffn_dim": 1024, "head_dim": 64, **_V11},
        "v1.1-base": {"num_layers": 12, "dim": 768, "num_heads": 12, "ffn_dim": 2048, **_V11},
        "v1.1-large": {"num_layers": 24, "dim": 1024, "num_heads": 16, "ffn_dim": 2816, **_V11},
        "v1.1-xl": {"num_layers": 24, "dim": 2048, "num_heads": 32, "ffn_dim": 5120, **_V11},
        "v1.1-xxl": {"num_layers": 24, "dim": 4096, "num_heads": 64, "ffn_dim": 10240, **_V11},
    },
    num_params={
        **{"small": 60_506_624, "base": 222_903_552, "large": 737_668_096, "3b": 2_851_598_336, "11b": 11_307_321_344},
        **{"v1.1-small": 60_511_616, "v1.1-base": 222_903_552, "v1.1-large": 750_251_008},
        **{"v1.1-xl": 2_783_959_040, "v1.1-xxl": 11_003_736_064},
    },
    pretraining_heads=pretraining_heads,
    hf_config=hf.ConfigTable("t5", trunk_config, HF_ROWS, PATHS, _finish),
    architectures={"T5ForConditionalGeneration": ("next",), "T5Model": (), "T5EncoderModel": ()},
    base_model_prefix="",
    weight_maps=weight_maps,
    head_weight_maps={"next": (hf.WeightMap("heads.next.decoder.weight", ("lm_head.weight",)),)},
    tied_weights=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
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
