"""DistilBERT (Sanh et al. 2019): BERT with half of its layers, without segments and pooler, trained by distillation."""

from __future__ import annotations

from typing import Any

from polyseme.families import bert
from polyseme.families.family import HEAD_POOLING, Family, WeightMap, read_hf_config, weight_and_bias
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.base import PoolerConfig
from polyseme.nn.trunks.transformer import TransformerConfig


def trunk_config(
    num_layers: int = 6,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 30522,
    max_len: int = 512,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    init_std: float = 0.02,
) -> TransformerConfig:
    """BERT's blocks over token and position embeddings; the sequence is pooled to its first state (§3)."""
    config = bert.trunk_config(
        num_layers, dim, num_heads, ffn_dim, vocab_size, max_len, 0, dropout, attention_dropout, activation
    )
    return config.replace(pooler=PoolerConfig("first"), init=InitConfig(init_std, init_std))


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"masked": bert.pretraining_heads(config)["masked"]}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head as in `transformers`: heads over the whole sequence have a dense layer, not a pooler."""
    if HEAD_POOLING[name] == "pooled":
        return ClassificationHeadConfig(labels, "pooled", 0.2, dense=True, activation="relu")
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.1 if name == "span" else config.block.dropout)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    trunk, block = config.transformer, config.transformer.block
    return {
        "model_type": "distilbert",
        "vocab_size": trunk.embeddings.vocab_size,
        "dim": trunk.dim,
        "n_layers": trunk.num_layers,
        "n_heads": block.attention.num_heads,
        "hidden_dim": block.ffn.ffn_dim,
        "activation": bert.ACTIVATIONS[block.ffn.activation],
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "max_position_embeddings": trunk.embeddings.max_len,
        "initializer_range": trunk.init.std,
        "sinusoidal_pos_embds": False,
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`; sinusoids only initialize the position table, which is stored."""
    activations = {published: activation for activation, published in bert.ACTIVATIONS.items()}
    values = read_hf_config(
        hf_config,
        int_fields={
            "num_layers": "n_layers",
            "dim": "dim",
            "num_heads": "n_heads",
            "ffn_dim": "hidden_dim",
            "vocab_size": "vocab_size",
            "max_len": "max_position_embeddings",
        },
        allowed_values={"activation": list(activations), "tie_word_embeddings": [True]},
    )
    return trunk_config(
        **values,
        dropout=hf_config.get("dropout", 0.1),
        attention_dropout=hf_config.get("attention_dropout", 0.1),
        activation=activations[hf_config.get("activation", "gelu")],
        init_std=hf_config.get("initializer_range", 0.02),
    )


def _layer(name: str, published: str) -> tuple[WeightMap, WeightMap]:
    return weight_and_bias(f"trunk.blocks.{{}}.{name}", f"distilbert.transformer.layer.{{}}.{published}")


def _qkv(param: str) -> WeightMap:
    base = "distilbert.transformer.layer.{}.attention"
    published = (f"{base}.q_lin.{param}", f"{base}.k_lin.{param}", f"{base}.v_lin.{param}")
    return WeightMap(f"trunk.blocks.{{}}.attention.qkv.{param}", published, "concat")


def _dense(head: str) -> tuple[WeightMap, ...]:
    return (
        *weight_and_bias(f"heads.{head}.dense", "pre_classifier"),
        *weight_and_bias(f"heads.{head}.linear", "classifier"),
    )


DISTILBERT = Family(
    name="distilbert",
    paper="Sanh et al. 2019, DistilBERT, a distilled version of BERT",
    tokenizer="wordpiece",
    objective="distillation: soft targets, masked LM, cosine of states",
    trunk_config=trunk_config,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 6, "dim": 768, "num_heads": 12},
    },
    num_params={"base": 66_362_880},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "DistilBertForMaskedLM": ("masked",),
        "DistilBertForSequenceClassification": ("classify",),
        "DistilBertForTokenClassification": ("tag",),
        "DistilBertForQuestionAnswering": ("span",),
        "DistilBertForMultipleChoice": ("choice",),
        "DistilBertModel": (),
    },
    base_model_prefix="distilbert.",
    weight_maps=(
        WeightMap("trunk.embeddings.tokens.weight", ("distilbert.embeddings.word_embeddings.weight",)),
        WeightMap("trunk.embeddings.positions.weight", ("distilbert.embeddings.position_embeddings.weight",)),
        *weight_and_bias("trunk.embeddings.norm", "distilbert.embeddings.LayerNorm"),
        _qkv("weight"),
        _qkv("bias"),
        *_layer("attention.out", "attention.out_lin"),
        *_layer("attention_post_norm", "sa_layer_norm"),
        *_layer("ffn.up", "ffn.lin1"),
        *_layer("ffn.down", "ffn.lin2"),
        *_layer("ffn_post_norm", "output_layer_norm"),
    ),
    head_weight_maps={
        "masked": (
            *weight_and_bias("heads.masked.dense", "vocab_transform"),
            *weight_and_bias("heads.masked.norm", "vocab_layer_norm"),
            WeightMap("heads.masked.bias", ("vocab_projector.bias",)),
        ),
        "classify": _dense("classify"),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
        "choice": _dense("choice"),
    },
    tied_weights={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ignored_weights=("embeddings.position_ids",),
    departures=(
        "Each token is masked with probability 15 %, instead of exactly 15 % of each sequence.",
        "The teacher's first segment embedding is added to the initial position embeddings of the student.",
    ),
)
