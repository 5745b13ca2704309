"""What a prediction is worth: one dictionary of numbers for each kind of task."""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from polyseme.errors import UnsupportedError
from polyseme.nn.heads.tag_schemes import TAG_PATTERN, extract_entities
from polyseme.tasks.examples import TaskType
from polyseme.tasks.metrics.coreference import coreference_metrics

DEFAULT_METRIC: dict[TaskType, str] = {  # the headline
    "classification": "accuracy",
    "pair": "accuracy",
    "regression": "spearman",
    "choice": "accuracy",
    "tagging": "f1",
    "span": "f1",
    "coreference": "f1",
}
PUNCTUATION = frozenset(string.punctuation)


def compute_metrics(
    task_type: TaskType, gold: Sequence, predicted: Sequence, labels: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics of a kind over true and predicted labels, which for tagging are sequences of tags.

    `labels` are all there could be, in sorted order; without them, those that occur.
    """
    if task_type == "regression":
        return regression_metrics(gold, predicted)
    if task_type == "span":
        return span_metrics(gold, predicted)
    if task_type == "coreference":
        return coreference_metrics(gold, predicted)
    if task_type == "choice":
        return {"accuracy": sum(a == b for a, b in zip(gold, predicted, strict=True)) / max(len(gold), 1)}
    return (
        tagging_metrics(gold, predicted) if task_type == "tagging" else classification_metrics(gold, predicted, labels)
    )


def require_dependencies(task_type: TaskType) -> None:
    """Say at once, and not after an hour of training, that the library a metric needs is not here."""
    if task_type == "regression" and importlib.util.find_spec("scipy") is None:
        raise UnsupportedError("scipy is needed for this: pip install 'polyseme[tasks]'")


def classification_metrics(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()
) -> dict[str, float]:
    """Accuracy, the mean F1 of all labels that occur, Matthews' correlation; of two labels, the F1 of the second.

    All come from the table of true against predicted labels; a share of nothing is 0.
    """
    label_ids = {name: i for i, name in enumerate(sorted({*gold, *predicted}))}
    cell_ids = [label_ids[a] * len(label_ids) + label_ids[b] for a, b in zip(gold, predicted, strict=True)]
    confusion = np.bincount(cell_ids, minlength=len(label_ids) ** 2).reshape(len(label_ids), -1).astype(np.float64)
    correct, gold_counts, predicted_counts, total = (
        confusion.diagonal(),
        confusion.sum(1),
        confusion.sum(0),
        max(confusion.sum(), 1.0),
    )
    f1 = 2 * correct / np.maximum(gold_counts + predicted_counts, 1)
    variance_product = (total**2 - (gold_counts**2).sum()) * (total**2 - (predicted_counts**2).sum())
    metrics = {
        "accuracy": float(correct.sum() / total),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float((correct.sum() * total - gold_counts @ predicted_counts) / np.sqrt(variance_product))
        if variance_product > 0
        else 0.0,
    }
    all_labels = list(labels) or list(label_ids)
    if len(all_labels) == 2:
        metrics["f1"] = float(f1[label_ids[all_labels[1]]]) if all_labels[1] in label_ids else 0.0
    return metrics


def regression_metrics(gold: Sequence[str | float], predicted: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, 0 where one side is constant; and the mean squared error."""
    require_dependencies("regression")
    from scipy import stats

    gold_values, predicted_values = (np.array(values, dtype=np.float64) for values in (gold, predicted))
    is_constant = len(gold_values) < 2 or np.ptp(gold_values) == 0 or np.ptp(predicted_values) == 0
    return {
        "pearson": 0.0 if is_constant else float(stats.pearsonr(gold_values, predicted_values).statistic),
        "spearman": 0.0 if is_constant else float(stats.spearmanr(gold_values, predicted_values).statistic),
        "mse": float(np.square(gold_values - predicted_values).mean()),
    }


def tagging_metrics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]]) -> dict[str, float]:
    """Word accuracy; precision, recall and F1 of what was found. A word without a tag, None, is wrong.

    Found are entities, as conlleval counts them, where tags look like `B-X` and `I-X`: type and both borders
    must be right. With other tags they are the words with any tag but O.
    """
    tag_set = {tag for tags in (*gold, *predicted) for tag in tags if tag is not None}
    extract_spans = extract_entities if tag_set != {"O"} and all(map(TAG_PATTERN.fullmatch, tag_set)) else _tagged_words
    num_correct = num_predicted = num_gold = num_equal_tags = num_words = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = extract_spans(gold_tags), extract_spans([tag or "O" for tag in predicted_tags])
        num_correct += len(gold_spans & predicted_spans)
        num_gold += len(gold_spans)
        num_predicted += len(predicted_spans)
        num_equal_tags += sum(a == b for a, b in zip(gold_tags, predicted_tags, strict=True))
        num_words += len(gold_tags)
    return {
        "accuracy": num_equal_tags / max(num_words, 1),
        "precision": num_correct / max(num_predicted, 1),
        "recall": num_correct / max(num_gold, 1),
        "f1": 2 * num_correct / max(num_predicted + num_gold, 1),
    }


def span_metrics(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Exact matches and F1 over words, each the best over a question's true answers, as SQuAD's scripts count them.

    Where some questions have no answer, those with one and those without are shown apart too.
    """
    exact, f1 = squad_scores(gold, predicted)
    metrics = {"exact": float(exact.mean()), "f1": float(f1.mean())}
    has_answer = np.array([bool(answers) for answers in gold])
    if not has_answer.all():
        metrics |= {"no_answer_accuracy": float(exact[~has_answer].mean())}
        if has_answer.any():
            metrics |= {
                "has_answer_exact": float(exact[has_answer].mean()),
                "has_answer_f1": float(f1[has_answer].mean()),
            }
    return metrics


def squad_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Exact and F1 of each question. Where some have no answer the rules are those of SQuAD 2.0, else of 1.1; they
    differ in what texts are worth that are nothing but articles and punctuation."""
    is_squad_v2 = not all(gold)
    rows = []
    for answers, text in zip(gold, predicted, strict=True):
        prediction = normalize_answer(text)
        references = [normalize_answer(answer) for answer in answers]
        if is_squad_v2:
            references = [reference for reference in references if reference] or [""]
        rows.append(
            [
                max(reference == prediction for reference in references),
                max(word_f1(reference, prediction, is_squad_v2) for reference in references),
            ]
        )
    exact, f1 = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return exact, f1


def normalize_answer(text: str) -> str:
    """A text without case, punctuation and articles, single spaces between its words."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def word_f1(reference: str, prediction: str, is_squad_v2: bool) -> float:
    """F1 of the words of two bare texts; by the rules of SQuAD 2.0 two without any are equal."""
    a, b = reference.split(), prediction.split()
    if is_squad_v2 and not (a and b):
        return float(a == b)
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def _tagged_words(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    return {(tag, i, i) for i, tag in enumerate(tags) if tag != "O"}
