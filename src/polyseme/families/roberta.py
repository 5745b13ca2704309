"""RoBERTa (Liu et al. 2019): BERT's trunk, pre-trained longer, on more text, with masked words alone."""

from __future__ import annotations

from typing import Any

from polyseme.errors import UserError
from polyseme.families import bert
from polyseme.families.family import READS, Family, Rule, both
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import TransformerSpec

OFFSET = 2  # its code counts positions from the id of pad, 1, on


def trunk(
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
    position_offset: int = OFFSET,
) -> TransformerSpec:
    """BERT's trunk with one segment; two rows of the position table stand before the first position."""
    found = bert.trunk(
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
    return found.replace(
        embeddings=found.embeddings.replace(position_offset=position_offset), init=InitSpec(init_std, init_std)
    )


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    return {"masked": LanguageHeadSpec(spec.embeddings.vocab_size, True, "gelu", spec.block.after, bias=True)}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    """Classification has a dense layer of its own on the first token, and leaves the pooler alone."""
    dropout = spec.block.dropout
    if name == "classify":
        return LabelHeadSpec(labels, "first", dropout, dense=True, activation="tanh", input_dropout=dropout)
    return LabelHeadSpec(labels, READS[name], 0.0 if name == "span" else dropout)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    embeddings = spec.trunk.embeddings
    assert isinstance(embeddings, EmbeddingsSpec)
    return bert.to_config(spec) | {
        "model_type": "roberta",
        "max_position_embeddings": embeddings.max_len + embeddings.position_offset,
        "pad_token_id": embeddings.position_offset - 1,
    }


def from_config(config: dict[str, Any]) -> TransformerSpec:
    found, pad = bert.arguments(config), config.get("pad_token_id", OFFSET - 1)
    if not isinstance(pad, int) or not isinstance(found["max_len"], int):
        raise UserError(f"config.json: pad_token_id is {pad!r} and max_position_embeddings {found['max_len']!r}")
    return trunk(**found | {"max_len": found["max_len"] - pad - 1, "position_offset": pad + 1})


ROBERTA = Family(
    name="roberta",
    paper="Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    tokenizer="bpe-masked",
    objective="masked LM, full sentences",
    trunk=trunk,
    sizes={name: bert.BERT.sizes[name] for name in ("tiny", "mini", "base", "large")},
    published={"base": 124_645_632, "large": 355_359_744},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "RobertaForMaskedLM": ("masked",),
        "RobertaForSequenceClassification": ("classify",),
        "RobertaForTokenClassification": ("tag",),
        "RobertaForQuestionAnswering": ("span",),
        "RobertaForMultipleChoice": ("choice",),
        "RobertaModel": (),
    },
    prefix="roberta.",
    rules=tuple(
        Rule(rule.ours, tuple("roberta." + name.removeprefix("bert.") for name in rule.theirs), rule.how)
        for rule in bert.RULES
    ),
    head_rules={
        "masked": (
            *both("heads.masked.dense", "lm_head.dense"),
            *both("heads.masked.norm", "lm_head.layer_norm"),
            Rule("heads.masked.bias", ("lm_head.bias",)),
        ),
        "classify": (
            *both("heads.classify.dense", "classifier.dense"),
            *both("heads.classify.linear", "classifier.out_proj"),
        ),
        "tag": both("heads.tag.linear", "classifier"),
        "span": both("heads.span.linear", "qa_outputs"),
        "choice": both("heads.choice.linear", "classifier"),
    },
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    optional=("trunk.pooler.",),
    ignored=("embeddings.position_ids",),
    departures=(
        "Masks are drawn per token with probability 15 %, not as an exact share of each sequence.",
        "The two rows of the position table that nothing reads are kept: published weights have them.",
    ),
)
