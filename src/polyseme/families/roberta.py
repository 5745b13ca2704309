"""RoBERTa (Liu et al. 2019): BERT's trunk, pre-trained longer, on more text, with masked LM only."""

from __future__ import annotations

from typing import Any

from polyseme.errors import ModelError
from polyseme.families import bert
from polyseme.families.family import HEAD_POOLING, Family, WeightMap, weight_and_bias
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.transformer import TransformerConfig

POSITION_OFFSET = 2  # fairseq starts positions at pad_token_id + 1


def trunk_config(
    num_layers: int = 12,
    dim: int = 768,
    num_heads: int = 12,
    ffn_dim: int = 0,
    vocab_size: int = 50265,
    max_len: int = 512,
    num_segments: int = 1,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    activation: ActivationName = "gelu",
    eps: float = 1e-5,
    init_std: float = 0.02,
    position_offset: int = POSITION_OFFSET,
) -> TransformerConfig:
    """BERT's trunk with one segment and two unused rows in the position table before the first position."""
    config = bert.trunk_config(
        num_layers,
        dim,
        num_heads,
        ffn_dim,
        vocab_size,
        max_len,
        num_segments,
        dropout,
        attention_dropout,
        activation,
        eps,
    )
    return config.replace(
        embeddings=config.embeddings.replace(position_offset=position_offset), init=InitConfig(init_std, init_std)
    )


def pretraining_heads(config: TransformerConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    return {"masked": LMHeadConfig(config.embeddings.vocab_size, True, "gelu", config.block.post_norm, bias=True)}


def task_head(name: str, labels: tuple[str, ...], config: TransformerConfig) -> HeadConfig:
    """Return a task's head; classification has a dense layer over the first token instead of the pooler."""
    dropout = config.block.dropout
    if name == "classify":
        return ClassificationHeadConfig(labels, "first", dropout, dense=True, activation="tanh", input_dropout=dropout)
    return ClassificationHeadConfig(labels, HEAD_POOLING[name], 0.0 if name == "span" else dropout)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    embeddings = config.trunk.embeddings
    assert isinstance(embeddings, EmbeddingsConfig)
    return bert.to_hf_config(config) | {
        "model_type": "roberta",
        "max_position_embeddings": embeddings.max_len + embeddings.position_offset,
        "pad_token_id": embeddings.position_offset - 1,
    }


def from_hf_config(hf_config: dict[str, Any]) -> TransformerConfig:
    """Return the trunk's config from a `config.json`."""
    trunk_args, pad_id = bert.read_trunk_args(hf_config), hf_config.get("pad_token_id", POSITION_OFFSET - 1)
    if not isinstance(pad_id, int) or not isinstance(trunk_args["max_len"], int):
        raise ModelError(
            f"config.json: pad_token_id is {pad_id!r} and max_position_embeddings {trunk_args['max_len']!r}, "
            "expected integers"
        )
    return trunk_config(**trunk_args | {"max_len": trunk_args["max_len"] - pad_id - 1, "position_offset": pad_id + 1})


ROBERTA = Family(
    name="roberta",
    paper="Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    tokenizer="byte-bpe-roberta",
    objective="masked LM, full sentences",
    trunk_config=trunk_config,
    sizes={name: bert.BERT.sizes[name] for name in ("tiny", "mini", "base", "large")},
    num_params={"base": 124_645_632, "large": 355_359_744},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures={
        "RobertaForMaskedLM": ("masked",),
        "RobertaForSequenceClassification": ("classify",),
        "RobertaForTokenClassification": ("tag",),
        "RobertaForQuestionAnswering": ("span",),
        "RobertaForMultipleChoice": ("choice",),
        "RobertaModel": (),
    },
    base_model_prefix="roberta.",
    weight_maps=tuple(
        WeightMap(rule.name, tuple("roberta." + name.removeprefix("bert.") for name in rule.published_names), rule.op)
        for rule in bert.WEIGHT_MAPS
    ),
    head_weight_maps={
        "masked": (
            *weight_and_bias("heads.masked.dense", "lm_head.dense"),
            *weight_and_bias("heads.masked.norm", "lm_head.layer_norm"),
            WeightMap("heads.masked.bias", ("lm_head.bias",)),
        ),
        "classify": (
            *weight_and_bias("heads.classify.dense", "classifier.dense"),
            *weight_and_bias("heads.classify.linear", "classifier.out_proj"),
        ),
        "tag": weight_and_bias("heads.tag.linear", "classifier"),
        "span": weight_and_bias("heads.span.linear", "qa_outputs"),
        "choice": weight_and_bias("heads.choice.linear", "classifier"),
    },
    tied_weights={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    optional_weights=("trunk.pooler.",),
    ignored_weights=("embeddings.position_ids",),
    departures=(
        "Each token is masked with probability 15 %, instead of exactly 15 % of each sequence.",
        "The two unused rows of the position table are kept for compatibility with published weights.",
    ),
)
