"""`polyseme.compare`: runs side by side, with intervals and paired tests, or with the curves of pre-training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.evaluation.compare import FinetuneRun, plot_comparison, read_runs, shortest_names
from polyseme.evaluation.pretraining_runs import PretrainRun, is_pretrain_run, read_pretrain_run
from polyseme.evaluation.significance import PairedTest, bootstrap_scores, paired_test, percentile_interval
from polyseme.io.atomic import is_occupied
from polyseme.io.json import write_json
from polyseme.report.notebook import NotebookResult

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
JSON_NAME = "compare.json"


@dataclass(frozen=True)
class Comparison(NotebookResult):
    """Fine-tuning runs side by side.

    `tests` compare the best run of each task with every other one, and `intervals` are the 95 % intervals of the mean
    scores by the names of the runs; both are from one bootstrap over the dev examples and the seeds.
    """

    runs: tuple[FinetuneRun, ...]
    tests: tuple[PairedTest, ...] = ()
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `compare.json`."""
        rows = [
            {
                "name": run.name, "run": str(run.path), "model": run.model, "task": run.task, "metric": run.metric,
                "mean": run.mean, "std": run.std, "interval": self.intervals.get(run.name),
                "seeds": len(run.seed_scores), "seed_scores": run.seed_scores, "failed_seeds": run.failed_seeds,
                "parameters": run.num_parameters, "examples_per_second": run.examples_per_second,
                "ms_per_text": run.latency_ms, "seconds": run.train_seconds, "flops": run.train_flops,
                "chosen_on_dev": run.dev_choices,
            }
            for run in self.runs
        ]  # fmt: skip
        return {"kind": "finetuning", "runs": rows, "tests": [asdict(test) for test in self.tests]}


@dataclass(frozen=True)
class PretrainComparison(NotebookResult):
    """Pre-training runs side by side, each with its losses, costs and curves."""

    runs: tuple[PretrainRun, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `compare.json`."""
        return {"kind": "pretraining", "runs": [asdict(run) | {"path": str(run.path)} for run in self.runs]}


def compare(folders: Sequence[Path], out: Path | None, num_resamples: int) -> Comparison | PretrainComparison:
    """Read runs of one kind, test whether they differ, and write the comparison; see `polyseme.compare`."""
    folders = [_run_folder(folder) for folder in folders]
    pretraining = [folder for folder in folders if is_pretrain_run(folder)]
    if 0 < len(pretraining) < len(folders):
        other = next(folder for folder in folders if folder not in pretraining)
        raise ConfigError(f"{pretraining[0]} is a pre-training run and {other} is not: compare runs of one kind")
    is_plot = out is not None and out.suffix in PLOT_SUFFIXES
    if out is not None and not is_plot:
        _check_out(out)
    comparison: Comparison | PretrainComparison
    if pretraining:
        if is_plot:
            raise ConfigError(f"{out}: a plot is of fine-tuning runs; for pre-training runs choose a folder")
        names = shortest_names(folders)
        runs = [read_pretrain_run(folder) for folder in folders]
        comparison = PretrainComparison(tuple(replace(run, name=name) for run, name in zip(runs, names)))
    else:
        comparison = compare_finetuning(read_runs(folders), num_resamples)
        if out is not None and is_plot:
            plot_comparison(comparison.runs, out)
    if out is not None and not is_plot:
        write_json(out / JSON_NAME, comparison.to_json())
    return comparison


def compare_finetuning(runs: Sequence[FinetuneRun], num_resamples: int) -> Comparison:
    """Compute the intervals of runs, and test the best of each task against the others on the same examples."""
    tests: list[PairedTest] = []
    intervals: dict[str, tuple[float, float]] = {}
    for task in dict.fromkeys(run.task for run in runs):
        candidates = [run for run in runs if run.task == task and run.supports_bootstrap]
        if not candidates:
            continue
        best = max(candidates, key=lambda run: run.mean)
        group = [run for run in candidates if run.gold == best.gold and run.metric == best.metric]
        scores = bootstrap_scores(group, num_resamples)
        intervals |= {run.name: percentile_interval(row) for run, row in zip(group, scores)}
        best_row = scores[group.index(best)]
        tests += [paired_test(best, run, best_row - row) for run, row in zip(group, scores) if run is not best]
    return Comparison(tuple(runs), tuple(tests), intervals)


def _run_folder(folder: Path) -> Path:
    """Return the run of a model folder `RUN/model`; any other folder is returned unchanged."""
    is_model = folder.name == "model" and (folder.parent / "results.json").is_file()
    return folder.parent if is_model else folder


def _check_out(out: Path) -> None:
    if out.suffix and not out.is_dir():
        raise ConfigError(f"{out}: a comparison is written to a folder, or plotted as .png, .svg or .pdf")
    if is_occupied(out) and not (out / JSON_NAME).is_file():
        raise ConfigError(f"{out} exists and holds no comparison: choose another folder")
