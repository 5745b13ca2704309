"""ModernBERT (Warner et al. 2024): encoder with rotary positions, gated feed-forward and mostly local attention."""

import math
from typing import Any, Literal

from polyseme.config import check_in_range
from polyseme.errors import ModelError
from polyseme.families import bert, hf
from polyseme.families.family import HEAD_POOLING, Family
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import ActivationName, FeedForwardConfig, LayerNormConfig, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig

WINDOW, GLOBAL_ROPE_THETA, LOCAL_ROPE_THETA = 64, 160_000.0, 10_000.0  # §2.1.2: 128 tokens in total, two rotary bases
GLOBAL_EVERY = 3


def trunk_config(
    num_layers: int = 22,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 50368,
    max_len: int = 8192,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    embedding_dropout: float | None = None,
    activation: ActivationName = "gelu",
    eps: float = 1e-5,
    init_std: float = 0.02,
    global_every: int = 0,
    window: int = WINDOW,
    rope_theta: float = GLOBAL_ROPE_THETA,
    local_rope_theta: float = LOCAL_ROPE_THETA,
    pooling: Literal["first", "mean"] = "first",
) -> TransformerConfig:
    """Pre-norm blocks without biases; the first has no norm before attention, since its input is normalized (§2.1.1).

    Every `global_every`-th block attends to the whole sequence, the others to `window` tokens on each side (§2.1.2);
    0 means 3, or 1 if `max_len` is at most 512. `ffn_dim` 0 means the parameter count of an ungated layer of 4 · dim.
    """
    check_in_range("global_every", global_every, 0, math.inf)
    for name, value in (("window", window), ("rope_theta", rope_theta), ("local_rope_theta", local_rope_theta)):
        check_in_range(name, value, 1, math.inf)
    norm = LayerNormConfig(eps, bias=False)
    embedding_dropout = dropout if embedding_dropout is None else embedding_dropout
    global_period = global_every or (1 if max_len <= 512 else GLOBAL_EVERY)
    block = TransformerBlockConfig(
        AttentionConfig(num_heads, attention_dropout, bias=False, rope_theta=rope_theta),
        FeedForwardConfig(ffn_dim or max(64, 64 * round(dim / 24)), activation, bias=False, gated=True),
        pre_norm=norm,
        dropout=dropout,
    )
    local_block = block.replace(attention=block.attention.replace(window=window, rope_theta=local_rope_theta))
    pattern = (1, *(2 if i % global_period else 0 for i in range(1, num_layers)))
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, 0, norm, embedding_dropout, position_embedding_type="none"),
        block,
        layer_to_block=tuple(range(num_layers)),
        block_variants=(block.replace(skip_attention_pre_norm=True), *([local_block] if 2 in pattern else [])),
        variant_per_block=pattern,
        final_norm=norm,
        pooler=PoolerConfig(pooling),
        init=InitConfig(init_std, init_std, truncated=True, scale_residuals=True),
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the head of masked LM."""
    vocab_size, activation = config.embeddings.vocab_size, config.block.ffn.activation
    return {"masked": LMHeadConfig(vocab_size, True, activation, config.final_norm, bias=True, dense_bias=False)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head as in `transformers`, with the dense layer and norm of the masked LM head."""
    head = ClassificationHeadConfig(labels, HEAD_POOLING[name], config.block.dropout, dense=True, dense_bias=False)
    return head.replace(activation=config.block.ffn.activation, norm=config.final_norm)


LAYER_TYPES = ("full_attention", "sliding_attention")


def _local_attention(config: ModelConfig) -> Any:
    """Return the attention of local blocks, by default if there are none."""
    default = AttentionConfig(1, window=WINDOW, rope_theta=LOCAL_ROPE_THETA)
    return next((b.attention for b in config.transformer.block_variants if b.attention.window), default)


def _rope_parameters(config: ModelConfig) -> dict[str, dict[str, Any]]:
    attentions = config.transformer.block.attention, _local_attention(config)
    return {t: {"rope_type": "default", "rope_theta": a.rope_theta} for t, a in zip(LAYER_TYPES, attentions)}


def _finish(hf_config: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Check keys that depend on others, and add the arguments that older files store differently."""
    hf.ConfigMap("classifier_activation", allowed=(hf_config.get("hidden_activation", "gelu"),)).check(hf_config)
    if hf_config.get("layer_types") is not None:
        args["global_every"] = _global_every(hf_config["layer_types"], args["num_layers"])
    return args | {
        "rope_theta": _rope_theta(hf_config, "full_attention", "global_rope_theta", GLOBAL_ROPE_THETA),
        "local_rope_theta": _rope_theta(hf_config, "sliding_attention", "local_rope_theta", LOCAL_ROPE_THETA),
    }


def _global_every(layer_types: Any, num_layers: int) -> int:
    """Return the period of layers with global attention; older files store the number instead of a list."""
    for period in range(1, num_layers + 1):
        if layer_types == [LAYER_TYPES[i % period > 0] for i in range(num_layers)]:
            return period
    raise ModelError(
        f"config.json: layer_types is {layer_types!r}, but only full_attention in every n-th layer is supported"
    )


def _rope_theta(hf_config: dict[str, Any], layer_type: str, legacy_key: str, default: float) -> float:
    """Return the base of rotary positions of a layer type; older files store it under `legacy_key`."""
    rope_parameters = hf_config.get("rope_parameters") or {}
    rope = (rope_parameters.get(layer_type) or {}) if isinstance(rope_parameters, dict) else rope_parameters
    if not isinstance(rope, dict):
        raise ModelError(
            f"config.json: rope_parameters is {rope_parameters!r}, expected settings for {' and '.join(LAYER_TYPES)}"
        )
    if rope.get("rope_type", "default") != "default":
        raise ModelError(f"config.json: rope_type is {rope['rope_type']!r}, but only 'default' is supported")
    theta: float = rope.get("rope_theta", hf_config.get(legacy_key, default))
    return theta


def _dense(head: str) -> tuple[hf.WeightMap, hf.WeightMap]:
    return (
        hf.WeightMap(f"heads.{head}.dense.weight", ("head.dense.weight",)),
        hf.WeightMap(f"heads.{head}.norm.weight", ("head.norm.weight",)),
    )


HF_ROWS = (
    *hf.required("vocab_size", hidden_size="dim", num_hidden_layers="num_layers", num_attention_heads="num_heads"),
    *hf.required(intermediate_size="ffn_dim"),
    hf.ConfigMap("hidden_activation", "activation", values=bert.ACTIVATIONS),
    hf.ConfigMap("classifier_activation", path="block.ffn.activation", values=bert.ACTIVATIONS),
    hf.ConfigMap("classifier_pooling", "pooling", "pooler.pooling", values={"first": "cls", "mean": "mean"}),
    *hf.required(max_position_embeddings="max_len"),
    hf.ConfigMap(
        "layer_types",
        path=lambda config: [LAYER_TYPES[b.attention.window > 0] for b in config.transformer.block_configs],
    ),
    hf.ConfigMap("local_attention", "window", is_required=True, default=2 * WINDOW, parse=lambda width: width // 2),
    hf.ConfigMap("rope_parameters", path=_rope_parameters),
    *hf.optional(mlp_dropout="dropout"),
    hf.ConfigMap("embedding_dropout", "embedding_dropout", default=0.0),
    *hf.optional("attention_dropout"),
    hf.ConfigMap("classifier_dropout", path="block.dropout"),
    hf.ConfigMap("norm_eps", "eps", "block.pre_norm.eps"),
    *hf.optional(initializer_range="init_std"),
    hf.ConfigMap(
        "global_attn_every_n_layers", "global_every", lambda _: None, is_required=True, default=GLOBAL_EVERY, omit=None
    ),
    # the defaults of `transformers` are ids of the published vocabulary
    *(hf.ConfigMap(f"{role}_token_id", path=lambda _: None) for role in ("pad", "bos", "eos", "cls", "sep")),
    *hf.fixed(decoder_bias=True, tie_word_embeddings=True, rope_scaling=None),
    *hf.fixed(attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False),
)
PATHS: dict[str, hf.ConfigPath] = {"window": lambda config: 2 * _local_attention(config).window}

MODERNBERT = Family(
    name="modernbert",
    paper="Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder (ModernBERT)",
    tokenizer="wordpiece",
    objective="masked LM",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "max_len": 512},
        "small": {"num_layers": 4, "dim": 512, "num_heads": 8, "max_len": 512},
        "medium": {"num_layers": 8, "dim": 512, "num_heads": 8, "max_len": 512},
        "base": {"num_layers": 22, "dim": 768, "num_heads": 12, "ffn_dim": 1152},
        "large": {"num_layers": 28, "dim": 1024, "num_heads": 16, "ffn_dim": 2624},
    },
    num_params={"base": 149_014_272, "large": 394_781_696},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    hf_config=hf.ConfigTable("modernbert", trunk_config, HF_ROWS, PATHS, _finish),
    architectures=hf.architectures("ModernBert", hf.TASKS, ForMaskedLM=("masked",)),
    base_model_prefix="model.",
    weight_maps=(
        hf.WeightMap("trunk.embeddings.tokens.weight", ("model.embeddings.tok_embeddings.weight",)),
        hf.WeightMap("trunk.embeddings.norm.weight", ("model.embeddings.norm.weight",)),
        *hf.layer_maps(
            "model.layers.{}",
            {
                "attention_pre_norm": "attn_norm",
                "attention.qkv": "attn.Wqkv",
                "attention.out": "attn.Wo",
                "ffn_pre_norm": "mlp_norm",
                "ffn.up": "mlp.Wi",
                "ffn.down": "mlp.Wo",
            },
        ),
        hf.WeightMap("trunk.final_norm.weight", ("model.final_norm.weight",)),
    ),
    head_weight_maps={
        "masked": (*_dense("masked"), hf.WeightMap("heads.masked.bias", ("decoder.bias",))),
        **{head: (*_dense(head), *hf.weight_and_bias(f"heads.{head}.linear", "classifier")) for head in HEAD_POOLING},
    },
    tied_weights={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    departures=(
        "The paper's vocabulary is a byte-level BPE with BERT's special tokens; any vocabulary with them is supported.",
        "Dropout, if not 0, applies to the output of each sublayer; in `transformers` it is inside the feed-forward.",
        "The sizes tiny, small and medium are not from the paper; all of their layers have global attention.",
        "modernbert-base and -large have the paper's first phase only (1,024 tokens), without dropout; in the authors' "
        "program it is 0.1 after attention.",
    ),
)
