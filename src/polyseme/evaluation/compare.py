"""Runs side by side: models × tasks with deviations, and whether one run is really better than another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import DataError, UnsupportedError
from polyseme.io.json import read_json
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import compute_metrics


@dataclass(frozen=True)
class FinetuneRun:
    """A fine-tuning run as its folder tells it; `predictions` are the answers on the dev examples, by seed."""

    path: Path
    model: str
    task: str
    task_type: Any
    metric: str
    seed_scores: tuple[float, ...]  # of each seed
    num_parameters: int
    train_seconds: float
    failed_seeds: tuple[int, ...]
    gold: tuple[Any, ...] = ()
    predictions: tuple[tuple[Any, ...], ...] = ()
    labels: tuple[str, ...] = ()
    dev_choices: tuple[str, ...] = ()  # what was chosen on the dev examples
    examples_per_second: float | None = None  # examples answered in a second, many together
    latency_ms: float | None = None  # for one text alone

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seed_scores)

    @property
    def supports_bootstrap(self) -> bool:
        """Whether its metric can be had from answers alone, as the bootstrap has to."""
        return bool(self.predictions) and self.metric in compute_metrics(
            self.task_type, self.gold, self.predictions[0], self.labels
        )

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.seed_scores) if len(self.seed_scores) > 1 else None


def read_run(folder: Path) -> FinetuneRun:
    """A run from its `results.json`, and `predictions.json` where it is there."""
    if not (folder / "results.json").is_file():
        raise DataError(f"{folder} is no finished run: there is no results.json")
    results = read_json(folder / "results.json")
    if not isinstance(results, dict) or "primary_metric" not in results or "seeds" not in results:
        raise DataError(f"{folder}/results.json is not of a fine-tuning run")
    metric = results["primary_metric"]
    predictions = read_json(folder / "predictions.json") if (folder / "predictions.json").is_file() else {}
    model_name = results["model"] + (" (from scratch)" if results.get("from_scratch") else "")
    model_name += " (frozen)" if results.get("features") else ""
    return FinetuneRun(
        folder,
        model_name,
        results.get("data") or results["task"],
        results["task"],
        metric,
        tuple(seed_metrics[metric] for seed_metrics in results["seeds"]),
        results.get("parameters", 0),
        results.get("seconds", 0.0),
        tuple(results.get("failed_seeds", ())),
        tuple(map(_to_hashable, predictions.get("gold", ()))),
        tuple(
            tuple(map(_to_hashable, seed_predictions))
            for seed_predictions in predictions.get("predictions", {}).values()
        ),
        tuple(predictions.get("labels", ())),
        tuple(results.get("chosen_on_dev", ())),
        results.get("examples_per_second"),
        results.get("ms_per_text"),
    )


def read_runs(folders: Sequence[Path]) -> list[FinetuneRun]:
    """The runs of these folders; one that is a benchmark's holds several."""
    runs = []
    for folder in folders:
        inner_folders = sorted(path.parent for path in folder.glob("*/results.json"))
        runs += [
            read_run(run_folder)
            for run_folder in ([folder] if (folder / "results.json").is_file() or not inner_folders else inner_folders)
        ]
    return runs


def paired_bootstrap(a: FinetuneRun, b: FinetuneRun, num_resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Paired bootstrap (Koehn 2004; Berg-Kirkpatrick et al. 2012): the same dev examples are drawn again and again for
    both runs, and each time also a seed of each. `p` is how often the better one is not the better one.
    """
    for run in (a, b):
        if not run.predictions:
            raise DataError(f"{run.path} has no predictions.json: fine-tune it again")
        if not run.supports_bootstrap:
            raise UnsupportedError(
                f"{run.path}: {run.metric} cannot be had from its answers alone, so there is no bootstrap"
            )
    if a.gold != b.gold or a.metric != b.metric:
        raise DataError(f"{a.path} and {b.path} were not measured on the same examples by the same metric")
    rng = np.random.default_rng(seed)
    observed = a.mean - b.mean
    differences = np.empty(num_resamples)
    for i in range(num_resamples):
        indices = rng.integers(len(a.gold), size=len(a.gold))
        gold = [a.gold[j] for j in indices]
        scores = []
        for run in (a, b):
            predictions = run.predictions[rng.integers(len(run.predictions))]
            scores.append(_score_run(run, gold, [predictions[j] for j in indices]))
        differences[i] = scores[0] - scores[1]
    p_value = np.mean(differences <= 0) if observed >= 0 else np.mean(differences >= 0)
    low, high = np.quantile(differences, [0.025, 0.975])
    return {"difference": observed, "low": float(low), "high": float(high), "p": float(p_value)}


def _score_run(run: FinetuneRun, gold: Sequence[Any], predictions: Sequence[Any]) -> float:
    """The run's metric, which for tags may be one of its data set's own."""
    metrics = compute_metrics(run.task_type, gold, predictions, run.labels)
    dataset = DATASETS.get(run.task)
    if run.task_type == "tagging" and dataset is not None and dataset.extra_metrics is not None:
        metrics |= dataset.extra_metrics([Example("", tags=tags) for tags in gold], predictions)
    return metrics[run.metric]


def pivot_runs(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[str], dict[tuple[str, str], FinetuneRun]]:
    """Models, tasks, and the run at each crossing; of two at one crossing the last counts."""
    models, tasks = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("model", "task"))
    return models, tasks, {(run.model, run.task): run for run in runs}


def comparison_table(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[list[str]]]:
    """A table: a row for each model with its parameters, a column for each task, and the mean over tasks; then how fast
    it answers: milliseconds for one text, examples a second, and how many times the slowest model's; last the seconds
    of training. Speeds are means over the tasks that every model has.
    """
    models, tasks, runs_by_cell = pivot_runs(runs)
    metrics = {run.task: run.metric for run in runs}
    header = ["model", "parameters", *(f"{task} ({metrics[task]})" for task in tasks), "mean"]
    header += ["ms a text", "examples/s", "speed-up", "training s"]
    shared_tasks = [task for task in tasks if all((model, task) in runs_by_cell for model in models)]
    speeds = {model: mean_speed([runs_by_cell[model, task] for task in shared_tasks]) for model in models}
    slowest = min((speed for speed, _ in speeds.values() if speed), default=1.0)
    rows = []
    for model in models:
        model_runs = [runs_by_cell.get((model, task)) for task in tasks]
        available_runs = [run for run in model_runs if run]
        is_complete = len(available_runs) == len(tasks)
        average = f"{100 * statistics.fmean(run.mean for run in available_runs):.1f}" if is_complete else ""
        speed, latency_ms = speeds[model]
        rows.append(
            [
                model,
                f"{available_runs[0].num_parameters:,}",
                *("" if run is None else format_score(run) for run in model_runs),
                average,
                f"{latency_ms:.1f}" if latency_ms else "",
                f"{speed:,.1f}" if speed else "",
                f"{speed / slowest:.1f}×" if speed else "",
                f"{sum(run.train_seconds for run in available_runs):.0f}",
            ]
        )
    return header, rows


def mean_speed(runs: Sequence[FinetuneRun]) -> tuple[float | None, float | None]:
    """Examples a second, all runs taken together, and milliseconds a text; None where a run does not say."""
    if not runs or any(run.examples_per_second is None or run.latency_ms is None for run in runs):
        return None, None
    return statistics.harmonic_mean([run.examples_per_second or 0.0 for run in runs]), statistics.fmean(
        run.latency_ms or 0.0 for run in runs
    )


def format_score(run: FinetuneRun) -> str:
    """The mean in percent, its deviation, and how many seeds failed."""
    std_text = "" if run.std is None else f" ± {100 * run.std:.1f}"
    return f"{100 * run.mean:.1f}{std_text}" + (f" ({len(run.failed_seeds)} failed)" if run.failed_seeds else "")


def plot_comparison(runs: Sequence[FinetuneRun], path: Path) -> None:
    """Bars by task, one for each model, with the deviation over seeds as error bars."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise UnsupportedError("matplotlib is needed for a picture: pip install 'polyseme[report]'") from None
    from polyseme.io.atomic import atomic_write

    models, tasks, runs_by_cell = pivot_runs(runs)
    figure, axes = plt.subplots(figsize=(max(1.2 * len(tasks) + 3, 5), 4))
    width = 0.8 / len(models)
    for i, model in enumerate(models):
        model_runs = [(j, runs_by_cell[model, task]) for j, task in enumerate(tasks) if (model, task) in runs_by_cell]
        bar_positions = [j + (i - (len(models) - 1) / 2) * width for j, _ in model_runs]
        error_bars = [100 * (run.std or 0.0) for _, run in model_runs]
        axes.bar(
            bar_positions, [100 * run.mean for _, run in model_runs], width, yerr=error_bars, capsize=3, label=model
        )
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("dev, %")
    axes.legend(fontsize="small")
    figure.tight_layout()
    image_format = path.suffix.removeprefix(".") or "png"
    atomic_write(path, lambda temporary: figure.savefig(temporary, format=image_format, dpi=120))
    plt.close(figure)


def _to_hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
