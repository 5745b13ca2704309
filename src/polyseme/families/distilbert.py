"""DistilBERT (Sanh et al. 2019): BERT with half its layers, without segments and pooler, taught by the whole one."""

from __future__ import annotations

from typing import Any

from polyseme.families import bert
from polyseme.families.family import READS, Family, Rule, both, read_config
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.feedforward import ActivationName
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.transformer import PoolerSpec, TransformerSpec


def trunk(
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
) -> TransformerSpec:
    """BERT's blocks over token and position vectors; a sequence's vector is the first token's own state (§3)."""
    found = bert.trunk(
        num_layers, dim, num_heads, ffn_dim, vocab_size, max_len, 0, dropout, attention_dropout, activation
    )
    return found.replace(pooler=PoolerSpec("first"), init=InitSpec(init_std, init_std))


def heads(spec: TransformerSpec) -> dict[str, HeadSpec]:
    return {"masked": bert.heads(spec)["masked"]}


def label_head(name: str, labels: tuple[str, ...], spec: TransformerSpec) -> HeadSpec:
    """As `transformers` has them: where there is no pooler, the head has a dense layer of its own."""
    if READS[name] == "pooled":
        return LabelHeadSpec(labels, "pooled", 0.2, dense=True, activation="relu")
    return LabelHeadSpec(labels, READS[name], 0.1 if name == "span" else spec.block.dropout)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk, block = spec.transformer, spec.transformer.block
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


def from_config(config: dict[str, Any]) -> TransformerSpec:
    """Sinusoids, where a config asks for them, are only how the position table began: it is stored either way."""
    names = {theirs: ours for ours, theirs in bert.ACTIVATIONS.items()}
    values = read_config(
        config,
        needed={
            "num_layers": "n_layers",
            "dim": "dim",
            "num_heads": "n_heads",
            "ffn_dim": "hidden_dim",
            "vocab_size": "vocab_size",
            "max_len": "max_position_embeddings",
        },
        fixed={"activation": list(names), "tie_word_embeddings": [True]},
    )
    return trunk(
        **values,
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1),
        activation=names[config.get("activation", "gelu")],
        init_std=config.get("initializer_range", 0.02),
    )


def _layer(ours: str, theirs: str) -> tuple[Rule, Rule]:
    return both(f"trunk.blocks.{{}}.{ours}", f"distilbert.transformer.layer.{{}}.{theirs}")


def _qkv(what: str) -> Rule:
    base = "distilbert.transformer.layer.{}.attention"
    theirs = (f"{base}.q_lin.{what}", f"{base}.k_lin.{what}", f"{base}.v_lin.{what}")
    return Rule(f"trunk.blocks.{{}}.attention.qkv.{what}", theirs, "stack")


def _dense(head: str) -> tuple[Rule, ...]:
    return (*both(f"heads.{head}.dense", "pre_classifier"), *both(f"heads.{head}.linear", "classifier"))


DISTILBERT = Family(
    name="distilbert",
    paper="Sanh et al. 2019, DistilBERT, a distilled version of BERT",
    tokenizer="wordpiece",
    objective="distillation: soft targets, masked LM, cosine of states",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 128, "num_heads": 2},
        "base": {"num_layers": 6, "dim": 768, "num_heads": 12},
    },
    published={"base": 66_362_880},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={
        "DistilBertForMaskedLM": ("masked",),
        "DistilBertForSequenceClassification": ("classify",),
        "DistilBertForTokenClassification": ("tag",),
        "DistilBertForQuestionAnswering": ("span",),
        "DistilBertForMultipleChoice": ("choice",),
        "DistilBertModel": (),
    },
    prefix="distilbert.",
    rules=(
        Rule("trunk.embeddings.tokens.weight", ("distilbert.embeddings.word_embeddings.weight",)),
        Rule("trunk.embeddings.positions.weight", ("distilbert.embeddings.position_embeddings.weight",)),
        *both("trunk.embeddings.norm", "distilbert.embeddings.LayerNorm"),
        _qkv("weight"),
        _qkv("bias"),
        *_layer("attention.out", "attention.out_lin"),
        *_layer("attention_after", "sa_layer_norm"),
        *_layer("ffn.up", "ffn.lin1"),
        *_layer("ffn.down", "ffn.lin2"),
        *_layer("ffn_after", "output_layer_norm"),
    ),
    head_rules={
        "masked": (
            *both("heads.masked.dense", "vocab_transform"),
            *both("heads.masked.norm", "vocab_layer_norm"),
            Rule("heads.masked.bias", ("vocab_projector.bias",)),
        ),
        "classify": _dense("classify"),
        "tag": both("heads.tag.linear", "classifier"),
        "span": both("heads.span.linear", "qa_outputs"),
        "choice": _dense("choice"),
    },
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ignored=("embeddings.position_ids",),
    departures=(
        "Masks are drawn per token with probability 15 %, not as an exact share of each sequence.",
        "A student that lacks segments starts with the teacher's first segment added to its positions.",
    ),
)
