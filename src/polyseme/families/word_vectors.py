"""Static word vectors: word2vec, fastText and GloVe."""

from __future__ import annotations

from typing import Any

from polyseme.families.family import (
    HEAD_POOLING,
    NATIVE_LABEL_HEADS,
    Family,
    native_architectures,
    read_hf_config,
    same_names,
)
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.word_vectors import GloVeHeadConfig, HierarchicalSoftmaxHeadConfig, NegativeSamplingHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig
from polyseme.nn.model import ModelConfig
from polyseme.nn.trunks.lookup import StaticEmbeddingTrunkConfig

MAX_LEN = 100_000  # there are no position embeddings


def trunk_config(
    dim: int = 300, vocab_size: int = 100_000, max_len: int = MAX_LEN, dropout: float = 0.0
) -> StaticEmbeddingTrunkConfig:
    """A table of word vectors, initialized with the standard deviation of the authors' uniform ±1 / (2 · dim)."""
    init = InitConfig(std=1 / (12**0.5 * dim))
    return StaticEmbeddingTrunkConfig(
        EmbeddingsConfig(vocab_size, dim, max_len, position_embedding_type="none", dropout=dropout), init=init
    )


def subword_trunk_config(
    dim: int = 300,
    vocab_size: int = 100_000,
    max_len: int = MAX_LEN,
    dropout: float = 0.0,
    num_buckets: int = 2_000_000,
    min_n: int = 3,
    max_n: int = 6,
) -> StaticEmbeddingTrunkConfig:
    """Tables of words and n-grams, initialized with the standard deviation of the authors' uniform ±1 / dim."""
    embeddings = SubwordEmbeddingsConfig(vocab_size, dim, max_len, num_buckets, min_n, max_n, dropout)
    return StaticEmbeddingTrunkConfig(embeddings, init=InitConfig(std=1 / (3**0.5 * dim)))


def pretraining_heads(config: StaticEmbeddingTrunkConfig) -> dict[str, HeadConfig]:
    """Return the pre-training heads."""
    vocab_size = config.embeddings.vocab_size
    return {
        "negative_sampling": NegativeSamplingHeadConfig(vocab_size),
        "hierarchical_softmax": HierarchicalSoftmaxHeadConfig(vocab_size),
    }


def glove_heads(config: StaticEmbeddingTrunkConfig) -> dict[str, HeadConfig]:
    """Return the head of GloVe."""
    return {"count": GloVeHeadConfig(config.embeddings.vocab_size)}


def task_head(name: str, labels: tuple[str, ...], config: StaticEmbeddingTrunkConfig) -> HeadConfig:
    """Return a task's head."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name])


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model."""
    embeddings = config.trunk.embeddings
    names = ("dim", "vocab_size", "max_len", "dropout", "num_buckets", "min_n", "max_n")
    return {"model_type": config.family} | {
        name: getattr(embeddings, name) for name in names if hasattr(embeddings, name)
    }


def from_hf_config(hf_config: dict[str, Any]) -> StaticEmbeddingTrunkConfig:
    """Return the trunk's config from a `config.json`."""
    names = ["dim", "vocab_size", "max_len", *(["num_buckets", "min_n", "max_n"] if "num_buckets" in hf_config else [])]
    config_fn = subword_trunk_config if "num_buckets" in hf_config else trunk_config
    return config_fn(
        **read_hf_config(hf_config, {name: name for name in names}, {}), dropout=hf_config.get("dropout", 0.0)
    )


_WORD2VEC_WEIGHT_MAPS = NATIVE_LABEL_HEADS | {
    "negative_sampling": same_names("heads.negative_sampling.output_embeddings"),
    "hierarchical_softmax": same_names(
        "heads.hierarchical_softmax.node_embeddings", "heads.hierarchical_softmax.counts"
    ),
}
_ARCHITECTURES = {"WithNegativeSampling": ("negative_sampling",), "WithHierarchicalSoftmax": ("hierarchical_softmax",)}
_SHARED_DEPARTURES = (
    "Text is processed in blocks of words that share their negative samples.",
    "Gradients of one or two thousand words are accumulated before the tables are updated.",
)

WORD2VEC = Family(
    name="word2vec",
    paper="Mikolov et al. 2013, Distributed Representations of Words and Phrases and their Compositionality",
    tokenizer="words",
    objective="skip-gram or CBOW",
    trunk_config=trunk_config,
    sizes={"tiny": {"dim": 100, "vocab_size": 40_000}, "base": {"dim": 300, "vocab_size": 692_000}},
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("Word2Vec", _ARCHITECTURES),
    base_model_prefix="trunk.",
    weight_maps=same_names("trunk.embeddings.tokens.weight"),
    head_weight_maps=_WORD2VEC_WEIGHT_MAPS,
    departures=(
        *_SHARED_DEPARTURES,
        "A negative sample that equals the target is not resampled.",
        "Phrases are not merged into words.",
    ),
)

FASTTEXT = Family(
    name="fasttext",
    paper="Bojanowski et al. 2017, Enriching Word Vectors with Subword Information",
    tokenizer="words",
    objective="skip-gram or CBOW over character n-grams",
    trunk_config=subword_trunk_config,
    sizes={
        "tiny": {"dim": 100, "vocab_size": 40_000, "num_buckets": 100_000},
        "base": {"dim": 300, "vocab_size": 1_000_000},
    },
    num_params={},
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("FastText", _ARCHITECTURES),
    base_model_prefix="trunk.",
    weight_maps=same_names("trunk.embeddings.tokens.weight", "trunk.embeddings.ngrams.weight"),
    head_weight_maps=_WORD2VEC_WEIGHT_MAPS,
    departures=(
        *_SHARED_DEPARTURES,
        "A word's vector is the mean of its rows, as in the authors' code; the paper uses the sum.",
    ),
)

GLOVE = Family(
    name="glove",
    paper="Pennington et al. 2014, GloVe: Global Vectors for Word Representation",
    tokenizer="words",
    objective="least squares on the logarithms of co-occurrence counts",
    trunk_config=trunk_config,
    sizes={"tiny": {"dim": 100, "vocab_size": 40_000}, "base": {"dim": 300, "vocab_size": 400_000}},
    num_params={},
    pretraining_heads=glove_heads,
    task_head=task_head,
    to_hf_config=to_hf_config,
    from_hf_config=from_hf_config,
    architectures=native_architectures("GloVe", {"WithCount": ("count",)}),
    base_model_prefix="trunk.",
    weight_maps=same_names("trunk.embeddings.tokens.weight"),
    head_weight_maps=NATIVE_LABEL_HEADS
    | {"count": same_names("heads.count.context_embeddings", "heads.count.bias", "heads.count.word_bias")},
    departures=(
        "Updates are made for a thousand cells at once, and AdaGrad's sums include the current gradient.",
        "A trained model contains the sum of the two tables, not each of them (§4.2).",
    ),
)
