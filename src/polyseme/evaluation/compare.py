"""Compare fine-tuning runs: models × tasks with standard deviations, and tests of significance."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import DataError, UnsupportedError, require_package
from polyseme.io.atomic import atomic_write
from polyseme.io.json import has_shape, read_json
from polyseme.tasks import task_from_json
from polyseme.tasks.base import TaskConfig

RESULTS_SHAPE = {"model": str, "primary_metric": str, "seeds": [dict]}


@dataclass(frozen=True)
class FinetuneRun:
    """A fine-tuning run as read from its folder; `predictions` are the answers on the dev examples, by seed."""

    path: Path
    model: str
    task: str
    metric: str
    seed_scores: tuple[float, ...]
    num_parameters: int
    train_seconds: float
    failed_seeds: tuple[int, ...]
    gold: tuple[Any, ...] = ()
    predictions: tuple[tuple[Any, ...], ...] = ()
    task_config: TaskConfig | None = None
    dev_choices: tuple[str, ...] = ()  # what was chosen on the dev examples
    examples_per_second: float | None = None  # in batches
    latency_ms: float | None = None  # for a single text

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return statistics.fmean(self.seed_scores)

    @property
    def supports_bootstrap(self) -> bool:
        """Whether its metric can be computed from predictions alone, as the bootstrap does."""
        if not self.predictions or self.task_config is None:
            return False
        return self.metric in self.task_config.score(self.gold, self.predictions[0])

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.seed_scores) if len(self.seed_scores) > 1 else None


def read_run(folder: Path, tasks: Iterable[type[TaskConfig]] = ()) -> FinetuneRun:
    """Read a run from its `results.json`, and `predictions.json` if there is one."""
    if not (folder / "results.json").is_file():
        raise DataError(f"{folder} is not a finished run: there is no results.json")
    results = read_json(folder / "results.json")
    is_object = isinstance(results, dict)
    lists = {name: results.get(name) or [] for name in ("failed_seeds", "chosen_on_dev")} if is_object else {}
    if not has_shape(results, RESULTS_SHAPE) or not results["seeds"] or not has_shape(lists, {str: list}):
        raise DataError(f"{folder}/results.json is not of a fine-tuning run")
    if not all(has_shape(metrics, {results["primary_metric"]: float}) for metrics in results["seeds"]):
        raise DataError(f"{folder}/results.json has no {results['primary_metric']!r} for a seed")
    predictions = read_json(folder / "predictions.json") if (folder / "predictions.json").is_file() else {}
    if predictions != {} and not has_shape(predictions, {"gold": list, "predictions": {str: list}}):
        raise DataError(f"{folder}/predictions.json is not of a fine-tuning run")
    marks = (" (from scratch)" if results.get("from_scratch") else "", " (frozen)" if results.get("features") else "")
    run = FinetuneRun(
        folder,
        results["model"] + "".join(marks),
        results.get("data") or results["task"],
        results["primary_metric"],
        tuple(metrics[results["primary_metric"]] for metrics in results["seeds"]),
        results.get("parameters", 0),
        results.get("seconds", 0.0),
        tuple(results.get("failed_seeds") or ()),
        _to_hashable(predictions.get("gold", [])),
        tuple(map(_to_hashable, predictions.get("predictions", {}).values())),
        task_from_json(predictions["task"], tasks) if "task" in predictions else None,
        tuple(results.get("chosen_on_dev", ())),
        results.get("examples_per_second"),
        results.get("ms_per_text"),
    )
    try:
        _ = run.supports_bootstrap
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{folder}/predictions.json does not fit its task ({error})") from None
    return run


def read_runs(folders: Sequence[Path]) -> list[FinetuneRun]:
    """Read the runs of these folders; the folder of a benchmark holds several."""
    runs: list[FinetuneRun] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob("*/results.json"))
        runs += map(read_run, [folder] if (folder / "results.json").is_file() or not inner else inner)
    return runs


def paired_bootstrap(a: FinetuneRun, b: FinetuneRun, num_resamples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Compare two runs by the paired bootstrap (Koehn 2004; Berg-Kirkpatrick et al. 2012).

    Each resample draws the same dev examples for both runs, and a seed of each. `p` is the share of resamples in which
    the better run is not better.
    """
    for run in (a, b):
        if not run.predictions:
            raise UnsupportedError(f"{run.path} has no predictions.json: fine-tune it again")
        if not run.supports_bootstrap:
            raise UnsupportedError(f"{run.path}: {run.metric} needs more than predictions, so there is no bootstrap")
    if a.gold != b.gold or a.metric != b.metric:
        raise UnsupportedError(f"{a.path} and {b.path} were not measured on the same examples by the same metric")
    rng = np.random.default_rng(seed)
    observed = a.mean - b.mean
    differences = np.empty(num_resamples)
    for i in range(num_resamples):
        indices = rng.integers(len(a.gold), size=len(a.gold))
        gold = [a.gold[j] for j in indices]
        scores = []
        for run in (a, b):
            assert run.task_config is not None
            predictions = run.predictions[rng.integers(len(run.predictions))]
            scores.append(run.task_config.score(gold, [predictions[j] for j in indices])[run.metric])
        differences[i] = scores[0] - scores[1]
    p_value = np.mean(differences <= 0) if observed >= 0 else np.mean(differences >= 0)
    low, high = np.quantile(differences, [0.025, 0.975])
    return {"difference": observed, "low": float(low), "high": float(high), "p": float(p_value)}


def pivot_runs(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[str], dict[tuple[str, str], FinetuneRun]]:
    """Return the models, the tasks, and the last run of each pair of them."""
    models, tasks = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("model", "task"))
    return models, tasks, {(run.model, run.task): run for run in runs}


def comparison_table(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table with a row per model: size, scores by task, speed and training time.

    Speeds are means over the tasks that every model has; the speed-up is over the slowest model.
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
        cells = [runs_by_cell.get((model, task)) for task in tasks]
        model_runs = [run for run in cells if run]
        average = statistics.fmean(run.mean for run in model_runs)
        speed, latency_ms = speeds[model]
        row = [model, f"{model_runs[0].num_parameters:,}", *("" if run is None else format_score(run) for run in cells)]
        row += [f"{100 * average:.1f}" if all(cells) else "", f"{latency_ms:.1f}" if latency_ms else ""]
        row += [f"{speed:,.1f}", f"{speed / slowest:.1f}×"] if speed else ["", ""]
        rows.append([*row, f"{sum(run.train_seconds for run in model_runs):.0f}"])
    return header, rows


def mean_speed(runs: Sequence[FinetuneRun]) -> tuple[float | None, float | None]:
    """Return examples per second over all runs, and milliseconds per text; None if a run was not timed."""
    speeds, latencies = [run.examples_per_second for run in runs], [run.latency_ms for run in runs]
    if not runs or None in speeds or None in latencies:
        return None, None
    return statistics.harmonic_mean(speeds), statistics.fmean(latencies)  # type: ignore[arg-type, type-var]


def format_score(run: FinetuneRun) -> str:
    """Format the mean in percent, its standard deviation, and the number of failed seeds."""
    std_text = "" if run.std is None else f" ± {100 * run.std:.1f}"
    return f"{100 * run.mean:.1f}{std_text}" + (f" ({len(run.failed_seeds)} failed)" if run.failed_seeds else "")


def plot_comparison(runs: Sequence[FinetuneRun], path: Path) -> None:
    """Plot bars by task, one for each model, with the standard deviation over seeds as error bars."""
    require_package("matplotlib", "a plot", "'polyseme[report]'").use("Agg")
    import matplotlib.pyplot as plt

    models, tasks, runs_by_cell = pivot_runs(runs)
    figure, axes = plt.subplots(figsize=(max(1.2 * len(tasks) + 3, 5), 4))
    width = 0.8 / len(models)
    for i, model in enumerate(models):
        cells = [(j, runs_by_cell[model, task]) for j, task in enumerate(tasks) if (model, task) in runs_by_cell]
        positions = [j + (i - (len(models) - 1) / 2) * width for j, _ in cells]
        means, errors = [100 * run.mean for _, run in cells], [100 * (run.std or 0.0) for _, run in cells]
        axes.bar(positions, means, width, yerr=errors, capsize=3, label=model)
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("dev, %")
    axes.legend(fontsize="small")
    figure.tight_layout()
    image_format = path.suffix.removeprefix(".") or "png"
    atomic_write(path, lambda temporary: figure.savefig(temporary, format=image_format, dpi=120))
    plt.close(figure)


def _to_hashable(values: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)
