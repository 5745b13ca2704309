"""The rows a result must be compared with: the best blind guess, a linear model of the surface, and for tags the two
models that chose them together before networks did."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.tasks.baselines.feature_taggers import TaggerType, predict_chain_tags, word_features
from polyseme.tasks.examples import Example, TaskType, parse_float
from polyseme.tasks.metrics.standard import compute_metrics

MetricsFn = Callable[[Sequence[Example], Sequence[Any]], dict[str, float]]


def majority_baseline(
    train: Sequence[Example], dev: Sequence[Example], task_type: TaskType, extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """The metrics of always saying what is most frequent in training; of numbers, their mean; the first words of a
    context, or no answer if most questions have none; no mentions at all. As everywhere here, `extra_metrics` are
    further metrics.
    """
    labels, gold = _flat_labels(train, task_type), _gold_answers(dev, task_type)
    predictions: list[Any]
    if task_type == "regression":
        predictions = [statistics.fmean(map(float, labels))] * len(gold)
    elif task_type == "coreference":
        predictions = [()] * len(gold)
    elif task_type == "span":
        predictions = [" ".join((e.text or "").split()[: _median_answer_length(train)]) for e in dev]
    else:
        most_frequent = min((-n, label) for label, n in Counter(labels).items())[1]
        predictions = (
            [(most_frequent,) * len(tags) for tags in gold] if task_type == "tagging" else [most_frequent] * len(gold)
        )
    return _score(dev, task_type, predictions, labels, extra_metrics)


def linear_baseline(
    train: Sequence[Example], dev: Sequence[Example], task_type: TaskType, extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """The metrics of a linear model: TF-IDF of words and bigrams, or a window over each word for tagging.

    Labels and choices come of logistic regression, numbers of ridge regression, tags of a support vector machine. An
    answer in a text comes of no learning: it stands where most of the question's words are near. Stretches of a
    document that were mentions in training are one if their words are the same.
    """
    _require_sklearn()
    labels = _flat_labels(train, task_type)
    if task_type == "span":
        return _score(
            dev,
            task_type,
            [_sliding_window_answer(e, _median_answer_length(train)) for e in dev],
            labels,
            extra_metrics,
        )
    if task_type == "coreference":
        return _score(dev, task_type, _string_match_coref(train, dev), labels, extra_metrics)
    if len(set(labels)) < 2 and task_type != "choice":
        return majority_baseline(train, dev, task_type, extra_metrics)
    predict_by_task: dict[str, Callable[..., list[Any]]] = {"tagging": _predict_tags, "choice": _predict_choices}
    predictions = (
        predict_by_task[task_type](train, dev)
        if task_type in predict_by_task
        else _predict_linear(train, dev, task_type)
    )
    return _score(dev, task_type, predictions, labels, extra_metrics)


def crf_baseline(
    train: Sequence[Example], dev: Sequence[Example], task_type: TaskType, extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """The metrics of a conditional random field over features made by hand (`tasks/baselines/feature_taggers.py`)."""
    return _chain_baseline("crf", train, dev, task_type, extra_metrics)


def memm_baseline(
    train: Sequence[Example], dev: Sequence[Example], task_type: TaskType, extra_metrics: MetricsFn | None = None
) -> dict[str, float]:
    """The metrics of a maximum entropy Markov model over the same features."""
    return _chain_baseline("memm", train, dev, task_type, extra_metrics)


BASELINES = {"majority": majority_baseline, "linear": linear_baseline, "memm": memm_baseline, "crf": crf_baseline}


def check_baseline(name: str, task_type: TaskType) -> None:
    """Whether there is such a row for such a task."""
    if name not in BASELINES:
        raise ConfigError(f"there is no baseline {name!r}; {suggest(name, BASELINES)}")
    if name in ("memm", "crf") and task_type != "tagging":
        raise ConfigError(f"the baseline {name} is for tagging, not for {task_type}")
    if name != "majority":
        _require_sklearn()


def _chain_baseline(
    tagger_type: TaggerType,
    train: Sequence[Example],
    dev: Sequence[Example],
    task_type: TaskType,
    extra_metrics: MetricsFn | None,
) -> dict[str, float]:
    check_baseline(tagger_type, task_type)
    labels = _flat_labels(train, task_type)
    if len(set(labels)) < 2:
        return majority_baseline(train, dev, task_type, extra_metrics)
    return _score(dev, task_type, predict_chain_tags(tagger_type, train, dev), labels, extra_metrics)


def _score(
    dev: Sequence[Example],
    task_type: TaskType,
    predictions: list[Any],
    labels: Sequence[Any],
    extra_metrics: MetricsFn | None,
) -> dict[str, float]:
    has_label_set = task_type not in ("regression", "span", "coreference")
    metrics = compute_metrics(
        task_type, _gold_answers(dev, task_type), predictions, sorted(set(labels)) if has_label_set else ()
    )
    return metrics | (extra_metrics(dev, predictions) if extra_metrics else {})


def _require_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise UnsupportedError("scikit-learn is needed for this: pip install 'polyseme[tasks]'") from None


def _flat_labels(examples: Sequence[Example], task_type: TaskType) -> list[Any]:
    gold = _gold_answers(examples, task_type)
    return [tag for tags in gold for tag in tags] if task_type == "tagging" else gold


def _gold_answers(examples: Sequence[Example], task_type: TaskType) -> list[Any]:
    for example in examples:
        if example.gold is None:
            raise DataError(f"{example.location}: there is no label to compare with")
    return [parse_float(e.label, e.location) if task_type == "regression" else e.gold for e in examples]


def _predict_linear(train: Sequence[Example], dev: Sequence[Example], task_type: TaskType) -> list[Any]:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    has_pairs = task_type == "pair" or any(e.pair for e in train)
    vectorizer.fit([text for e in train for text in (e.text, e.pair) if text])

    def featurize(examples: Sequence[Example]) -> Any:
        first = vectorizer.transform([e.text or "" for e in examples])
        if not has_pairs:
            return first
        second = vectorizer.transform([e.pair or "" for e in examples])
        product = first.multiply(second)
        overlap_features = sparse.csr_matrix([_overlap_features(e.text or "", e.pair or "") for e in examples])
        return sparse.hstack([first, second, abs(first - second), product, product.sum(1), overlap_features]).tocsr()

    model = Ridge() if task_type == "regression" else LogisticRegression(C=10.0, max_iter=2000)
    fitted_model = model.fit(featurize(train), _gold_answers(train, task_type))
    if task_type == "choice":
        return list(fitted_model.predict_proba(featurize(dev))[:, 1])
    predictions: list[Any] = fitted_model.predict(featurize(dev)).tolist()
    return predictions


def _predict_choices(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """Of each question's choices the one whose pair with the text looks most like a right one."""
    candidates = [(i, j) for i, e in enumerate(dev) for j in range(len(e.choices or ()))]
    probabilities = _predict_linear(_choices_to_pairs(train), _choices_to_pairs(dev), "choice")
    best: dict[int, tuple[float, int]] = {}
    for (i, j), probability in zip(candidates, probabilities):
        best[i] = max(best.get(i, (-1.0, 0)), (probability, -j))
    return [str(-best[i][1]) for i in range(len(dev))]


def _choices_to_pairs(examples: Sequence[Example]) -> list[Example]:
    return [
        Example(e.location, e.text, choice, label=str(int(str(j) == e.label)))
        for e in examples
        for j, choice in enumerate(e.choices or ())
    ]


def _overlap_features(first: str, second: str) -> list[float]:
    """How much two texts share: of the first one's words, of the second's, of all; how alike in length."""
    a, b = set(first.lower().split()), set(second.lower().split())
    num_shared = len(a & b)
    sizes = sorted((len(a), len(b)))
    ratios = ((num_shared, len(a)), (num_shared, len(b)), (num_shared, len(a | b)), (sizes[0], sizes[1]))
    return [numerator / max(denominator, 1) for numerator, denominator in ratios]


def _median_answer_length(train: Sequence[Example]) -> int:
    """Words of the answer in the middle of all answers, 0 if most questions have none."""
    sizes = sorted(len(e.gold[0].split()) if e.gold else 0 for e in train)
    return sizes[len(sizes) // 2]


def _sliding_window_answer(example: Example, length: int, window: int = 8) -> str:
    """The words around which most words of the question stand, rare ones counting for more (Richardson et al. 2013's
    sliding window, §5.1), but none of the question's own."""
    words = (example.text or "").split()
    normalized_words = [re.sub(r"\W", "", word).lower() for word in words]
    counts, question_words = Counter(normalized_words), set(re.findall(r"\w+", (example.pair or "").lower()))
    weights = [math.log(1 + 1 / counts[word]) if word in question_words else 0.0 for word in normalized_words]

    def window_score(i: int) -> float:
        before, after = weights[max(i - window, 0) : i], weights[i + length : i + length + window]
        context_score = sum(w / d for side in (before[::-1], after) for d, w in enumerate(side, 1))
        return context_score - 3 * sum(weights[i : i + length])

    best_start = max(range(max(len(words) - length + 1, 1)), key=window_score)
    return " ".join(words[best_start : best_start + length])


def _string_match_coref(train: Sequence[Example], dev: Sequence[Example]) -> list[list[list[tuple[int, int]]]]:
    known_mentions = {_span_words(e, a, b) for e in train for cluster in e.clusters or () for a, b in cluster}
    max_mention_len = max((len(words) for words in known_mentions), default=0)
    predictions = []
    for example in dev:
        num_words, clusters_by_text = len(example.words or ()), dict[tuple[str, ...], list[tuple[int, int]]]()
        for a in range(num_words):
            for b in range(a, min(a + max_mention_len, num_words)):
                if (words := _span_words(example, a, b)) in known_mentions:
                    clusters_by_text.setdefault(words, []).append((a, b))
        predictions.append([mentions for mentions in clusters_by_text.values() if len(mentions) > 1])
    return predictions


def _span_words(example: Example, first: int, last: int) -> tuple[str, ...]:
    return tuple(word.lower() for word in (example.words or ())[first : last + 1])


def _predict_tags(train: Sequence[Example], dev: Sequence[Example]) -> list[tuple[str, ...]]:
    """A support vector machine: on tagged documentation as good as logistic regression, 100 times as fast."""
    from scipy import sparse
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.svm import LinearSVC

    vectorizer = DictVectorizer().fit(f for e in train for f in word_features(e))

    def featurize(examples: Sequence[Example]) -> Any:
        matrix = vectorizer.transform(f for e in examples for f in word_features(e))
        return sparse.csr_matrix(
            (matrix.data, matrix.indices, matrix.indptr), matrix.shape
        )  # 32-bit, as the solver needs

    model = LinearSVC(C=0.3, random_state=0).fit(featurize(train), _flat_labels(train, "tagging"))
    predicted_tags = iter(model.predict(featurize(dev)).tolist())
    return [tuple(next(predicted_tags) for _ in e.words or ()) for e in dev]
