"""Accuracy on minimal pairs: how often a model gives the acceptable sentence the higher score.

Sentences are scored as they are written, by `LanguageModel.score`: a model lowercases a sentence only if its tokenizer
does, reads its own start token (and a masked model its end token), and predicts neither. Scores that differ by no more
than `TIE_TOLERANCE` are a tie, which counts as half and is reported: a tokenizer may give both sentences the same ids.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from polyseme.datasets.minimal_pairs import MinimalPair, read_minimal_pairs
from polyseme.datasets.published import published_table
from polyseme.errors import ConfigError, add_location, suggest
from polyseme.evaluation.comparison.finetuning_runs import short_model_names
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load
from polyseme.inference.results import TextScore
from polyseme.report.notebook import NotebookResult

MINIMAL_PAIR_TASKS = ("blimp", "minimal-pairs")
PAIR_OPTIONS = ("pll_metric", "normalization")
NORMALIZATIONS = ("none", "length")
TIE_TOLERANCE = 1e-5  # in nats
NUM_BLIMP_PARADIGMS = 67
_FLAGS = ("ensemble", "skip_bad", "strict")  # False is not set


@dataclass(frozen=True)
class MinimalPairResult(NotebookResult):
    """Accuracies of a model by paradigm and phenomenon, from 0 to 1; `accuracy` is the mean of the paradigms.

    `pll_metric` is the metric of a masked model's pseudo-log-likelihoods, else None.
    """

    model: str
    accuracy: float
    phenomena: dict[str, float]
    paradigms: dict[str, float]
    num_pairs: int
    num_ties: int
    task: str = "minimal-pairs"
    pll_metric: str | None = None
    normalization: str = "none"


def aggregate(paradigms: Mapping[str, float], phenomenon_of: Mapping[str, str]) -> tuple[float, dict[str, float]]:
    """Return the mean over paradigms, and the mean over the paradigms of each phenomenon, as in BLiMP's tables."""
    groups: dict[str, list[float]] = {}
    for paradigm, accuracy in paradigms.items():
        if phenomenon_of.get(paradigm):
            groups.setdefault(phenomenon_of[paradigm], []).append(accuracy)
    return fmean(paradigms.values()), {name: fmean(groups[name]) for name in sorted(groups)}


def evaluate_minimal_pairs(
    model: LanguageModel,
    pairs: Sequence[MinimalPair],
    pll_metric: str | None = None,
    normalization: str = "none",
    task: str = "minimal-pairs",
) -> MinimalPairResult:
    """Score both sentences of each pair. `normalization` `length` divides a score by the number of tokens.

    `pll_metric` applies to models whose score is a pseudo-log-likelihood, and requests one of a hybrid model.
    """
    points = score_pairs(model, pairs, pll_metric, normalization)
    by_group: dict[tuple[str, str], list[float]] = {}
    for pair, point in zip(pairs, points):
        by_group.setdefault((pair.paradigm, pair.phenomenon), []).append(point)
    phenomena_of = Counter(paradigm for paradigm, _ in by_group)
    names = {group: group[0] if phenomena_of[group[0]] == 1 else f"{group[0]} ({group[1]})" for group in by_group}
    paradigms = {names[group]: fmean(by_group[group]) for group in sorted(by_group)}
    accuracy, phenomena = aggregate(paradigms, {names[group]: group[1] for group in by_group})
    metric = (pll_metric or ("original" if model.has_pll_metric else None)) if model.supports_pll_metric else None
    counts = len(pairs), points.count(0.5)
    return MinimalPairResult(str(model.path), accuracy, phenomena, paradigms, *counts, task, metric, normalization)


def score_pairs(
    model: LanguageModel, pairs: Sequence[MinimalPair], pll_metric: str | None = None, normalization: str = "none"
) -> list[float]:
    """Return for each pair 1 if the model prefers the acceptable sentence, 0.5 for a tie, else 0."""
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"normalization is {normalization!r}; {suggest(normalization, NORMALIZATIONS)}")
    metric = pll_metric if model.supports_pll_metric else None
    all_texts = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    scores: list[TextScore] = [TextScore(0.0, 0)] * (2 * len(pairs))
    has_span = [pair.spans is not None for pair in pairs] * 2
    spans = [pair.spans[side] if pair.spans else (0, 0) for side in (0, 1) for pair in pairs]
    for is_region in {*has_span}:
        index = [i for i, value in enumerate(has_span) if value == is_region]
        texts = [all_texts[i] for i in index]
        selected = [spans[i] for i in index] if is_region else None
        with add_location((text, pair.location) for pair in pairs for text in (pair.good, pair.bad)):
            for i, score in zip(index, model.score(texts, pll_metric=metric, spans=selected)):
                scores[i] = score
    values = [s.log_prob / (s.num_tokens if normalization == "length" else 1) for s in scores]
    differences = [a - b for a, b in zip(values, values[len(pairs) :])]
    return [0.5 if abs(d) <= TIE_TOLERANCE else float(d > 0) for d in differences]


def run_minimal_pairs(
    task: str,
    models: Any,
    data: str | Path,
    pll_metric: str | None = None,
    normalization: str = "none",
    skip_bad: bool = False,
) -> Any:
    """Evaluate a model, loaded or a folder, on the pairs of a file or folder; a list of models gives a list."""
    is_single = not isinstance(models, list | tuple)
    loaded = [load(model) for model in ([models] if is_single else models)]
    if pll_metric is not None and not any(model.supports_pll_metric for model in loaded):
        raise ConfigError("`pll_metric` is for masked models, and none of these is one")
    pairs = read_minimal_pairs(data, skip_bad)
    results = [evaluate_minimal_pairs(model, pairs, pll_metric, normalization, task) for model in loaded]
    return results[0] if is_single else results


def select_options(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an evaluation that were set; raise `ConfigError` for one without effect on this task."""
    chosen = {name: value for name, value in options.items() if value is not None and (value or name not in _FLAGS)}
    is_pairs = task in MINIMAL_PAIR_TASKS
    for name in chosen:
        if is_pairs and name not in (*PAIR_OPTIONS, "skip_bad"):
            raise ConfigError(f"`{name}` has no effect on the task {task}")
        if not is_pairs and name in PAIR_OPTIONS:
            raise ConfigError(f"`{name}` is for the tasks {' and '.join(MINIMAL_PAIR_TASKS)}")
    return chosen


def minimal_pairs_table(task: str, results: Sequence[MinimalPairResult]) -> tuple[list[str], list[list[Any]]]:
    """Return the header and rows of a table by phenomenon, in percent, for BLiMP next to published results."""
    published = published_table("blimp").rows if task == "blimp" else ()
    models = [summary.model for summary in results]
    header = ["", *short_model_names(models), *(row.system for row in published)]
    names = ("accuracy", *dict.fromkeys(name for summary in results for name in summary.phenomena))
    rows: list[list[Any]] = []
    for name in names:
        values = [summary.accuracy if name == "accuracy" else summary.phenomena.get(name) for summary in results]
        cells = ["" if value is None else f"{100 * value:.1f}" for value in values]
        rows.append([name, *cells, *(f"{row.values[name]:.1f}" if name in row.values else "" for row in published)])
    counts = {
        "paradigms": [_count_paradigms(task, summary) for summary in results],
        "pairs": [str(summary.num_pairs) for summary in results],
        "ties": [str(summary.num_ties) for summary in results],
    }
    rows += [[name, *values, *[""] * len(published)] for name, values in counts.items()]
    return header, rows


def _count_paradigms(task: str, summary: MinimalPairResult) -> str:
    num_paradigms = len(summary.paradigms)
    is_part = task == "blimp" and num_paradigms != NUM_BLIMP_PARADIGMS
    return f"{num_paradigms} of {NUM_BLIMP_PARADIGMS}" if is_part else str(num_paradigms)
