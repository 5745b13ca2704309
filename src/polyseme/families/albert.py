"""ALBERT (Lan et al. 2020): BERT with small token vectors, one block for every layer, and sentences in order."""

from __future__ import annotations

from typing import Any, Literal, get_args

from polyseme.errors import UserError, nearest
from polyseme.families.bert import ACTIVATIONS, arguments
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

Sharing = Literal["all", "attention", "ffn", "none"]
CLASSIFIER_DROPOUT = 0.1  # of the published configs, whatever the trunk's


def trunk(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30000,
    max_len: int = 512,
    num_segments: int = 2,
    embedding_dim: int = 128,
    sharing: Sharing = "all",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu_tanh",
    eps: float = 1e-12,
    init_std: float = 0.02,
) -> TransformerSpec:
    """BERT's blocks over tables of `embedding_dim` (§3.1); `sharing` says what layers have in common (§4.5)."""
    if sharing not in get_args(Sharing):
        raise UserError(f"sharing is {sharing!r}; {nearest(str(sharing), get_args(Sharing))}")
    norm = LayerNormSpec(eps)
    one, each = (0,) * num_layers, tuple(range(num_layers))
    return TransformerSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, num_segments, norm, dropout, inner=embedding_dim),
        BlockSpec(
            AttentionSpec(num_heads, attention_dropout),
            FeedForwardSpec(ffn_dim or 4 * dim, activation),
            after=norm,
            dropout=dropout,
        ),
        order=one if sharing in ("all", "attention") else each,
        ffn_order=one if sharing in ("all", "ffn") else each,
        pooler=PoolerSpec("first", dense=True),
        init=InitSpec(init_std, init_std, truncated=True),
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    masked = LanguageHeadSpec(
        spec.embeddings.vocab_size,
        True,
        spec.block.ffn.activation,
        spec.block.after,
        bias=True,
        inner=spec.embeddings.inner,
    )
    return {"masked": masked, "pair": LabelHeadSpec(("ordered", "swapped"), dropout=spec.block.dropout)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], 0.0 if name == "span" else CLASSIFIER_DROPOUT)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """Where layers share one half of a block alone, `transformers` has no word for it: each gets a copy there."""
    trunk, block = spec.transformer, spec.transformer.block
    dropouts = (head.dropout for head in spec.heads.values() if isinstance(head, LabelHeadSpec))
    return {
        "model_type": "albert",
        "vocab_size": trunk.embeddings.vocab_size,
        "embedding_size": trunk.embeddings.inner,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.num_layers,
        "num_hidden_groups": len(trunk.blocks),
        "inner_group_num": 1,
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": block.ffn.ffn_dim,
        "hidden_act": ACTIVATIONS[block.ffn.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "classifier_dropout_prob": next(dropouts, CLASSIFIER_DROPOUT),
        "max_position_embeddings": trunk.embeddings.max_len,
        "type_vocab_size": trunk.embeddings.num_segments,
        "layer_norm_eps": trunk.embeddings.norm.eps,
        "initializer_range": trunk.init.std,
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    """One group of layers is ALBERT; as many groups as layers is `sharing="none"`; what is between is not supported."""
    unsaid = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    groups = {"num_hidden_groups": [1, config.get("num_hidden_layers")], "inner_group_num": [1]}
    values = arguments(unsaid | config) | read_config(config, {"embedding_dim": "embedding_size"}, groups)
    return trunk(**values, sharing="all" if config.get("num_hidden_groups", 1) == 1 else "none")


_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"


def _layer(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return both(f"trunk.blocks.{{}}.{ours}", f"{_LAYER}.{theirs}")


def _qkv(what: str) -> Rule:
    theirs = tuple(f"{_LAYER}.attention.{part}.{what}" for part in ("query", "key", "value"))
    return Rule(f"trunk.blocks.{{}}.attention.qkv.{what}", theirs, "stack")


ALBERT = Family(
    name="albert",
    paper="Lan et al. 2020, ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
    tokenizer="unigram",
    objective="masked LM (n-grams) + sentence order",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "embedding_dim": 64},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
        "xlarge": {"num_layers": 24, "dim": 2048, "num_heads": 16},
        "xxlarge": {"num_layers": 12, "dim": 4096, "num_heads": 64},
    },
    published={
        "base": 11_683_584,
        "large": 17_683_968,
        "xlarge": 58_724_864,
        "xxlarge": 222_595_584,
    },
    printed={"base": "12M", "large": "18M", "xlarge": "60M", "xxlarge": "235M"},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "AlbertForPreTraining": ("masked", "pair"),
        "AlbertForMaskedLM": ("masked",),
        "AlbertForSequenceClassification": ("classify",),
        "AlbertForTokenClassification": ("tag",),
        "AlbertForQuestionAnswering": ("span",),
        "AlbertForMultipleChoice": ("choice",),
        "AlbertModel": (),
    },
    prefix="albert.",
    rules=(
        Rule("trunk.embeddings.tokens.weight", ("albert.embeddings.word_embeddings.weight",)),
        Rule("trunk.embeddings.positions.weight", ("albert.embeddings.position_embeddings.weight",)),
        Rule("trunk.embeddings.segments.weight", ("albert.embeddings.token_type_embeddings.weight",)),
        *both("trunk.embeddings.norm", "albert.embeddings.LayerNorm"),
        *both("trunk.embeddings.project", "albert.encoder.embedding_hidden_mapping_in"),
        _qkv("weight"),
        _qkv("bias"),
        *_layer("attention.out", "attention.dense"),
        *_layer("attention_after", "attention.LayerNorm"),
        *_layer("ffn.up", "ffn"),
        *_layer("ffn.down", "ffn_output"),
        *_layer("ffn_after", "full_layer_layer_norm"),
        *both("trunk.pooler.dense", "albert.pooler"),
    ),
    head_rules={
        "masked": (
            *both("heads.masked.dense", "predictions.dense"),
            *both("heads.masked.norm", "predictions.LayerNorm"),
            Rule("heads.masked.bias", ("predictions.bias",)),
        ),
        "pair": both("heads.pair.linear", "sop_classifier.classifier"),
        "classify": both("heads.classify.linear", "classifier"),
        "tag": both("heads.tag.linear", "classifier"),
        "span": both("heads.span.linear", "qa_outputs"),
        "choice": both("heads.choice.linear", "classifier"),
    },
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    optional=("trunk.pooler.",),
    ignored=("embeddings.position_ids",),
    departures=(
        "AdamW takes the place of LAMB, which the paper trains with.",
        "Masked n-grams are 15 % of the words on average, not of each sequence exactly, and never touch each other.",
        "A run of one sentence is cut in its middle and has no order to predict.",
    ),
)
