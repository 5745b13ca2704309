"""BERT (Devlin et al. 2019): bidirectional Transformer with masked LM and next-sentence prediction."""

from __future__ import annotations

from typing import Any

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


def trunk_config(
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
) -> TransformerConfig:
    """Post-norm blocks over the normalized sum of token, position and segment embeddings (§3, appendix A.2)."""
    norm = LayerNormConfig(eps)
    return TransformerConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, num_segments, norm, dropout),
        TransformerBlockConfig(
            AttentionConfig(num_heads, attention_dropout),
            FeedForwardConfig(ffn_dim or 4 * dim, activation),
            post_norm=norm,
            dropout=dropout,
        ),
        layer_to_block=tuple(range(num_layers)),
        pooler=PoolerConfig("first", dense=True),
        init=InitConfig(init_std, init_std, truncated=True),
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    ffn = config.block.ffn
    masked = LMHeadConfig(config.embeddings.vocab_size, True, ffn.activation, config.block.post_norm, bias=True)
    return {"masked": masked, "pair": ClassificationHeadConfig(("follows", "random"))}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else config.block.dropout)


ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk, block = config.transformer, config.transformer.block
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


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    return trunk_config(**read_trunk_args(hf_config))


def read_trunk_args(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `trunk_config` from a published config of BERT or a family with the same keys."""
    activations = {published: activation for activation, published in ACTIVATIONS.items()}
    values = read_hf_config(
        hf_config,
        int_fields={
            "num_layers": "num_hidden_layers",
            "dim": "hidden_size",
            "num_heads": "num_attention_heads",
            "ffn_dim": "intermediate_size",
            "vocab_size": "vocab_size",
            "max_len": "max_position_embeddings",
        },
        allowed_values={
            "position_embedding_type": ["absolute"],
            "is_decoder": [False],
            "add_cross_attention": [False],
            "tie_word_embeddings": [True],
            "hidden_act": list(activations),
        },
    )
    return values | {
        "num_segments": hf_config.get("type_vocab_size", 2),
        "dropout": hf_config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": hf_config.get("attention_probs_dropout_prob", 0.1),
        "activation": activations[hf_config.get("hidden_act", "gelu")],
        "eps": hf_config.get("layer_norm_eps", 1e-12),
        "init_std": hf_config.get("initializer_range", 0.02),
    }


def _layer(name: str, published: str) -> tuple[WeightMap, WeightMap]:
    return weight_and_bias(f"trunk.blocks.{{}}.{name}", f"bert.encoder.layer.{{}}.{published}")


def _qkv(part: str) -> WeightMap:
    base = "bert.encoder.layer.{}.attention.self"
    return WeightMap(
        f"trunk.blocks.{{}}.attention.qkv.{part}",
        (f"{base}.query.{part}", f"{base}.key.{part}", f"{base}.value.{part}"),
        "concat",
    )


WEIGHT_MAPS = (
    WeightMap("trunk.embeddings.tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
    WeightMap("trunk.embeddings.positions.weight", ("bert.embeddings.position_embeddings.weight",)),
    WeightMap("trunk.embeddings.segments.weight", ("bert.embeddings.token_type_embeddings.weight",)),
    *weight_and_bias("trunk.embeddings.norm", "bert.embeddings.LayerNorm"),
    _qkv("weight"),
    _qkv("bias"),
    *_layer("attention.out", "attention.output.dense"),
    *_layer("attention_post_norm", "attention.output.LayerNorm"),
    *_layer("ffn.up", "intermediate.dense"),
    *_layer("ffn.down", "output.dense"),
    *_layer("ffn_post_norm", "output.LayerNorm"),
    *weight_and_bias("trunk.pooler.dense", "bert.pooler.dense"),
)

BERT = Family(
    name="bert",
    paper="Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers",
    tokenizer="wordpiece",
    objective="masked LM + next sentence",
    trunk_config=trunk_config,
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
    num_params={
        "base": 109_482_240,
        "large": 335_141_888,
        "xlarge": 1_276_360_704,
        "multilingual": 177_853_440,
    },
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
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
    base_model_prefix="bert.",
    weight_maps=WEIGHT_MAPS,
    head_weight_maps={
        "masked": (
            *weight_and_bias("heads.masked.dense", "cls.predictions.transform.dense"),
            *weight_and_bias("heads.masked.norm", "cls.predictions.transform.LayerNorm"),
            WeightMap("heads.masked.bias", ("cls.predictions.bias",)),
        ),
        "pair": weight_and_bias("heads.pair.linear", "cls.seq_relationship"),
        "classify": weight_and_bias("heads.classify.linear", "classifier"),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
        "choice": weight_and_bias("heads.choice.linear", "classifier"),
    },
    tied_weights={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    optional_weights=("trunk.pooler.",),
    ignored_weights=("embeddings.position_ids",),
    legacy_suffixes={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    departures=(
        "Each token is masked with probability 15 %, instead of exactly 15 % of each sequence.",
        "Sentences replaced by a random sentence B are not used again within the epoch.",
    ),
)
