"""Metrics of predictions: a function for each kind of task that returns numbers by name."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from polyseme.errors import require_package
from polyseme.nn.heads.tag_schemes import TAG_PATTERN, extract_entities

Labels = Sequence[str]
PUNCTUATION = frozenset(string.punctuation)


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Return the share of values that are equal."""
    return sum(a == b for a, b in zip(gold, predicted, strict=True)) / max(len(gold), 1)


def classification_metrics(
    gold: Labels, predicted: Labels, labels: Labels = (), *, positive_label: str = ""
) -> dict[str, float]:
    """Return accuracy, the mean F1 of all labels that occur, Matthews correlation, and the F1 of the positive label.

    Of two labels, the positive one is the second, as in GLUE and scikit-learn, unless `positive_label` names it. All
    come from the confusion matrix, in numpy: scikit-learn is optional, and the bootstrap calls this often.
    """
    label_ids = {name: i for i, name in enumerate(sorted({*gold, *predicted}))}
    cell_ids = [label_ids[a] * len(label_ids) + label_ids[b] for a, b in zip(gold, predicted, strict=True)]
    counts = np.bincount(np.array(cell_ids, np.int64), minlength=len(label_ids) ** 2)
    confusion = counts.reshape(len(label_ids), len(label_ids)).astype(np.float64)
    gold_counts, predicted_counts, total = confusion.sum(1), confusion.sum(0), max(confusion.sum(), 1.0)
    f1 = 2 * confusion.diagonal() / np.maximum(gold_counts + predicted_counts, 1)
    num_correct = confusion.trace()
    covariance = num_correct * total - gold_counts @ predicted_counts
    variances = (total**2 - (gold_counts**2).sum()) * (total**2 - (predicted_counts**2).sum())
    metrics = {
        "accuracy": float(num_correct / total),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float(covariance / np.sqrt(variances)) if variances > 0 else 0.0,
    }
    if positive_label := positive_label or default_positive_label(labels or list(label_ids)):
        metrics["f1"] = float(f1[label_ids[positive_label]]) if positive_label in label_ids else 0.0
    return metrics


def default_positive_label(labels: Labels) -> str:
    """Return the second of two labels (1 of 0 and 1, spam of ham and spam); empty if there are more or fewer."""
    return labels[1] if len(labels) == 2 else ""


def regression_metrics(gold: Sequence[str | float], predicted: Sequence[float]) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation, 0 where one side is constant, and the mean squared error."""
    stats = require_package("scipy.stats", "the correlation of numbers", "'polyseme[tasks]'")
    a, b = (np.array(values, dtype=np.float64) for values in (gold, predicted))
    is_constant = len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0
    pearson, spearman = (0.0 if is_constant else float(f(a, b).statistic) for f in (stats.pearsonr, stats.spearmanr))
    return {"pearson": pearson, "spearman": spearman, "mse": float(np.square(a - b).mean())}


def tagging_metrics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]]) -> dict[str, float]:
    """Return word accuracy, and precision, recall and F1 of entities. A word without a tag, None, is wrong.

    Entities are counted as conlleval does, where tags look like `B-X` and `I-X`: type and both borders must be correct.
    With other tags, every word with a tag other than O counts as one.
    """
    tag_set = {tag for tag in set(chain(*gold, *predicted)) if tag is not None}
    has_entities = tag_set != {"O"} and all(map(TAG_PATTERN.fullmatch, tag_set))
    counts = [_count_tags(tuple(a), tuple(b), has_entities) for a, b in zip(gold, predicted, strict=True)]
    num_equal, *entities = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0, 0)
    return {"accuracy": num_equal / max(sum(map(len, gold)), 1), **_precision_recall_f1(*entities)}


@lru_cache(maxsize=1 << 16)  # a bootstrap counts each sentence many times
def _count_tags(
    gold: tuple[str, ...], predicted: tuple[str | None, ...], has_entities: bool
) -> tuple[int, int, int, int]:
    """Return the numbers of equal tags, and of correct, predicted and gold entities of a sentence."""
    num_equal = sum(a == b for a, b in zip(gold, predicted, strict=True))
    extract_spans = extract_entities if has_entities else _tagged_words
    gold_spans, predicted_spans = extract_spans(gold), extract_spans([tag or "O" for tag in predicted])
    return num_equal, len(gold_spans & predicted_spans), len(predicted_spans), len(gold_spans)


def precision_recall_f1(pairs: Iterable[tuple[set[Any], set[Any]]]) -> dict[str, float]:
    """Return precision, recall and F1 over all gold and predicted sets."""
    counts = [(len(gold & predicted), len(predicted), len(gold)) for gold, predicted in pairs]
    return _precision_recall_f1(*(sum(column) for column in zip(*counts))) if counts else _precision_recall_f1(0, 0, 0)


def _precision_recall_f1(num_correct: int, num_predicted: int, num_gold: int) -> dict[str, float]:
    precision, recall = num_correct / max(num_predicted, 1), num_correct / max(num_gold, 1)
    return {"precision": precision, "recall": recall, "f1": 2 * num_correct / max(num_predicted + num_gold, 1)}


def span_metrics(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Return exact match and word F1, each the best over a question's true answers, as SQuAD's scripts count them.

    If some questions have no answer, both kinds of questions are also scored separately.
    """
    exact, f1 = squad_scores(gold, predicted)
    metrics = {"exact": float(exact.mean()), "f1": float(f1.mean())}
    has_answer = np.array([bool(answers) for answers in gold])
    if not has_answer.all():
        metrics["no_answer_accuracy"] = float(exact[~has_answer].mean())
        if has_answer.any():
            metrics["has_answer_exact"] = float(exact[has_answer].mean())
            metrics["has_answer_f1"] = float(f1[has_answer].mean())
    return metrics


def squad_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return exact match and F1 of each question.

    If some have no answer, the rules are those of SQuAD 2.0, else of 1.1. These differ for texts of nothing but
    articles and punctuation.
    """
    is_squad_v2 = not all(gold)
    scores = np.zeros((2, len(gold)))
    for i, (answers, text) in enumerate(zip(gold, predicted, strict=True)):
        prediction = normalize_answer(text)
        references = [normalize_answer(answer) for answer in answers]
        if is_squad_v2:
            references = [reference for reference in references if reference] or [""]
        scores[0, i] = prediction in references
        scores[1, i] = max(word_f1(reference, prediction, is_squad_v2) for reference in references)
    return scores[0], scores[1]


def normalize_answer(text: str) -> str:
    """Remove case, punctuation, articles and repeated spaces."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def word_f1(reference: str, prediction: str, is_squad_v2: bool) -> float:
    """Return the F1 of the words of two normalized texts; by the rules of SQuAD 2.0 two empty ones are equal."""
    a, b = reference.split(), prediction.split()
    if is_squad_v2 and not (a and b):
        return float(a == b)
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def _tagged_words(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    return {(tag, i, i) for i, tag in enumerate(tags) if tag != "O"}
