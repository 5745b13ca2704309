"""Baselines of tagging: the most frequent tag, a linear model of each word, and the two models that chose tags
together before networks did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyseme.tasks.baselines.feature_taggers import TaggerType, predict_chain_tags, require_sklearn, word_features

Tags = tuple[str, ...]


def majority_tag(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """Always predict the most frequent tag."""
    best = min((-n, tag) for tag, n in Counter(tag for e in train for tag in e.tags).items())[1]
    return [(best,) * len(e.words) for e in dev]


def linear_tags(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """A support vector machine over a window around each word.

    On tagged documentation it is as good as logistic regression and 100 times as fast.
    """
    require_sklearn()
    tags = [tag for e in train for tag in e.tags]
    if len(set(tags)) < 2:
        return majority_tag(train, dev)
    from scipy import sparse
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.svm import LinearSVC

    table = DictVectorizer().fit(f for e in train for f in word_features(e))

    def featurize(examples: Sequence[Any]) -> Any:
        matrix = table.transform(f for e in examples for f in word_features(e))
        return sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), matrix.shape)  # 32-bit for the solver

    model = LinearSVC(C=0.3, random_state=0).fit(featurize(train), tags)
    predicted = iter(model.predict(featurize(dev)).tolist())
    return [tuple(next(predicted) for _ in e.words) for e in dev]


def crf_tags(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """A conditional random field over hand-made features."""
    return _chain_tags("crf", train, dev)


def memm_tags(train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    """A maximum entropy Markov model over the same features."""
    return _chain_tags("memm", train, dev)


def _chain_tags(tagger_type: TaggerType, train: Sequence[Any], dev: Sequence[Any]) -> list[Tags]:
    require_sklearn()
    if len({tag for e in train for tag in e.tags}) < 2:
        return majority_tag(train, dev)
    return predict_chain_tags(tagger_type, train, dev)
