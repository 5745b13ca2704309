"""Baselines of texts and pairs of texts: the best blind guess, and a linear model of the surface."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyseme.tasks.baselines.feature_taggers import require_sklearn
from polyseme.tasks.readers.rows import parse_float


def majority_label(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Always predict the most frequent label."""
    best = min((-n, label) for label, n in Counter(e.label for e in train).items())[1]
    return [best] * len(dev)


def mean_number(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    """Always predict the mean."""
    return [statistics.fmean(_numbers(train))] * len(dev)


def linear_classifier(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Logistic regression on TF-IDF of words and bigrams."""
    require_sklearn()
    if len({e.label for e in train}) < 2:
        return majority_label(train, dev)
    from sklearn.linear_model import LogisticRegression

    train_features, dev_features = _featurize(_pairs(train), _pairs(dev))
    model = LogisticRegression(C=10.0, max_iter=2000).fit(train_features, [e.label for e in train])
    labels: list[str] = model.predict(dev_features).tolist()
    return labels


def linear_regressor(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    """Ridge regression on TF-IDF of words and bigrams."""
    require_sklearn()
    if len({e.label for e in train}) < 2:
        return mean_number(train, dev)
    from sklearn.linear_model import Ridge

    train_features, dev_features = _featurize(_pairs(train), _pairs(dev))
    numbers: list[float] = Ridge().fit(train_features, _numbers(train)).predict(dev_features).tolist()
    return numbers


def linear_choice(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Choose the text whose pair with the prompt looks most like a right one to logistic regression."""
    require_sklearn()
    from sklearn.linear_model import LogisticRegression

    train_pairs, dev_pairs = ([(e.text, choice) for e in examples for choice in e.choices] for examples in (train, dev))
    labels = [str(int(str(j) == e.label)) for e in train for j in range(len(e.choices))]
    train_features, dev_features = _featurize(train_pairs, dev_pairs)
    model = LogisticRegression(C=10.0, max_iter=2000).fit(train_features, labels)
    probabilities = iter(model.predict_proba(dev_features)[:, 1])
    chosen = []
    for example in dev:
        best = max((next(probabilities), -j) for j in range(len(example.choices)))
        chosen.append(str(-best[1]))
    return chosen


def _numbers(examples: Sequence[Any]) -> list[float]:
    return [parse_float(e.label, e.location) for e in examples]


def _pairs(examples: Sequence[Any]) -> list[tuple[str, str | None]]:
    return [(e.text, e.pair) for e in examples]


def _featurize(train: Sequence[tuple[str, str | None]], dev: Sequence[tuple[str, str | None]]) -> tuple[Any, Any]:
    """TF-IDF of each text; of pairs also their difference, product and overlap."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    has_pairs = any(second for _, second in train)
    words.fit([text for pair in train for text in pair if text])

    def features(pairs: Sequence[tuple[str, str | None]]) -> Any:
        first = words.transform([a for a, _ in pairs])
        if not has_pairs:
            return first
        second = words.transform([b or "" for _, b in pairs])
        shared = first.multiply(second)
        overlap = sparse.csr_matrix([_overlap_features(a, b or "") for a, b in pairs])
        return sparse.hstack([first, second, abs(first - second), shared, shared.sum(1), overlap]).tocsr()

    return features(train), features(dev)


def _overlap_features(first: str, second: str) -> list[float]:
    """How much two texts share: of the first one's words, of the second's, of all; how alike in length."""
    a, b = set(first.lower().split()), set(second.lower().split())
    shared = len(a & b)
    sizes = sorted((len(a), len(b)))
    parts = ((shared, len(a)), (shared, len(b)), (shared, len(a | b)), (sizes[0], sizes[1]))
    return [part / max(whole, 1) for part, whole in parts]
