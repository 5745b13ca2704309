"""How much the score of a model depends on the examples, from the files that studies keep for each metric.

A file holds the `points` of examples (and their `groups`: the score is the mean of group means), the `bits` and
`characters` of texts, or `gold` and `predictions` with the `task` and the `metric` that scores them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import DataError
from polyseme.evaluation.comparison.finetuning_runs import to_hashable
from polyseme.evaluation.comparison.multi_bootstrap import multi_bootstrap, resample_metric, resample_points
from polyseme.evaluation.comparison.significance import percentile_interval
from polyseme.io.json import read_json_object
from polyseme.tasks import task_from_json

NUM_METRIC_RESAMPLES = 100  # of metrics that are no means: enough for a variance
NUM_RESAMPLES = 1000


def example_deviations(path: Path) -> np.ndarray:
    """Return a vector whose product with that of another model is the covariance of their scores over examples."""
    return _deviations(path, path.stat().st_mtime_ns)


def multi_bootstrap_interval(
    first: Sequence[Path], second: Sequence[Path], is_paired: bool = False
) -> tuple[float, float]:
    """Return the 95 % interval of a difference by the multi-bootstrap; the files are of the seeds of two arms.

    With few seeds it is too narrow. It is for comparison with papers that report it.
    """
    times = tuple(path.stat().st_mtime_ns for path in (*first, *second))
    return _bootstrap_interval(tuple(first), tuple(second), is_paired, times)


@lru_cache(maxsize=1024)
def _bootstrap_interval(
    first: tuple[Path, ...], second: tuple[Path, ...], is_paired: bool, times: tuple[int, ...]
) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    files = [read_json_object(path) for path in (*first, *second)]
    if "points" in files[0]:
        scores = resample_points(_stack(files, "points"), NUM_RESAMPLES, rng, files[0].get("groups"))
    elif "bits" in files[0]:
        bits, characters = _stack(files, "bits"), _stack(files, "characters")
        functions = [lambda i, b=b, c=c: b[i].sum() / c[i].sum() for b, c in zip(bits, characters)]
        scores = resample_metric(functions, bits.shape[1], NUM_RESAMPLES, rng)
    else:
        scores = np.stack([_resampled(path, time) for path, time in zip((*first, *second), times)])
    rows = list(scores[:, None])
    arms = multi_bootstrap([rows[: len(first)], rows[len(first) :]], rng, (0, 0) if is_paired else ())
    return percentile_interval(arms[0] - arms[1])


def _stack(files: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.stack([np.asarray(file[name], dtype=np.float64) for file in files])


@lru_cache(maxsize=1024)
def _deviations(path: Path, modified: int) -> np.ndarray:
    file = read_json_object(path)
    if "bits" in file and len(file["bits"]) != len(file.get("characters", ())):
        raise DataError(f"{path} is damaged: it needs as many characters as bits")
    if "points" in file:
        points = np.asarray(file["points"], dtype=np.float64)
        groups = np.asarray(file.get("groups") or np.zeros(len(points), dtype=int))
        sizes = np.bincount(groups)
        means = np.bincount(groups, points) / np.maximum(sizes, 1)
        return (points - means[groups]) / sizes[groups] / np.count_nonzero(sizes)
    if "bits" in file:
        bits, characters = (np.asarray(file[name], dtype=np.float64) for name in ("bits", "characters"))
        return (bits - bits.sum() / characters.sum() * characters) / characters.sum()
    scores = _resampled(path, modified)
    return (scores - scores.mean()) / np.sqrt(len(scores) - 1)


@lru_cache(maxsize=1024)
def _resampled(path: Path, modified: int) -> np.ndarray:
    """Return the mean score of the fine-tuning seeds on resampled examples, the same in all files of a metric."""
    score_fns, num_examples = _score_fns(path)
    scores = resample_metric(score_fns, num_examples, NUM_METRIC_RESAMPLES, np.random.default_rng(0)).mean(axis=0)
    return np.where(np.isnan(scores), np.nanmean(scores) if np.isfinite(scores).any() else 0.0, scores)


def _score_fns(path: Path) -> tuple[list[Callable[[np.ndarray], float]], int]:
    file = read_json_object(path)
    try:
        task, metric = task_from_json(file["task"]), file["metric"]
        gold, seeds = to_hashable(file["gold"]), [to_hashable(each) for each in file["predictions"]]
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds neither points nor predictions of a task ({error!r})") from None

    def score_fn(predictions: Sequence[Any]) -> Callable[[np.ndarray], float]:
        return lambda indices: task.score([gold[i] for i in indices], [predictions[i] for i in indices])[metric]

    return [score_fn(predictions) for predictions in seeds], len(gold)
