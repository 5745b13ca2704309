"""Flair (Akbik et al. 2018): words in context from language models over characters, one for each direction."""

from __future__ import annotations

from typing import Any, Literal

from polyseme.families import rnn_lm
from polyseme.families.family import READS, Family, own, own_names, read_config
from polyseme.families.rnn_lm import ENDLESS, HEAD_RULES, POOLED, architectures
from polyseme.nn.heads.standard import HeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.transformer import PoolerSpec


def trunk(
    num_layers: int = 1,
    dim: int = 2048,
    char_dim: int = 100,
    vocab_size: int = 275,
    max_len: int = ENDLESS,
    dropout: float = 0.25,
    direction: Literal["forward", "backward", "both"] = "both",
) -> RecurrentSpec:
    """LSTMs of `dim` units over vectors of characters (§3); both directions are two stacks over the same vectors."""
    return RecurrentSpec(
        EmbeddingsSpec(vocab_size, char_dim, max_len, positions="none"),
        sizes=(dim,) * num_layers,
        direction=direction,
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        forget_bias=1.0,
        pooler=PoolerSpec(POOLED[direction]),
        init=InitSpec(0.05, token_std=0.2),
    )


def heads(spec: RecurrentSpec) -> dict[str, HeadSpec]:
    """One for each direction, with a matrix of its own: a character's vector is far shorter than a state."""
    return {name: head.replace(tied=False) for name, head in rnn_lm.heads(spec).items()}


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, RecurrentSpec)
    return {
        "model_type": "flair",
        "num_layers": trunk.num_layers,
        "dim": trunk.sizes[0],
        "char_dim": trunk.embeddings.dim,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "dropout": trunk.dropout,
        "direction": trunk.direction,
    }


def from_config(config: dict[str, Any]) -> RecurrentSpec:
    fields = ("num_layers", "dim", "char_dim", "vocab_size", "max_len")
    found = read_config(config, {name: name for name in fields}, {"direction": ["both", "forward", "backward"]})
    return trunk(**found, **{name: config[name] for name in ("dropout", "direction") if name in config})


FLAIR = Family(
    name="flair",
    paper="Akbik et al. 2018, Contextual String Embeddings for Sequence Labeling",
    tokenizer="characters",
    objective="causal LM over characters, both ways",
    trunk=trunk,
    sizes={"tiny": {"dim": 192, "char_dim": 32, "dropout": 0.0}, "small": {"dim": 1024}, "paper": {}},
    published={},
    heads=heads,
    label_head=rnn_lm.label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=architectures("Flair"),
    prefix="trunk.",
    rules=own_names,
    head_rules={
        name: rules if name in READS else (*rules, *own(f"heads.{name}.own.weight"))
        for name, rules in HEAD_RULES.items()
    },
    departures=(
        "The two directions are trained together and share the vectors of characters; model.direction parts them.",
        "A batch does not go on from the states of the batch before; forward or backward alone, SegmentLM does.",
        "AdamW in place of SGD at 20.",
        "A sentence stands between [CLS] and [SEP], not between a line break and a space.",
    ),
)
