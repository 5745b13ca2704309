"""Intervals and paired tests of fine-tuning runs, from one bootstrap over examples and seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.evaluation.comparison.multi_bootstrap import multi_bootstrap, resample_metric
from polyseme.io.limits import MAX_RESAMPLES
from polyseme.report.pages.compare_tables import PairedTest

if TYPE_CHECKING:
    from polyseme.evaluation.comparison.finetuning_runs import FinetuneRun

MIN_RESAMPLES = 100  # with fewer, no difference could be significant


def check_resamples(num_resamples: int) -> None:
    """Raise `ConfigError` if there are too few resamples for a test, or too many."""
    if not MIN_RESAMPLES <= num_resamples <= MAX_RESAMPLES:
        raise ConfigError(f"`num_resamples` is {num_resamples}, expected {MIN_RESAMPLES} to {MAX_RESAMPLES:,}")


def bootstrap_scores(runs: Sequence["FinetuneRun"], num_resamples: int = 1000, seed: int = 0) -> np.ndarray:
    """Return the mean scores of runs on resampled examples, [runs, resamples] (Koehn 2004).

    Each resample draws dev examples, the same for all runs, and as many seeds of each run as it has, all with
    replacement. Its score is the mean over the seeds, as that of a run. Of a group of models, those are drawn instead
    (`multi_bootstrap`).
    """
    check_resamples(num_resamples)
    for run in runs:
        if not run.predictions and not run.models:
            raise UnsupportedError(f"{run.path} has no predictions.json: fine-tune it again")
        if not run.supports_bootstrap:
            raise UnsupportedError(f"{run.path}: {run.metric} needs more than predictions, so there is no bootstrap")
        if not run.is_comparable(runs[0]):
            paths = f"{runs[0].path} and {run.path}"
            raise UnsupportedError(f"{paths} were not measured on the same examples by the same metric")
    rng, num_examples = np.random.default_rng(seed), len(runs[0].gold)
    if any(run.models for run in runs):
        return _draw_models(runs, num_resamples, rng)
    scores = np.zeros((len(runs), num_resamples))
    for column in range(num_resamples):
        indices = rng.integers(num_examples, size=num_examples)
        gold = [runs[0].gold[i] for i in indices]
        for row, run in enumerate(runs):
            num_seeds = len(run.predictions)
            counts = np.bincount(rng.integers(num_seeds, size=num_seeds), minlength=num_seeds)
            assert run.task_config is not None
            for predictions, count in zip(run.predictions, counts):
                if count:
                    score = run.task_config.score(gold, [predictions[i] for i in indices])[run.metric]
                    scores[row, column] += count / num_seeds * score
    return scores


def _draw_models(runs: Sequence["FinetuneRun"], num_resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the scores of runs and groups by the multi-bootstrap; groups of the same models are paired."""
    arms = [run.models or (run,) for run in runs]
    score_fns = [_score_fn(run, predictions) for arm in arms for run in arm for predictions in run.predictions]
    rows = iter(resample_metric(score_fns, len(runs[0].gold), num_resamples, rng))
    scores = [[np.stack([next(rows) for _ in run.predictions]) for run in arm] for arm in arms]
    return multi_bootstrap(scores, rng, [tuple(run.model_id for run in arm) for arm in arms])


def _score_fn(run: "FinetuneRun", predictions: Sequence[Any]) -> Callable[[np.ndarray], float]:
    def score(indices: np.ndarray) -> float:
        assert run.task_config is not None
        gold, answers = [run.gold[i] for i in indices], [predictions[i] for i in indices]
        return run.task_config.score(gold, answers)[run.metric]

    return score


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of bootstrapped values, by the same ranks as `two_sided_p_value`."""
    ordered = np.sort(values)
    rank = -(-(len(values) + 1) // 40) - 2  # the last one for which p is below 0.05
    return float(ordered[rank]), float(ordered[-1 - rank])


def two_sided_p_value(differences: np.ndarray) -> float:
    """Return twice the share of differences on the other side of 0, or at 0; at most 1, and never 0."""
    num_opposite = min((differences <= 0).sum(), (differences >= 0).sum())
    return float(min(2 * (num_opposite + 1) / (len(differences) + 1), 1.0))


def paired_test(first: "FinetuneRun", second: "FinetuneRun", differences: np.ndarray) -> PairedTest:
    """Return the test of two runs of one task from the differences of their bootstrapped scores."""
    low, high = percentile_interval(differences)
    p_value, names = two_sided_p_value(differences), (first.name, second.name)
    test = PairedTest(*names, first.task, first.mean - second.mean, low, high, p_value)
    if not first.models and not second.models:
        return test
    counts = " and ".join(str(len(run.models) or 1) for run in (first, second))
    return replace(test, method=f"multi-bootstrap over {counts} pre-training seeds, two-sided")
