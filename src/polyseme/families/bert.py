"""BERT (Devlin et al. 2019): bidirectional Transformer, masked words and next sentences."""

from __future__ import annotations

from typing import Any

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


def trunk(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30522,
    max_len: int = 512,
    num_segments: int = 2,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerSpec:
    """Post-norm blocks over the normalised sum of token, position and segment vectors (§3, appendix A.2)."""
    norm = LayerNormSpec(eps)
    return TransformerSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, num_segments, norm, dropout),
        BlockSpec(
            AttentionSpec(num_heads, attention_dropout),
            FeedForwardSpec(ffn_dim or 4 * dim, activation),
            after=norm,
            dropout=dropout,
        ),
        order=tuple(range(num_layers)),
        pooler=PoolerSpec("first", dense=True),
        init=InitSpec(init_std, init_std, truncated=True),
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    ffn = spec.block.ffn
    masked = LanguageHeadSpec(spec.embeddings.vocab_size, True, ffn.activation, spec.block.after, bias=True)
    return {"masked": masked, "pair": LabelHeadSpec(("follows", "random"))}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], 0.0 if name == "span" else spec.block.dropout)


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
    return {
        "model_type": "bert",
        "vocab_size": trunk.embeddings.vocab_size,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.num_layers,
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": block.ffn.ffn_dim,
        "hidden_act": ACTIVATIONS[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "max_position_embeddings": trunk.embeddings.max_len,
        "type_vocab_size": trunk.embeddings.num_segments,
        "layer_norm_eps": trunk.embeddings.norm.eps,
        "initializer_range": trunk.init.std,
        "position_embedding_type": "absolute",
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    return trunk(**arguments(config))


def arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What `trunk` is given for a published config: of this family, and of those that took its names over."""
    names = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    values = read_config(
        config,
        needed={
            "num_layers": "num_hidden_layers",
            "dim": "hidden_size",
            "num_heads": "num_attention_heads",
            "ffn_dim": "intermediate_size",
            "vocab_size": "vocab_size",
            "max_len": "max_position_embeddings",
        },
        fixed={
            "position_embedding_type": ["absolute"],
            "is_decoder": [False],
            "add_cross_attention": [False],
            "tie_word_embeddings": [True],
            "hidden_act": list(names),
        },
    )
    return values | {
        "num_segments": config.get("type_vocab_size", 2),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
        "activation": names[config.get("hidden_act", "gelu")],
        "eps": config.get("layer_norm_eps", 1e-12),
        "init_std": config.get("initializer_range", 0.02),
    }


def _layer(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return both(f"trunk.blocks.{{}}.{ours}", f"bert.encoder.layer.{{}}.{theirs}")


def _qkv(what: str) -> Rule:
    base = "bert.encoder.layer.{}.attention.self"
    return Rule(
        f"trunk.blocks.{{}}.attention.qkv.{what}",
        (f"{base}.query.{what}", f"{base}.key.{what}", f"{base}.value.{what}"),
        "stack",
    )


RULES = (
    Rule("trunk.embeddings.tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
    Rule("trunk.embeddings.positions.weight", ("bert.embeddings.position_embeddings.weight",)),
    Rule("trunk.embeddings.segments.weight", ("bert.embeddings.token_type_embeddings.weight",)),
    *both("trunk.embeddings.norm", "bert.embeddings.LayerNorm"),
    _qkv("weight"),
    _qkv("bias"),
    *_layer("attention.out", "attention.output.dense"),
    *_layer("attention_after", "attention.output.LayerNorm"),
    *_layer("ffn.up", "intermediate.dense"),
    *_layer("ffn.down", "output.dense"),
    *_layer("ffn_after", "output.LayerNorm"),
    *both("trunk.pooler.dense", "bert.pooler.dense"),
)

BERT = Family(
    name="bert",
    paper="Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers",
    tokenizer="wordpiece",
    objective="masked LM + next sentence",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "mini": {"num_layers": 4, "dim": 256, "num_heads": 4},
        "small": {"num_layers": 4, "dim": 512, "num_heads": 8},
        "medium": {"num_layers": 8, "dim": 512, "num_heads": 8},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
        "xlarge": {"num_layers": 24, "dim": 2048, "num_heads": 32},
        "multilingual": {"num_layers": 12, "dim": 768, "num_heads": 12, "vocab_size": 119547},
    },
    published={
        "base": 109_482_240,
        "large": 335_141_888,
        "xlarge": 1_276_360_704,
        "multilingual": 177_853_440,
    },
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "BertForPreTraining": ("masked", "pair"),
        "BertForMaskedLM": ("masked",),
        "BertForNextSentencePrediction": ("pair",),
        "BertForSequenceClassification": ("classify",),
        "BertForTokenClassification": ("tag",),
        "BertForQuestionAnswering": ("span",),
        "BertForMultipleChoice": ("choice",),
        "BertModel": (),
    },
    prefix="bert.",
    rules=RULES,
    head_rules={
        "masked": (
            *both("heads.masked.dense", "cls.predictions.transform.dense"),
            *both("heads.masked.norm", "cls.predictions.transform.LayerNorm"),
            Rule("heads.masked.bias", ("cls.predictions.bias",)),
        ),
        "pair": both("heads.pair.linear", "cls.seq_relationship"),
        "classify": both("heads.classify.linear", "classifier"),
        "tag": both("heads.tag.linear", "classifier"),
        "span": both("heads.span.linear", "qa_outputs"),
        "choice": both("heads.choice.linear", "classifier"),
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    optional=("trunk.pooler.",),
    ignored=("embeddings.position_ids",),
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    departures=(
        "Masks are drawn per token with probability 15 %, not as an exact share of each sequence.",
        "The sentences that a random B displaces are not used again within the epoch.",
    ),
)
