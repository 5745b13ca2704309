"""What a prediction is worth: one dictionary of numbers for each kind of task."""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from polyseme.errors import UserError
from polyseme.nn.heads.tag_schemes import CHUNK, chunks
from polyseme.tasks.examples import Kind
from polyseme.tasks.metrics.coreference import coreference

PRIMARY: dict[Kind, str] = {  # the headline
    "classification": "accuracy",
    "pair": "accuracy",
    "regression": "spearman",
    "choice": "accuracy",
    "tagging": "f1",
    "span": "f1",
    "coreference": "f1",
}
PUNCTUATION = frozenset(string.punctuation)


def score(kind: Kind, gold: Sequence, predicted: Sequence, labels: Sequence[str] = ()) -> dict[str, float]:
    """The metrics of a kind over true and predicted labels, which for tagging are sequences of tags.

    `labels` are all there could be, in sorted order; without them, those that occur.
    """
    if kind == "regression":
        return regression(gold, predicted)
    if kind == "span":
        return spans(gold, predicted)
    if kind == "coreference":
        return coreference(gold, predicted)
    if kind == "choice":
        return {"accuracy": sum(a == b for a, b in zip(gold, predicted, strict=True)) / max(len(gold), 1)}
    return tagging(gold, predicted) if kind == "tagging" else classification(gold, predicted, labels)


def require(kind: Kind) -> None:
    """Say at once, and not after an hour of training, that the library a metric needs is not here."""
    if kind == "regression" and importlib.util.find_spec("scipy") is None:
        raise UserError("scipy is needed for this: pip install 'polyseme[tasks]'")


def classification(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()) -> dict[str, float]:
    """Accuracy, the mean F1 of all labels that occur, Matthews' correlation; of two labels, the F1 of the second.

    All come from the table of true against predicted labels; a share of nothing is 0.
    """
    names = {name: i for i, name in enumerate(sorted({*gold, *predicted}))}
    pairs = [names[a] * len(names) + names[b] for a, b in zip(gold, predicted, strict=True)]
    counts = np.bincount(pairs, minlength=len(names) ** 2).reshape(len(names), -1).astype(np.float64)
    right, true, said, total = counts.diagonal(), counts.sum(1), counts.sum(0), max(counts.sum(), 1.0)
    f1 = 2 * right / np.maximum(true + said, 1)
    spread = (total**2 - (true**2).sum()) * (total**2 - (said**2).sum())
    found = {
        "accuracy": float(right.sum() / total),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float((right.sum() * total - true @ said) / np.sqrt(spread)) if spread > 0 else 0.0,
    }
    known = list(labels) or list(names)
    if len(known) == 2:
        found["f1"] = float(f1[names[known[1]]]) if known[1] in names else 0.0
    return found


def regression(gold: Sequence[str | float], predicted: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, 0 where one side is constant; and the mean squared error."""
    require("regression")
    from scipy import stats

    true, guess = (np.array(numbers, dtype=np.float64) for numbers in (gold, predicted))
    constant = len(true) < 2 or np.ptp(true) == 0 or np.ptp(guess) == 0
    return {
        "pearson": 0.0 if constant else float(stats.pearsonr(true, guess).statistic),
        "spearman": 0.0 if constant else float(stats.spearmanr(true, guess).statistic),
        "mse": float(np.square(true - guess).mean()),
    }


def tagging(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str | None]]) -> dict[str, float]:
    """Word accuracy; precision, recall and F1 of what was found. A word without a tag, None, is wrong.

    Found are entities, as conlleval counts them, where tags look like `B-X` and `I-X`: type and both borders
    must be right. With other tags they are the words with any tag but O.
    """
    names = {tag for tags in (*gold, *predicted) for tag in tags if tag is not None}
    marked = chunks if names != {"O"} and all(map(CHUNK.fullmatch, names)) else _marked
    right = found = wanted = equal = words = 0
    for true, guess in zip(gold, predicted, strict=True):
        of_true, of_guess = marked(true), marked([tag or "O" for tag in guess])
        right += len(of_true & of_guess)
        wanted += len(of_true)
        found += len(of_guess)
        equal += sum(a == b for a, b in zip(true, guess, strict=True))
        words += len(true)
    return {
        "accuracy": equal / max(words, 1),
        "precision": right / max(found, 1),
        "recall": right / max(wanted, 1),
        "f1": 2 * right / max(found + wanted, 1),
    }


def spans(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Exact matches and F1 over words, each the best over a question's true answers, as SQuAD's scripts count them.

    Where some questions have no answer, those with one and those without are shown apart too.
    """
    exact, f1 = question_scores(gold, predicted)
    found = {"exact": float(exact.mean()), "f1": float(f1.mean())}
    some = np.array([bool(answers) for answers in gold])
    if not some.all():
        found |= {"no_answer_accuracy": float(exact[~some].mean())}
        if some.any():
            found |= {"has_answer_exact": float(exact[some].mean()), "has_answer_f1": float(f1[some].mean())}
    return found


def question_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Exact and F1 of each question. Where some have no answer the rules are those of SQuAD 2.0, else of 1.1; they
    differ in what texts are worth that are nothing but articles and punctuation."""
    second = not all(gold)
    rows = []
    for answers, text in zip(gold, predicted, strict=True):
        said = bare(text)
        truths = [bare(answer) for answer in answers]
        if second:
            truths = [truth for truth in truths if truth] or [""]
        rows.append([max(truth == said for truth in truths), max(word_f1(truth, said, second) for truth in truths)])
    exact, f1 = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return exact, f1


def bare(text: str) -> str:
    """A text without case, punctuation and articles, single spaces between its words."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def word_f1(truth: str, said: str, second: bool) -> float:
    """F1 of the words of two bare texts; by the rules of SQuAD 2.0 two without any are equal."""
    a, b = truth.split(), said.split()
    if second and not (a and b):
        return float(a == b)
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def _marked(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    return {(tag, i, i) for i, tag in enumerate(tags) if tag != "O"}
