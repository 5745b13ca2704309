"""Static word vectors: word2vec, fastText and GloVe."""

from dataclasses import replace

from polyseme.families import hf
from polyseme.families.family import HEAD_POOLING, Family
from polyseme.nn.heads.base import HeadConfig
from polyseme.nn.heads.classification import ClassificationHeadConfig
from polyseme.nn.heads.word_vectors import GloVeHeadConfig, HierarchicalSoftmaxHeadConfig, NegativeSamplingHeadConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.subwords import SubwordEmbeddingsConfig
from polyseme.nn.trunks.shallow import StaticEmbeddingTrunkConfig

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
    """Return the heads of negative sampling and hierarchical softmax, of which a run trains one."""
    vocab_size = config.embeddings.vocab_size
    return {
        "negative_sampling": NegativeSamplingHeadConfig(vocab_size),
        "hierarchical_softmax": HierarchicalSoftmaxHeadConfig(vocab_size),
    }


def task_head(name: str, labels: tuple[str, ...], config: StaticEmbeddingTrunkConfig) -> HeadConfig:
    """Return a linear head without dropout."""
    return ClassificationHeadConfig(labels, HEAD_POOLING[name])


_ROWS = (*hf.required("dim", "vocab_size", "max_len"), *hf.optional("dropout"))
_SUBWORD_ROWS = (*_ROWS, *hf.required("num_buckets", "min_n", "max_n"))
_PATHS = {name: f"embeddings.{name}" for name in ("dropout", "num_buckets", "min_n", "max_n")}
_CLASSES = {"WithNegativeSampling": ("negative_sampling",), "WithHierarchicalSoftmax": ("hierarchical_softmax",)}
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
    pretraining_heads=pretraining_heads,
    task_head=task_head,
    hf_config=hf.ConfigTable("", trunk_config, _ROWS, _PATHS),
    architectures=hf.architectures("Word2Vec", **_CLASSES),
    head_weight_maps={
        "negative_sampling": hf.same_names("heads.negative_sampling.output_embeddings"),
        "hierarchical_softmax": hf.same_names(
            "heads.hierarchical_softmax.node_embeddings", "heads.hierarchical_softmax.counts"
        ),
        **hf.NATIVE_LABEL_HEADS,
    },
    departures=(
        *_SHARED_DEPARTURES,
        "A negative sample that equals the target is not resampled.",
        "Phrases are not merged into words.",
    ),
)

FASTTEXT = replace(
    WORD2VEC,
    name="fasttext",
    paper="Bojanowski et al. 2017, Enriching Word Vectors with Subword Information",
    objective="skip-gram or CBOW over character n-grams",
    trunk_config=subword_trunk_config,
    sizes={
        "tiny": {"dim": 100, "vocab_size": 40_000, "num_buckets": 100_000},
        "base": {"dim": 300, "vocab_size": 1_000_000},
    },
    hf_config=hf.ConfigTable("", subword_trunk_config, _SUBWORD_ROWS, _PATHS),
    architectures=hf.architectures("FastText", **_CLASSES),
    departures=(
        *_SHARED_DEPARTURES,
        "A word's vector is the mean of its rows, as in the authors' code; the paper uses the sum.",
    ),
)

GLOVE = replace(
    WORD2VEC,
    name="glove",
    paper="Pennington et al. 2014, GloVe: Global Vectors for Word Representation",
    objective="least squares on the logarithms of co-occurrence counts",
    sizes={"tiny": {"dim": 100, "vocab_size": 40_000}, "base": {"dim": 300, "vocab_size": 400_000}},
    pretraining_heads=lambda config: {"count": GloVeHeadConfig(config.embeddings.vocab_size)},
    architectures=hf.architectures("GloVe", WithCount=("count",)),
    head_weight_maps={
        "count": hf.same_names("heads.count.context_embeddings", "heads.count.bias", "heads.count.word_bias"),
        **hf.NATIVE_LABEL_HEADS,
    },
    departures=(
        "Updates are made for a thousand cells at once, and AdaGrad's sums include the current gradient.",
        "A trained model contains the sum of the two tables, not each of them (§4.2).",
    ),
)
