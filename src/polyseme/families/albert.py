"""ALBERT (Lan et al. 2020): BERT with factorized embeddings, shared layers, and sentence-order prediction."""

from __future__ import annotations

from typing import Any, Literal, get_args

from polyseme.errors import ConfigError, suggest
from polyseme.families.bert import ACTIVATIONS, read_trunk_args
from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config, weight_and_bias
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
from polyseme.nn.trunks.transformer import TransformerConfig

Sharing = Literal["all", "attention", "ffn", "none"]
CLASSIFIER_DROPOUT = 0.1  # in all published configs, whatever the dropout of the trunk


def trunk_config(
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
) -> TransformerConfig:
    """BERT's blocks over embeddings of size `embedding_dim` (§3.1); `sharing` is what layers share (§4.5)."""
    if sharing not in get_args(Sharing):
        raise ConfigError(f"sharing is {sharing!r}; {suggest(str(sharing), get_args(Sharing))}")
    norm = LayerNormConfig(eps)
    shared_layers, separate_layers = (0,) * num_layers, tuple(range(num_layers))
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, num_segments, norm, dropout, embedding_dim=embedding_dim),
        TransformerBlockConfig(
            AttentionConfig(num_heads, attention_dropout),
            FeedForwardConfig(ffn_dim or 4 * dim, activation),
            post_norm=norm,
            dropout=dropout,
        ),
        layer_to_block=shared_layers if sharing in ("all", "attention") else separate_layers,
        layer_to_ffn=shared_layers if sharing in ("all", "ffn") else separate_layers,
        pooler=PoolerConfig("first", dense=True),
        init=InitConfig(init_std, init_std, truncated=True),
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    masked = LMHeadConfig(
        config.embeddings.vocab_size,
        True,
        config.block.ffn.activation,
        config.block.post_norm,
        bias=True,
        embedding_dim=config.embeddings.embedding_dim,
    )
    return {"masked": masked, "pair": ClassificationHeadConfig(("ordered", "swapped"), dropout=config.block.dropout)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else CLASSIFIER_DROPOUT)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model.

    `transformers` cannot express sharing of only attention or only the feed-forward layer; it gets copies.
    """
    trunk, block = config.transformer, config.transformer.block
    dropouts = (head.dropout for head in config.heads.values() if isinstance(head, ClassificationHeadConfig))
    return {
        "model_type": "albert",
        "vocab_size": trunk.embeddings.vocab_size,
        "embedding_size": trunk.embeddings.embedding_dim,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.num_layers,
        "num_hidden_groups": len(trunk.block_configs),
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


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json` with one group of layers or, unshared, one group per layer."""
    defaults = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    groups = {"num_hidden_groups": [1, hf_config.get("num_hidden_layers")], "inner_group_num": [1]}
    values = read_trunk_args(defaults | hf_config) | read_hf_config(
        hf_config, {"embedding_dim": "embedding_size"}, groups
    )
    return trunk_config(**values, sharing="all" if hf_config.get("num_hidden_groups", 1) == 1 else "none")


_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"


def _layer(name: str, published: str) -> tuple[WeightMap, WeightMap]:
    return weight_and_bias(f"trunk.blocks.{{}}.{name}", f"{_LAYER}.{published}")


def _qkv(param: str) -> WeightMap:
    published = tuple(f"{_LAYER}.attention.{part}.{param}" for part in ("query", "key", "value"))
    return WeightMap(f"trunk.blocks.{{}}.attention.qkv.{param}", published, "concat")


ALBERT = Family(
    name="albert",
    paper="Lan et al. 2020, ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
    tokenizer="unigram",
    objective="masked LM (n-grams) + sentence order",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2, "embedding_dim": 64},
        "base": {"num_layers": 12, "dim": 768, "num_heads": 12},
        "large": {"num_layers": 24, "dim": 1024, "num_heads": 16},
        "xlarge": {"num_layers": 24, "dim": 2048, "num_heads": 16},
        "xxlarge": {"num_layers": 12, "dim": 4096, "num_heads": 64},
    },
    num_params={
        "base": 11_683_584,
        "large": 17_683_968,
        "xlarge": 58_724_864,
        "xxlarge": 222_595_584,
    },
    paper_params={"base": "12M", "large": "18M", "xlarge": "60M", "xxlarge": "235M"},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "AlbertForPreTraining": ("masked", "pair"),
        "AlbertForMaskedLM": ("masked",),
        "AlbertForSequenceClassification": ("classify",),
        "AlbertForTokenClassification": ("tag",),
        "AlbertForQuestionAnswering": ("span",),
        "AlbertForMultipleChoice": ("choice",),
        "AlbertModel": (),
    },
    base_model_prefix="albert.",
    weight_maps=(
        WeightMap("trunk.embeddings.tokens.weight", ("albert.embeddings.word_embeddings.weight",)),
        WeightMap("trunk.embeddings.positions.weight", ("albert.embeddings.position_embeddings.weight",)),
        WeightMap("trunk.embeddings.segments.weight", ("albert.embeddings.token_type_embeddings.weight",)),
        *weight_and_bias("trunk.embeddings.norm", "albert.embeddings.LayerNorm"),
        *weight_and_bias("trunk.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in"),
        _qkv("weight"),
        _qkv("bias"),
        *_layer("attention.out", "attention.dense"),
        *_layer("attention_post_norm", "attention.LayerNorm"),
        *_layer("ffn.up", "ffn"),
        *_layer("ffn.down", "ffn_output"),
        *_layer("ffn_post_norm", "full_layer_layer_norm"),
        *weight_and_bias("trunk.pooler.dense", "albert.pooler"),
    ),
    head_weight_maps={
        "masked": (
            *weight_and_bias("heads.masked.dense", "predictions.dense"),
            *weight_and_bias("heads.masked.norm", "predictions.LayerNorm"),
            WeightMap("heads.masked.bias", ("predictions.bias",)),
        ),
        "pair": weight_and_bias("heads.pair.linear", "sop_classifier.classifier"),
        "classify": weight_and_bias("heads.classify.linear", "classifier"),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
        "choice": weight_and_bias("heads.choice.linear", "classifier"),
    },
    tied_weights={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    optional_weights=("trunk.pooler.",),
    ignored_weights=("embeddings.position_ids",),
    departures=(
        "AdamW instead of LAMB.",
        "Masked n-grams cover 15 % of the words on average, not exactly in each sequence, and are never adjacent.",
        "A segment of a single sentence is split in its middle and has no sentence-order target.",
    ),
)
