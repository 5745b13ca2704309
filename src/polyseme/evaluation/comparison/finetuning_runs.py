"""Compare fine-tuning runs: a table of runs × tasks with standard deviations, and a plot."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from polyseme.config import parse_value
from polyseme.errors import ConfigError, DataError, require_package
from polyseme.io.atomic import atomic_write
from polyseme.io.json import read_json
from polyseme.tasks import task_from_json
from polyseme.tasks.base import TaskConfig


@dataclass(frozen=True)
class FinetuneRun:
    """A fine-tuning run as read from its folder; `predictions` are the answers on the dev examples, by seed.

    `name` is the shortest end of its path that no other run of a comparison has, and `row` that of its row in a table:
    the same, or that of a benchmark or a model with several tasks. A group of runs of `models` with different
    pre-training seeds is a run, too: its scores are the means of those.
    """

    path: Path
    model: str
    task: str
    metric: str
    seed_scores: tuple[float, ...]
    num_parameters: int
    train_seconds: float
    failed_seeds: tuple[int, ...]
    gold: tuple[Any, ...] = field(default=(), repr=False)
    predictions: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    task_config: TaskConfig | None = field(default=None, repr=False)
    dev_choices: tuple[str, ...] = ()  # what was chosen on the dev examples
    examples_per_second: float | None = None  # in batches
    latency_ms: float | None = None  # for a single text
    train_flops: float | None = None
    name: str = ""
    row: str = ""
    models: tuple["FinetuneRun", ...] = ()
    model_id: str = ""  # a hash of the model, by which groups are paired, or its path

    @property
    def measure(self) -> str:
        """The metric, with the label that an F1 of a classification is about."""
        label = getattr(self.models[0].task_config if self.models else self.task_config, "f1_label", "")
        return f"{self.metric} of {label}" if label and self.metric == "f1" else self.metric

    def is_comparable(self, other: "FinetuneRun") -> bool:
        """Whether both were measured on the same examples by the same metric."""
        return self.gold == other.gold and self.measure == other.measure

    @property
    def mean(self) -> float:
        """The mean score over seeds."""
        return statistics.fmean(self.seed_scores)

    @property
    def model_means(self) -> list[dict[str, Any]]:
        """The runs of a group and their mean scores, for JSON."""
        return [{"run": str(run.path), "model": run.model, "mean": run.mean} for run in self.models]

    @property
    def supports_bootstrap(self) -> bool:
        """Whether its metric can be computed from predictions alone, as the bootstrap does."""
        if self.models:
            return all(run.supports_bootstrap for run in self.models)
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
    if not isinstance(results, dict) or "primary_metric" not in results or not results.get("seeds"):
        raise DataError(f"{folder}/results.json is not of a fine-tuning run")
    predictions = read_json(folder / "predictions.json") if (folder / "predictions.json").is_file() else {}
    try:
        hints, values = get_type_hints(FinetuneRun), _run_values(results, predictions)
        parsed = {name: parse_value(hints[name], value, name) for name, value in values.items()}
        task_config = task_from_json(predictions["task"], tasks) if "task" in predictions else None
        run = FinetuneRun(folder, task_config=task_config, **parsed)
        if run.predictions and {len(run.gold)} != {len(each) for each in run.predictions}:
            raise ValueError(f"there are not {len(run.gold)} predictions of each seed")
        if run.predictions and len(run.predictions) != len(run.seed_scores):
            raise ValueError(f"{len(run.predictions)} seeds have predictions, and {len(run.seed_scores)} scores")
        _ = run.supports_bootstrap  # raises if the predictions are not those of the task
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: results.json or predictions.json is damaged ({error})") from None
    return run


def _run_values(results: dict[str, Any], predictions: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `FinetuneRun` that its files hold."""
    marks = (" (from scratch)" if results.get("from_scratch") else "", " (frozen)" if results.get("features") else "")
    model_id = results.get("model_hash") or str(Path(results["model"]).resolve())
    return {
        "model": results["model"] + "".join(marks),
        "model_id": model_id + "".join(marks),
        "task": results.get("data") or results["task"],
        "metric": results["primary_metric"],
        "seed_scores": tuple(metrics[results["primary_metric"]] for metrics in results["seeds"]),
        "num_parameters": results.get("parameters", 0),
        "train_seconds": results.get("seconds", 0.0),
        "failed_seeds": tuple(results.get("failed_seeds", ())),
        "gold": to_hashable(predictions.get("gold", [])),
        "predictions": tuple(map(to_hashable, predictions.get("predictions", {}).values())),
        "dev_choices": tuple(results.get("chosen_on_dev", ())),
        "examples_per_second": results.get("examples_per_second"),
        "latency_ms": results.get("ms_per_text"),
        "train_flops": results.get("flops"),
    }


def read_runs(folders: Sequence[Path]) -> list[FinetuneRun]:
    """Read and name the runs of these folders; that of a benchmark or of ULMFiT holds several."""
    runs_by_folder = [(folder, read_run(path)) for folder in folders for path in find_runs(folder)]
    return name_runs([run for _, run in runs_by_folder], [folder for folder, _ in runs_by_folder])


def find_runs(folder: Path) -> list[Path]:
    """Return the fine-tuning runs in a folder: itself, those of a benchmark, or the classifiers of ULMFiT."""
    if (folder / "ulmfit.json").is_file():
        return sorted(path.parent for path in folder.glob("classifier-*/results.json"))
    inner = sorted(path.parent for path in folder.glob("*/results.json"))
    return [folder] if (folder / "results.json").is_file() or not inner else inner


def name_runs(runs: Sequence[FinetuneRun], folders: Sequence[Path] = ()) -> list[FinetuneRun]:
    """Name runs by their paths, and their rows by those of the folders that hold them, if these are others.

    The runs of one model on different tasks share a row, with the name of the model. Raises `ConfigError` if a run is
    given twice.
    """
    folders = folders or [run.path for run in runs]
    outer = list(dict.fromkeys(folder for run, folder in zip(runs, folders) if folder != run.path))
    outer_names = dict(zip(outer, shortest_names(outer)))
    counts = Counter((folder, run.task) for run, folder in zip(runs, folders))
    repeated_folders = {folder for (folder, _), count in counts.items() if count > 1}  # which are no benchmarks
    cells = Counter((run.model, run.task) for run, folder in zip(runs, folders) if folder not in outer)
    num_tasks = Counter(model for model, _ in cells)
    repeated_models = {model for (model, _), count in cells.items() if count > 1}
    named = []
    for run, name, folder in zip(runs, shortest_names([run.path for run in runs]), folders):
        shares_row = num_tasks[run.model] > 1 and run.model not in repeated_models
        if folder in outer:
            row = name if folder in repeated_folders else outer_names[folder]
        else:
            row = run.model if shares_row else name
        named.append(replace(run, name=name, row=row))
    return named


def shortest_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that no other path has."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        path = next(path for path, each in zip(paths, parts) if parts.count(each) > 1)
        raise ConfigError(f"{path} is given twice: compare different runs")
    names = []
    for target in parts:
        others = [each for each in parts if each != target]
        length = next(n for n in range(1, len(target) + 1) if all(target[-n:] != each[-n:] for each in others))
        names.append(str(Path(*target[-length:])))
    return names


def pivot_runs(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[str], dict[tuple[str, str], FinetuneRun]]:
    """Return the rows, the tasks, and the run of each pair of them."""
    rows, tasks = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("row", "task"))
    return rows, tasks, {(run.row, run.task): run for run in runs}


def comparison_table(runs: Sequence[FinetuneRun]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table: model, size, scores by task, speed and training time.

    Speeds are means over the tasks that every row has; the speedup is over the slowest.
    """
    names, tasks, runs_by_cell = pivot_runs(runs)
    metrics = {run.task: run.metric for run in runs}
    models = list(dict.fromkeys(run.model for run in runs))
    model_names = dict(zip(models, short_model_names(models)))
    header = ["run", "model", "parameters", *(f"{task} ({metrics[task]})" for task in tasks)]
    header += ["mean"] * (len(tasks) > 1) + ["ms per text", "examples/s", "speedup", "training s"]
    shared_tasks = [task for task in tasks if all((name, task) in runs_by_cell for name in names)]
    speeds = {name: mean_speed([runs_by_cell[name, task] for task in shared_tasks]) for name in names}
    slowest = min((speed for speed, _ in speeds.values() if speed), default=1.0)
    rows = []
    for name in names:
        cells = [runs_by_cell.get((name, task)) for task in tasks]
        row_runs = [run for run in cells if run]
        speed, latency_ms = speeds[name]
        row = [model_names.get(name, name), model_names[row_runs[0].model], f"{row_runs[0].num_parameters:,}"]
        row += ["" if run is None else format_score(run) for run in cells]
        if len(tasks) > 1:
            row.append(f"{100 * statistics.fmean(run.mean for run in row_runs):.1f}" if all(cells) else "")
        row += [f"{latency_ms:.1f}" if latency_ms else ""]
        row += [f"{speed:,.1f}", f"{speed / slowest:.1f}×"] if speed else ["", ""]
        rows.append([*row, f"{sum(run.train_seconds for run in row_runs):.0f}"])
    return header, rows


def short_model_names(models: Sequence[str]) -> list[str]:
    """Return short names of models: the ends of their paths, without a last folder `model` that all runs have."""
    names = [model.removesuffix("/model") for model in (label.partition(" (")[0] for label in models)]
    marks = ["".join(label.partition(" (")[1:]) for label in models]
    by_name = dict(zip(dict.fromkeys(names), shortest_names([Path(name) for name in dict.fromkeys(names)])))
    return [by_name[name] + mark for name, mark in zip(names, marks)]


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
    """Plot bars by task, one for each row of the table, with the standard deviation over seeds as error bars."""
    require_package("matplotlib", "a plot", "'polyseme[report]'").use("Agg")
    import matplotlib.pyplot as plt

    rows, tasks, runs_by_cell = pivot_runs(runs)
    figure, axes = plt.subplots(figsize=(max(1.2 * len(tasks) + 3, 5), 4))
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        cells = [(j, runs_by_cell[row, task]) for j, task in enumerate(tasks) if (row, task) in runs_by_cell]
        positions = [j + (i - (len(rows) - 1) / 2) * width for j, _ in cells]
        means, errors = [100 * run.mean for _, run in cells], [100 * (run.std or 0.0) for _, run in cells]
        axes.bar(positions, means, width, yerr=errors, capsize=3, label=row)
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("dev, %")
    axes.legend(fontsize="small")
    figure.tight_layout()
    image_format = path.suffix.removeprefix(".") or "png"
    atomic_write(path, lambda temporary: figure.savefig(temporary, format=image_format, dpi=120))
    plt.close(figure)


def to_hashable(values: list[Any]) -> tuple[Any, ...]:
    """Return values of a JSON file as a tuple, with tuples for the lists in it."""
    return tuple(to_hashable(value) if isinstance(value, list) else value for value in values)
