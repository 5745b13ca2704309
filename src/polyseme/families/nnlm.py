"""The neural probabilistic language model (Bengio et al. 2003): the next word from a window of word vectors."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import OWN_LABELS, READS, Family, both, own, own_classes, read_config
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec, LanguageHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.window import WindowSpec


def trunk(
    dim: int = 100,
    hidden_dim: int = 60,
    window: int = 5,
    vocab_size: int = 17_964,
    max_len: int = 1 << 20,
    direct: bool = False,
    dropout: float = 0.0,
    init_std: float = 0.05,
) -> WindowSpec:
    """`window` is the paper's n − 1, `dim` its m, `hidden_dim` its h (§2)."""
    return WindowSpec(
        EmbeddingsSpec(vocab_size, dim, max_len, positions="none"),
        window,
        hidden_dim,
        direct,
        dropout,
        init=InitSpec(init_std),
    )


def heads(spec: WindowSpec) -> dict[str, HeadSpec]:
    """b + U tanh(d + Hx) and, with direct connections, + Wx: one matrix on the state (eq. 1)."""
    return {"next": LanguageHeadSpec(spec.embeddings.vocab_size, bias=True, tied=False)}


def label_head(name: str, labels: tuple[str, ...], spec: WindowSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name], spec.dropout)


FIELDS = ("dim", "hidden_dim", "window", "vocab_size", "max_len")


def to_config(spec: ModelSpec) -> dict[str, Any]:
    trunk = spec.trunk
    assert isinstance(trunk, WindowSpec)
    return {
        "model_type": "nnlm",
        "dim": trunk.embeddings.dim,
        "hidden_dim": trunk.hidden_dim,
        "window": trunk.window,
        "vocab_size": trunk.embeddings.vocab_size,
        "max_len": trunk.embeddings.max_len,
        "direct": trunk.direct,
        "dropout": trunk.dropout,
        "initializer_range": trunk.init.std,
    }


def from_config(config: dict[str, Any]) -> WindowSpec:
    return trunk(
        **read_config(config, needed={name: name for name in FIELDS}, fixed={"direct": [False, True]}),
        direct=config.get("direct", False),
        dropout=config.get("dropout", 0.0),
        init_std=config.get("initializer_range", 0.05),
    )


NNLM = Family(
    name="nnlm",
    paper="Bengio et al. 2003, A Neural Probabilistic Language Model",
    tokenizer="bpe",
    objective="causal LM",
    trunk=trunk,
    sizes={
        "tiny": {"dim": 64, "hidden_dim": 128, "window": 5},
        "ap": {"dim": 100, "hidden_dim": 60, "window": 5},
    },
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("NNLM", {"ForCausalLM": ("next",)}),
    prefix="trunk.",
    rules=(*own("trunk.embeddings.tokens.weight"), *both("trunk.hidden")),
    head_rules={"next": own("heads.next.bias", "heads.next.own.weight"), **OWN_LABELS},
    departures=(
        "The vocabulary is of pieces; the paper has the words of the AP News (17,964), or of the Brown corpus.",
        "Before the first token of a text the window holds zeros.",
        "AdamW in place of stochastic gradient ascent; the paper's mixture with a trigram is left to the reader.",
    ),
)
