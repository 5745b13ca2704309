"""Baselines of texts: the best blind guess, and a model of the surface, for each task but tagging (`taggers.py`)."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyseme.tasks.readers.rows import parse_float

Cluster = list[tuple[int, int]]


def majority_label(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Always predict the most frequent label."""
    best = min((-n, label) for label, n in Counter(e.label for e in train).items())[1]
    return [best] * len(dev)


def mean_number(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    """Always predict the mean."""
    return [statistics.fmean(_numbers(train))] * len(dev)


def linear_classifier(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Predict by logistic regression on TF-IDF of words and bigrams."""
    if len({e.label for e in train}) < 2:
        return majority_label(train, dev)
    from sklearn.linear_model import LogisticRegression

    return _fit_predict(LogisticRegression(C=10.0, max_iter=2000), train, [e.label for e in train], dev)


def linear_regressor(train: Sequence[Any], dev: Sequence[Any]) -> list[float]:
    """Predict by ridge regression on TF-IDF of words and bigrams."""
    if len({e.label for e in train}) < 2:
        return mean_number(train, dev)
    from sklearn.linear_model import Ridge

    return _fit_predict(Ridge(), train, _numbers(train), dev)


def _fit_predict(model: Any, train: Sequence[Any], targets: Sequence[Any], dev: Sequence[Any]) -> list[Any]:
    train_features, dev_features = _featurize(*([(e.text, e.pair) for e in examples] for examples in (train, dev)))
    return model.fit(train_features, targets).predict(dev_features).tolist()


def linear_choice(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Choose the text whose pair with the prompt looks most like a correct one to logistic regression."""
    from sklearn.linear_model import LogisticRegression

    train_pairs, dev_pairs = ([(e.text, choice) for e in examples for choice in e.choices] for examples in (train, dev))
    labels = [str(int(str(j) == e.label)) for e in train for j in range(len(e.choices))]
    train_features, dev_features = _featurize(train_pairs, dev_pairs)
    model = LogisticRegression(C=10.0, max_iter=2000).fit(train_features, labels)
    probabilities = iter(model.predict_proba(dev_features)[:, 1])
    return [str(-max((next(probabilities), -j) for j in range(len(e.choices)))[1]) for e in dev]


def first_words(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Answer with the first words of the context, or not at all if most questions have no answer."""
    length = _median_answer_length(train)
    return [" ".join(e.context.split()[:length]) for e in dev]


def sliding_window(train: Sequence[Any], dev: Sequence[Any]) -> list[str]:
    """Answer with the words that are nearest to the words of the question; only the number of words is learned."""
    length = _median_answer_length(train)
    return [_sliding_window_answer(e.context, e.question, length) for e in dev]


def no_mentions(train: Sequence[Any], dev: Sequence[Any]) -> list[Any]:
    """Predict no mentions at all."""
    return [()] * len(dev)


def string_match(train: Sequence[Any], dev: Sequence[Any]) -> list[list[Cluster]]:
    """Link spans that were mentions in training if their words are the same."""
    known = {_span_words(e, a, b) for e in train for cluster in e.clusters or () for a, b in cluster}
    longest = max((len(words) for words in known), default=0)
    predictions = []
    for example in dev:
        size, chains = len(example.words), dict[tuple[str, ...], Cluster]()
        for a in range(size):
            for b in range(a, min(a + longest, size)):
                if (words := _span_words(example, a, b)) in known:
                    chains.setdefault(words, []).append((a, b))
        predictions.append([chain for chain in chains.values() if len(chain) > 1])
    return predictions


def _numbers(examples: Sequence[Any]) -> list[float]:
    return [parse_float(e.label, e.location) for e in examples]


def _featurize(train: Sequence[tuple[str, str | None]], dev: Sequence[tuple[str, str | None]]) -> tuple[Any, Any]:
    """Return TF-IDF of each text; for pairs also their difference, product and overlap."""
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
    """Return the share of common words in the first text, the second and both, and the ratio of their sizes."""
    a, b = set(first.lower().split()), set(second.lower().split())
    shared, (small, large) = len(a & b), sorted((len(a), len(b)))
    parts = ((shared, len(a)), (shared, len(b)), (shared, len(a | b)), (small, large))
    return [part / max(whole, 1) for part, whole in parts]


def _median_answer_length(train: Sequence[Any]) -> int:
    """Return the median number of words of the answers, 0 if most questions have none."""
    return statistics.median_high(len(e.gold[0].split()) if e.gold else 0 for e in train)


def _sliding_window_answer(context: str, question: str, length: int, window: int = 8) -> str:
    """Return the words around which most words of the question stand, weighted by rarity, but none of the question's
    own words (Richardson et al. 2013, §5.1)."""
    words = context.split()
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    counts, question_words = Counter(plain), set(re.findall(r"\w+", question.lower()))
    weights = [math.log(1 + 1 / counts[word]) if word in question_words else 0.0 for word in plain]

    def window_score(i: int) -> float:
        before, behind = weights[max(i - window, 0) : i], weights[i + length : i + length + window]
        around = sum(w / d for side in (before[::-1], behind) for d, w in enumerate(side, 1))
        return around - 3 * sum(weights[i : i + length])

    best = max(range(max(len(words) - length + 1, 1)), key=window_score)
    return " ".join(words[best : best + length])


def _span_words(example: Any, first: int, last: int) -> tuple[str, ...]:
    return tuple(word.lower() for word in example.words[first : last + 1])
