"""Recurrent language models: vanilla RNN (Mikolov et al. 2010), GRU and LSTM (Zaremba et al. 2014)."""

from __future__ import annotations

from typing import Any, Literal

from polyseme.families.family import OWN_LABELS, READS, Family, both, own, own_classes, read_config
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.transformer import PoolerSpec

ENDLESS = 1 << 20  # nothing in it depends on a place: what one reading may hold
POOLED: dict[str, Literal["last", "first", "ends"]] = {"forward": "last", "backward": "first", "both": "ends"}


def trunk(
    num_layers: int = 2,
    dim: int = 650,
    hidden_dim: int = 0,
    vocab_size: int = 10_000,
    max_len: int = ENDLESS,
    dropout: float = 0.5,
    cell: Literal["rnn", "gru", "lstm"] = "lstm",
    direction: Literal["forward", "backward", "both"] = "forward",
    links: Literal["none", "residual", "dense", "highway"] = "none",
    reset: Literal["before", "after"] = "after",
    projection: bool = False,
    weight_dropout: float = 0.0,
    locked: bool = False,
    forget_bias: float = 1.0,
    init_std: float = 0.2,
) -> RecurrentSpec:
    """Token vectors and the last layer are of size `dim`, the layers between of `hidden_dim`, if it is not 0.

    With a `projection` all layers are of `hidden_dim` and hand on `dim`. Dropout is on what enters and leaves every
    layer, never between time steps (Zaremba et al. 2014, §3). `init_std` is of the token vectors: with the papers' 0.05
    an LSTM of today, tied and under Adam, learns little more than frequencies in its first million tokens.
    """
    inner = hidden_dim or dim
    return RecurrentSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, positions="none"),
        (inner,) * num_layers if projection else (inner,) * (num_layers - 1) + (dim,) * min(num_layers, 1),
        cell,
        projection=dim * projection,
        reset=reset,
        direction=direction,
        links=links,
        input_dropout=dropout,
        dropout=dropout,
        output_dropout=dropout,
        weight_dropout=weight_dropout,
        locked=locked,
        forget_bias=forget_bias,
        pooler=PoolerSpec(POOLED[direction]),
        init=InitSpec(0.05, token_std=init_std),
    )


def heads(spec: RecurrentSpec) -> dict[str, HeadSpec]:
    """One for each direction, from its own states; both are tied to the token vectors."""
    head = LanguageHeadSpec(spec.embeddings.vocab_size, bias=True)
    if spec.direction == "both":
        return {"next": head.replace(half="first"), "previous": head.replace(half="second")}
    return {"previous" if spec.direction == "backward" else "next": head}


def label_head(name: str, labels: tuple[str, ...], spec: RecurrentSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], spec.output_dropout)


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, RecurrentSpec)
    return {
        "model_type": spec.family,
        "num_layers": trunk.num_layers,
        "dim": trunk.embeddings.dim,
        "hidden_dim": trunk.sizes[0] if trunk.projection or trunk.num_layers > 1 else 0,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "cell": trunk.cell,
        "direction": trunk.direction,
        "links": trunk.links,
        "reset": trunk.reset,
        "projection": trunk.projection > 0,
        "locked": trunk.locked,
        "dropout": trunk.output_dropout,
        "weight_dropout": trunk.weight_dropout,
        "forget_bias": trunk.forget_bias,
        "initializer_range": trunk.init.token_std,
    }


FIELDS = ("num_layers", "dim", "hidden_dim", "vocab_size", "max_len")
CHOICES: dict[str, list[Any]] = {
    "cell": ["lstm", "rnn", "gru"],
    "direction": ["forward", "backward", "both"],
    "links": ["none", "residual", "dense", "highway"],
    "reset": ["after", "before"],
    "projection": [False, True],
    "locked": [False, True],
}


def from_config(config: dict[str, Any]) -> RecurrentSpec:
    return trunk(
        **read_config(config, needed={name: name for name in FIELDS}, fixed=CHOICES),
        **{name: config.get(name, choices[0]) for name, choices in CHOICES.items()},
        dropout=config.get("dropout", 0.5),
        weight_dropout=config.get("weight_dropout", 0.0),
        forget_bias=config.get("forget_bias", 1.0),
        init_std=config.get("initializer_range", 0.2),
    )


def architectures(name: str) -> dict[str, tuple[str, ...]]:
    one = {"ForCausalLM": ("next",), "ForReverseLM": ("previous",)}
    return own_classes(name, {**one, "ForBidirectionalLM": ("next", "previous")})


_CELL = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
RULES = (
    *own("trunk.embeddings.tokens.weight"),
    *own(*(f"trunk.stacks.{stack}.{{}}.cells.0.{name}" for stack in (0, 1) for name in _CELL)),
    *(rule for stack in (0, 1) for rule in both(f"trunk.stacks.{stack}.{{}}.gate")),
)
HEAD_RULES = {"next": own("heads.next.bias"), "previous": own("heads.previous.bias"), **OWN_LABELS}
DEPARTURES = (
    "The GRU resets after the product, as torch's fused kernel has it; reset=before is the paper's, step by step.",
    "Each gate has two biases, as in torch, where the papers have one.",
    "Token vectors and the last matrix are one (Press and Wolf 2017).",
)

RNN_LM = Family(
    name="rnn_lm",
    paper="Zaremba et al. 2014, Recurrent Neural Network Regularization; Mikolov et al. 2010; Cho et al. 2014",
    tokenizer="bpe",
    objective="causal LM over segments with memory",
    trunk=trunk,
    sizes={
        "tiny": {"num_layers": 1, "dim": 128, "dropout": 0.1},
        "small": {"num_layers": 2, "dim": 200, "dropout": 0.0},
        "medium": {"num_layers": 2, "dim": 650, "dropout": 0.5},
        "large": {"num_layers": 2, "dim": 1500, "dropout": 0.65},
    },
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=architectures("RNN"),
    prefix="trunk.",
    rules=RULES,
    head_rules=HEAD_RULES,
    departures=(
        *DEPARTURES,
        "The vocabulary is of pieces; weights start as torch's modules do, with 1 more on the forget gates' bias.",
        "Token vectors start at 0.2, not within ± 0.05 to 0.1: AdamW, in place of SGD, learns sooner so.",
    ),
)
