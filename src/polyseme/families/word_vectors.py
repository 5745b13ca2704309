"""Word vectors: one for each word, whatever stands around it. word2vec, fastText and GloVe."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import OWN_LABELS, READS, Family, own, own_classes, read_config
from polyseme.nn.heads.glove import CountHeadSpec
from polyseme.nn.heads.standard import HeadSpec, LabelHeadSpec
from polyseme.nn.heads.word2vec import NegativeHeadSpec, TreeHeadSpec
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.layers.subwords import SubwordEmbeddingsSpec
from polyseme.nn.model import ModelSpec
from polyseme.nn.trunks.lookup import LookupSpec

MAX_LEN = 100_000  # there are no positions: a text may be as long as memory allows


def trunk(dim: int = 300, vocab_size: int = 100_000, max_len: int = MAX_LEN, dropout: float = 0.0) -> LookupSpec:
    """A table. It starts as narrow as the authors' code, whose numbers are uniform within ±1 / 2 dim."""
    init = InitSpec(std=1 / (12**0.5 * dim))
    return LookupSpec(EmbeddingsSpec(vocab_size, dim, max_len, positions="none", dropout=dropout), init=init)


def subword_trunk(
    dim: int = 300,
    vocab_size: int = 100_000,
    max_len: int = MAX_LEN,
    dropout: float = 0.0,
    buckets: int = 2_000_000,
    shortest: int = 3,
    longest: int = 6,
) -> LookupSpec:
    embeddings = SubwordEmbeddingsSpec(vocab_size, dim, max_len, buckets, shortest, longest, dropout)
    return LookupSpec(embeddings, init=InitSpec(std=1 / (3**0.5 * dim)))  # uniform within ±1 / dim there


def heads(spec: LookupSpec) -> dict[str, HeadSpec]:
    size = spec.embeddings.vocab_size
    return {"negative": NegativeHeadSpec(size), "tree": TreeHeadSpec(size)}


def count_heads(spec: LookupSpec) -> dict[str, HeadSpec]:
    return {"count": CountHeadSpec(spec.embeddings.vocab_size)}


def label_head(name: str, labels: tuple[str, ...], spec: LookupSpec) -> HeadSpec:
    return LabelHeadSpec(labels, READS[name])


def to_config(spec: ModelSpec) -> dict[str, Any]:
    table = spec.trunk.embeddings
    names = ("dim", "vocab_size", "max_len", "dropout", "buckets", "shortest", "longest")
    return {"model_type": spec.family} | {name: getattr(table, name) for name in names if hasattr(table, name)}


def from_config(config: dict[str, Any]) -> LookupSpec:
    names = ["dim", "vocab_size", "max_len", *(["buckets", "shortest", "longest"] if "buckets" in config else [])]
    make = subword_trunk if "buckets" in config else trunk
    return make(**read_config(config, {name: name for name in names}, {}), dropout=config.get("dropout", 0.0))


_WINDOWS = OWN_LABELS | {"negative": own("heads.negative.own"), "tree": own("heads.tree.own", "heads.tree.counts")}
_CLASSES = {"WithNegative": ("negative",), "WithTree": ("tree",)}
_SHARED = (
    "Words are learnt from in blocks: the negatives of a block are drawn once and shared by its words.",
    "The gradients of one or two thousand words are added up before the tables change.",
)

WORD2VEC = Family(
    name="word2vec",
    paper="Mikolov et al. 2013, Distributed Representations of Words and Phrases and their Compositionality",
    tokenizer="words",
    objective="skip-gram or CBOW",
    trunk=trunk,
    sizes={"tiny": {"dim": 100, "vocab_size": 40_000}, "base": {"dim": 300, "vocab_size": 692_000}},
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("Word2Vec", _CLASSES),
    prefix="trunk.",
    rules=own("trunk.embeddings.tokens.weight"),
    head_rules=_WINDOWS,
    departures=(
        *_SHARED,
        "A negative that happens to be the word itself is not drawn anew.",
        "Phrases are not joined into words.",
    ),
)

FASTTEXT = Family(
    name="fasttext",
    paper="Bojanowski et al. 2017, Enriching Word Vectors with Subword Information",
    tokenizer="words",
    objective="skip-gram or CBOW over character n-grams",
    trunk=subword_trunk,
    sizes={
        "tiny": {"dim": 100, "vocab_size": 40_000, "buckets": 100_000},
        "base": {"dim": 300, "vocab_size": 1_000_000},
    },
    published={},
    heads=heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("FastText", _CLASSES),
    prefix="trunk.",
    rules=own("trunk.embeddings.tokens.weight", "trunk.embeddings.grams.weight"),
    head_rules=_WINDOWS,
    departures=(*_SHARED, "A word's vector is the mean of its rows, as in the authors' code; the paper has their sum."),
)

GLOVE = Family(
    name="glove",
    paper="Pennington et al. 2014, GloVe: Global Vectors for Word Representation",
    tokenizer="words",
    objective="least squares on the logarithms of co-occurrence counts",
    trunk=trunk,
    sizes={"tiny": {"dim": 100, "vocab_size": 40_000}, "base": {"dim": 300, "vocab_size": 400_000}},
    published={},
    heads=count_heads,
    label_head=label_head,
    to_config=to_config,
    from_config=from_config,
    architectures=own_classes("GloVe", {"WithCount": ("count",)}),
    prefix="trunk.",
    rules=own("trunk.embeddings.tokens.weight"),
    head_rules=OWN_LABELS | {"count": own("heads.count.own", "heads.count.bias", "heads.count.first_bias")},
    departures=(
        "Cells are learnt from a thousand at once, and AdaGrad's sums hold a cell's own gradient before it is used.",
        "A finished model has the sum of the two tables, and neither of them alone (§4.2).",
    ),
)
