"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, gated layers and mostly local attention."""

from __future__ import annotations

import math
from typing import Any, Literal

from polyseme.config import in_range
from polyseme.errors import UserError
from polyseme.families.family import READS, Family, Rule, both, read_config
from polyseme.nn.attention.multihead import AttentionSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.block import BlockSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName, FeedForwardSpec
from polyseme.nn.layers.norms import LayerNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec

WINDOW, GLOBAL_BASE, LOCAL_BASE = 64, 160_000.0, 10_000.0  # §2.1.2: 128 tokens in all, and two rotary bases
EVERY = 3


def trunk(
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
    rotary: float = GLOBAL_BASE,
    local_rotary: float = LOCAL_BASE,
    pooling: Literal["first", "mean"] = "first",
) -> TransformerSpec:
    """Pre-norm blocks without biases; the first has no norm before attention, its input is normed (§2.1.1).

    Every `global_every`-th block sees the whole sequence, the others `window` tokens on each side (§2.1.2); 0 is 3, or
    1 where sequences have at most 512 tokens. A gated layer of `ffn_dim` 0 has the weights of a plain one of 4 · dim.
    """
    in_range("global_every", global_every, 0, math.inf)
    in_range("window", window, 1, math.inf)
    in_range("rotary", rotary, 1, math.inf)
    in_range("local_rotary", local_rotary, 1, math.inf)
    norm = LayerNormSpec(eps, bias=False)
    every = global_every or (1 if max_len <= 512 else EVERY)
    block = BlockSpec(
        AttentionSpec(num_heads, attention_dropout, bias=False, rotary=rotary),
        FeedForwardSpec(ffn_dim or max(64, 64 * round(dim / 24)), activation, bias=False, gated=True),
        before=norm,
        dropout=dropout,
    )
    local = block.replace(attention=block.attention.replace(window=window, rotary=local_rotary))
    pattern = (1, *(2 if i % every else 0 for i in range(1, num_layers)))
    return TransformerSpec(
        EmbeddingsSpec(
            vocab_size,
            dim,
            max_len,
            norm=norm,
            dropout=dropout if embedding_dropout is None else embedding_dropout,
            positions="none",
        ),
        block,
        order=tuple(range(num_layers)),
        variants=(block.replace(bare=True), *([local] if 2 in pattern else [])),
        pattern=pattern,
        final_norm=norm,
        pooler=PoolerSpec(pooling),
        init=InitSpec(init_std, init_std, truncated=True, scale_residuals=True),
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    size, activation = spec.embeddings.vocab_size, spec.block.ffn.activation
    return {"masked": LanguageHeadSpec(size, True, activation, spec.final_norm, bias=True, dense_bias=False)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    """As `transformers` has them: pre-training's dense layer and norm come before the labels too."""
    return LabelHeadSpec(
        labels,
        READS[name],
        spec.block.dropout,
        dense=True,
        dense_bias=False,
        activation=spec.block.ffn.activation,
        norm=spec.final_norm,
    )


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
POOLING = {"first": "cls", "mean": "mean"}
LAYERS = ("full_attention", "sliding_attention")


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
    activation = ACTIVATIONS[block.ffn.activation]
    local = next((b.attention for b in trunk.variants if b.attention.window), None)
    bases = (block.attention.rotary, local.rotary if local else LOCAL_BASE)
    return {
        "model_type": "modernbert",
        "vocab_size": trunk.embeddings.vocab_size,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.num_layers,
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": block.ffn.ffn_dim,
        "hidden_activation": activation,
        "classifier_activation": activation,
        "classifier_pooling": POOLING[trunk.pooler.place],
        "max_position_embeddings": trunk.embeddings.max_len,
        "layer_types": [LAYERS[b.attention.window > 0] for b in trunk.blocks],
        "local_attention": 2 * (local.window if local else WINDOW),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(LAYERS, bases, strict=True)
        },
        "mlp_dropout": block.dropout,
        "embedding_dropout": trunk.embeddings.dropout,
        "attention_dropout": block.attention.dropout,
        "classifier_dropout": block.dropout,
        "norm_eps": block.before.eps,
        "initializer_range": trunk.init.std,
        **{
            f"{role}_token_id": None for role in ("pad", "bos", "eos", "cls", "sep")
        },  # else those of its own vocabulary
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    names = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    pooling: dict[str, Any] = {theirs: ours for ours, theirs in POOLING.items()}
    activation = config.get("hidden_activation", "gelu")
    values = read_config(
        {"local_attention": 2 * WINDOW, "global_attn_every_n_layers": EVERY, **config},
        needed={
            "num_layers": "num_hidden_layers",
            "dim": "hidden_size",
            "num_heads": "num_attention_heads",
            "ffn_dim": "intermediate_size",
            "vocab_size": "vocab_size",
            "max_len": "max_position_embeddings",
            "window": "local_attention",
            "global_every": "global_attn_every_n_layers",
        },
        fixed={
            "hidden_activation": list(names),
            "classifier_activation": [activation],
            "classifier_pooling": list(pooling),
            "decoder_bias": [True],
            "tie_word_embeddings": [True],
            "rope_scaling": [None],
            **{f"{part}_bias": [False] for part in ("attention", "mlp", "norm", "classifier")},
        },
    )
    values["window"] //= 2
    if config.get("layer_types") is not None:
        values["global_every"] = _global_every(config["layer_types"], values["num_layers"])
    return trunk(
        **values,
        dropout=config.get("mlp_dropout", 0.0),
        attention_dropout=config.get("attention_dropout", 0.0),
        embedding_dropout=config.get("embedding_dropout", 0.0),
        activation=names[activation],
        eps=config.get("norm_eps", 1e-5),
        init_std=config.get("initializer_range", 0.02),
        rotary=_base(config, "full_attention", "global_rope_theta", GLOBAL_BASE),
        local_rotary=_base(config, "sliding_attention", "local_rope_theta", LOCAL_BASE),
        pooling=pooling[config.get("classifier_pooling", "cls")],
    )


def _global_every(kinds: Any, num_layers: int) -> int:
    """Every how many layers attention is global, from the list of layers; older files have the number itself."""
    for every in range(1, num_layers + 1):
        if kinds == [LAYERS[i % every > 0] for i in range(num_layers)]:
            return every
    raise UserError(f"config.json: layer_types is {kinds!r}, but only full_attention in every n-th layer is supported")


def _base(config: dict[str, Any], kind: str, older: str, usual: float) -> float:
    """The base of rotary positions of one kind of layers, which older files have under a name of its own."""
    kinds = config.get("rope_parameters") or {}
    found = (kinds.get(kind) or {}) if isinstance(kinds, dict) else kinds
    if not isinstance(found, dict):
        raise UserError(f"config.json: rope_parameters is {kinds!r}, expected settings for {' and '.join(LAYERS)}")
    if found.get("rope_type", "default") != "default":
        raise UserError(f"config.json: rope_type is {found['rope_type']!r}, but only 'default' is supported")
    base: float = found.get("rope_theta", config.get(older, usual))
    return base


def _layer(ours: str, theirs: str) -> Rule:
    return Rule(f"trunk.blocks.{{}}.{ours}.weight", (f"model.layers.{{}}.{theirs}.weight",))


def _dense(head: str) -> tuple[Rule, Rule]:
    return (
        Rule(f"heads.{head}.dense.weight", ("head.dense.weight",)),
        Rule(f"heads.{head}.norm.weight", ("head.norm.weight",)),
    )


MODERN = Family(
    name="modern",
    model_type="modernbert",
    paper="Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder (ModernBERT)",
    tokenizer="wordpiece",
    objective="masked LM",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "max_len": 512},
        "small": {"num_layers": 4, "dim": 512, "num_heads": 8, "max_len": 512},
        "medium": {"num_layers": 8, "dim": 512, "num_heads": 8, "max_len": 512},
        "base": {"num_layers": 22, "dim": 768, "num_heads": 12, "ffn_dim": 1152},
        "large": {"num_layers": 28, "dim": 1024, "num_heads": 16, "ffn_dim": 2624},
    },
    published={"base": 149_014_272, "large": 394_781_696},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "ModernBertForMaskedLM": ("masked",),
        "ModernBertForSequenceClassification": ("classify",),
        "ModernBertForTokenClassification": ("tag",),
        "ModernBertForQuestionAnswering": ("span",),
        "ModernBertForMultipleChoice": ("choice",),
        "ModernBertModel": (),
    },
    prefix="model.",
    rules=(
        Rule("trunk.embeddings.tokens.weight", ("model.embeddings.tok_embeddings.weight",)),
        Rule("trunk.embeddings.norm.weight", ("model.embeddings.norm.weight",)),
        _layer("attention_before", "attn_norm"),
        _layer("attention.qkv", "attn.Wqkv"),
        _layer("attention.out", "attn.Wo"),
        _layer("ffn_before", "mlp_norm"),
        _layer("ffn.up", "mlp.Wi"),
        _layer("ffn.down", "mlp.Wo"),
        Rule("trunk.final_norm.weight", ("model.final_norm.weight",)),
    ),
    head_rules={
        "masked": (*_dense("masked"), Rule("heads.masked.bias", ("decoder.bias",))),
        **{head: (*_dense(head), *both(f"heads.{head}.linear", "classifier")) for head in READS},
    },
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    departures=(
        "The paper's vocabulary is a byte-level BPE with BERT's special tokens; any vocabulary that has them will do.",
        "Dropout, where it is not 0, is on the output of each sublayer; `transformers` has it inside the feed-forward.",
        "tiny, small and medium are sizes of this project; their attention is global in every layer.",
    ),
)
