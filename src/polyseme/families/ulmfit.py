"""ULMFiT (Howard and Ruder 2018): the AWD-LSTM of Merity et al. (2018), first a language model, then a classifier."""

from __future__ import annotations

from typing import Any, Literal

from polyseme.families.family import READS, Family, own, read_config
from polyseme.families.rnn_lm import ENDLESS, HEAD_RULES, RULES, architectures
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.norms import BatchNormSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.transformer import PoolerSpec

VOCABULARY = 33_278  # the words of WikiText-2
DROPOUTS = ("word_dropout", "input_dropout", "weight_dropout", "hidden_dropout", "output_dropout")


def trunk(
    num_layers: int = 3,
    dim: int = 400,
    hidden_dim: int = 0,
    vocab_size: int = VOCABULARY,
    max_len: int = ENDLESS,
    dropout: float = 1.0,
    word_dropout: float = 0.05,
    input_dropout: float = 0.4,
    weight_dropout: float = 0.5,
    hidden_dropout: float = 0.3,
    output_dropout: float = 0.4,
    direction: Literal["forward", "backward"] = "forward",
) -> RecurrentSpec:
    """Layers of `hidden_dim` units (0 is `dim`), the last of `dim` as the token vectors: these are the last matrix too.

    `dropout` is a factor on the five dropouts, as in the released code; their values are the paper's (§4.1).
    """
    return RecurrentSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, positions="none", word_dropout=dropout * word_dropout),
        sizes=(*[hidden_dim or dim] * (num_layers - 1), *[dim] * min(num_layers, 1)),
        direction=direction,
        input_dropout=dropout * input_dropout,
        dropout=dropout * hidden_dropout,
        output_dropout=dropout * output_dropout,
        weight_dropout=dropout * weight_dropout,
        locked=True,
        pooler=PoolerSpec("last" if direction == "forward" else "first"),
        init=InitSpec(std=3**-0.5, fan_in=True, token_std=0.1 * 3**-0.5),
    )


def heads(spec: RecurrentSpec) -> dict[str, HeadSpec]:
    name = "next" if spec.direction == "forward" else "previous"
    return {name: LanguageHeadSpec(spec.embeddings.vocab_size, bias=True)}


def label_head(name: str, labels: tuple[str, ...], spec: RecurrentSpec) -> HeadSpec:
    """For texts, two blocks of batch norm, dropout and a linear layer over what was pooled (§3.3)."""
    if READS[name] == "tokens":
        return LabelHeadSpec(labels, "tokens", 0.1)
    norm = BatchNormSpec()
    return LabelHeadSpec(
        labels,
        "concat",
        dropout=0.1,
        dense=True,
        activation="relu",
        norm=norm,
        input_dropout=0.4,
        input_norm=norm,
        inner=50,
    )


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, RecurrentSpec) and isinstance(trunk.embeddings, EmbeddingsSpec)
    return {
        "model_type": "ulmfit",
        "num_layers": trunk.num_layers,
        "dim": trunk.dim,
        "hidden_dim": trunk.sizes[0],
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "word_dropout": trunk.embeddings.word_dropout,
        "input_dropout": trunk.input_dropout,
        "weight_dropout": trunk.weight_dropout,
        "hidden_dropout": trunk.dropout,
        "output_dropout": trunk.output_dropout,
        "direction": trunk.direction,
    }


def from_config(config: dict[str, Any]) -> RecurrentSpec:
    fields = ("num_layers", "dim", "hidden_dim", "vocab_size", "max_len")
    found = read_config(config, {name: name for name in fields}, fixed={"direction": ["forward", "backward"]})
    others = {name: config[name] for name in (*DROPOUTS, "direction") if name in config}
    return trunk(**found, **others)


_TEXT = tuple(f"{norm}.{part}" for norm in ("input_norm", "norm") for part in ("weight", "bias", "mean", "variance"))
_TEXT = (*_TEXT, "dense.weight", "dense.bias", "linear.weight", "linear.bias")

ULMFIT = Family(
    name="ulmfit",
    paper="Howard and Ruder 2018, Universal Language Model Fine-tuning for Text Classification",
    tokenizer="bpe",
    objective="causal LM over stretches of varied length, with memory",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 2, "dim": 64, "hidden_dim": 128, "dropout": 0.3},
        "mini": {"num_layers": 3, "dim": 200, "hidden_dim": 400, "dropout": 0.5},
        "lecture": {"dim": 300, "hidden_dim": 1150, "vocab_size": 60_003},
        "paper": {"dim": 400, "hidden_dim": 1150},
    },
    published={"lecture": 37_011_700, "paper": 33_522_800},
    printed={"paper": "33M"},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures={**architectures("ULMFiT"), "ULMFiTForMultipleChoice": ("choice",)},
    prefix="trunk.",
    rules=RULES,
    head_rules=HEAD_RULES | {name: own(*(f"heads.{name}.{part}" for part in _TEXT)) for name in ("classify", "choice")},
    departures=(
        "The vocabulary is of pieces, not of words.",
        "Token vectors begin normal with the deviation of the code's uniform law; so do the layers of heads.",
        "Weight decay of NT-ASGD is on matrices alone.",
    ),
)
