"""Runs side by side: models × tasks with deviations, and whether one run is really better than another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.datasets.catalog import DATA_SETS
from polyseme.errors import UserError
from polyseme.io.files import read_json
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import score


@dataclass(frozen=True)
class Run:
    """A fine-tuning run as its folder tells it; `said` are the answers on the dev examples, by seed."""

    path: Path
    model: str
    task: str
    kind: Any
    metric: str
    values: tuple[float, ...]  # of each seed
    parameters: int
    seconds: float
    failed: tuple[int, ...]
    gold: tuple[Any, ...] = ()
    said: tuple[tuple[Any, ...], ...] = ()
    labels: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()  # what was chosen on the dev examples
    speed: float | None = None  # examples answered in a second, many together
    ms: float | None = None  # for one text alone

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def testable(self) -> bool:
        """Whether its metric can be had from answers alone, as the bootstrap has to."""
        return bool(self.said) and self.metric in score(self.kind, self.gold, self.said[0], self.labels)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def read_run(folder: Path) -> Run:
    """A run from its `results.json`, and `predictions.json` where it is there."""
    if not (folder / "results.json").is_file():
        raise UserError(f"{folder} is no finished run: there is no results.json")
    found = read_json(folder / "results.json")
    if not isinstance(found, dict) or "primary" not in found or "seeds" not in found:
        raise UserError(f"{folder}/results.json is not of a fine-tuning run")
    metric = found["primary"]
    answers = read_json(folder / "predictions.json") if (folder / "predictions.json").is_file() else {}
    name = found["model"] + (" (from scratch)" if found.get("from_scratch") else "")
    name += " (frozen)" if found.get("features") else ""
    return Run(
        folder,
        name,
        found.get("data") or found["task"],
        found["task"],
        metric,
        tuple(run[metric] for run in found["seeds"]),
        found.get("parameters", 0),
        found.get("seconds", 0.0),
        tuple(found.get("failed", ())),
        tuple(map(_hashable, answers.get("gold", ()))),
        tuple(tuple(map(_hashable, said)) for said in answers.get("said", {}).values()),
        tuple(answers.get("labels", ())),
        tuple(found.get("chosen_on_dev", ())),
        found.get("examples_per_second"),
        found.get("ms_per_text"),
    )


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders; one that is a benchmark's holds several."""
    found = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob("*/results.json"))
        found += [read_run(one) for one in ([folder] if (folder / "results.json").is_file() or not inner else inner)]
    return found


def bootstrap(a: Run, b: Run, samples: int = 1000, seed: int = 0) -> dict[str, float]:
    """Paired bootstrap (Koehn 2004; Berg-Kirkpatrick et al. 2012): the same dev examples are drawn again and again for
    both runs, and each time also a seed of each. `p` is how often the better one is not the better one.
    """
    for run in (a, b):
        if not run.said:
            raise UserError(f"{run.path} has no predictions.json: fine-tune it again")
        if not run.testable:
            raise UserError(f"{run.path}: {run.metric} cannot be had from its answers alone, so there is no bootstrap")
    if a.gold != b.gold or a.metric != b.metric:
        raise UserError(f"{a.path} and {b.path} were not measured on the same examples by the same metric")
    draw = np.random.default_rng(seed)
    observed = a.mean - b.mean
    differences = np.empty(samples)
    for i in range(samples):
        places = draw.integers(len(a.gold), size=len(a.gold))
        gold = [a.gold[j] for j in places]
        values = []
        for run in (a, b):
            said = run.said[draw.integers(len(run.said))]
            values.append(_worth(run, gold, [said[j] for j in places]))
        differences[i] = values[0] - values[1]
    worse = np.mean(differences <= 0) if observed >= 0 else np.mean(differences >= 0)
    low, high = np.quantile(differences, [0.025, 0.975])
    return {"difference": observed, "low": float(low), "high": float(high), "p": float(worse)}


def _worth(run: Run, gold: Sequence[Any], said: Sequence[Any]) -> float:
    """The run's metric, which for tags may be one of its data set's own."""
    found = score(run.kind, gold, said, run.labels)
    named = DATA_SETS.get(run.task)
    if run.kind == "tagging" and named is not None and named.extra is not None:
        found |= named.extra([Example("", tags=tags) for tags in gold], said)
    return found[run.metric]


def grid_of(runs: Sequence[Run]) -> tuple[list[str], list[str], dict[tuple[str, str], Run]]:
    """Models, tasks, and the run at each crossing; of two at one crossing the last counts."""
    models, tasks = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("model", "task"))
    return models, tasks, {(run.model, run.task): run for run in runs}


def cells(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """A table: a row for each model with its parameters, a column for each task, and the mean over tasks; then how fast
    it answers: milliseconds for one text, examples a second, and how many times the slowest model's; last the seconds
    of training. Speeds are means over the tasks that every model has.
    """
    models, tasks, found = grid_of(runs)
    metrics = {run.task: run.metric for run in runs}
    header = ["model", "parameters", *(f"{task} ({metrics[task]})" for task in tasks), "mean"]
    header += ["ms a text", "examples/s", "speed-up", "training s"]
    shared = [task for task in tasks if all((model, task) in found for model in models)]
    speeds = {model: speed_of([found[model, task] for task in shared]) for model in models}
    slowest = min((speed for speed, _ in speeds.values() if speed), default=1.0)
    rows = []
    for model in models:
        its = [found.get((model, task)) for task in tasks]
        there = [run for run in its if run]
        full = len(there) == len(tasks)
        average = f"{100 * statistics.fmean(run.mean for run in there):.1f}" if full else ""
        speed, ms = speeds[model]
        rows.append(
            [
                model,
                f"{there[0].parameters:,}",
                *("" if run is None else shown(run) for run in its),
                average,
                f"{ms:.1f}" if ms else "",
                f"{speed:,.1f}" if speed else "",
                f"{speed / slowest:.1f}×" if speed else "",
                f"{sum(run.seconds for run in there):.0f}",
            ]
        )
    return header, rows


def speed_of(runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Examples a second, all runs taken together, and milliseconds a text; None where a run does not say."""
    if not runs or any(run.speed is None or run.ms is None for run in runs):
        return None, None
    return statistics.harmonic_mean([run.speed or 0.0 for run in runs]), statistics.fmean(run.ms or 0.0 for run in runs)


def shown(run: Run) -> str:
    """The mean in percent, its deviation, and how many seeds failed."""
    error = "" if run.deviation is None else f" ± {100 * run.deviation:.1f}"
    return f"{100 * run.mean:.1f}{error}" + (f" ({len(run.failed)} failed)" if run.failed else "")


def picture(runs: Sequence[Run], path: Path) -> None:
    """Bars by task, one for each model, with the deviation over seeds as error bars."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise UserError("matplotlib is needed for a picture: pip install 'polyseme[report]'") from None
    from polyseme.io.files import write_whole

    models, tasks, found = grid_of(runs)
    figure, axes = plt.subplots(figsize=(max(1.2 * len(tasks) + 3, 5), 4))
    width = 0.8 / len(models)
    for i, model in enumerate(models):
        its = [(j, found[model, task]) for j, task in enumerate(tasks) if (model, task) in found]
        places = [j + (i - (len(models) - 1) / 2) * width for j, _ in its]
        bars = [100 * (run.deviation or 0.0) for _, run in its]
        axes.bar(places, [100 * run.mean for _, run in its], width, yerr=bars, capsize=3, label=model)
    axes.set_xticks(range(len(tasks)), tasks, rotation=20, ha="right")
    axes.set_ylabel("dev, %")
    axes.legend(fontsize="small")
    figure.tight_layout()
    kind = path.suffix.removeprefix(".") or "png"
    write_whole(path, lambda temporary: figure.savefig(temporary, format=kind, dpi=120))
    plt.close(figure)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
