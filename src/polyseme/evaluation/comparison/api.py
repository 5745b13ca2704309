"""`polyseme.compare`: runs side by side, with intervals and paired tests, or with the curves of pre-training."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.evaluation.comparison.finetuning_runs import (
    FinetuneRun,
    mean_speed,
    pivot_runs,
    plot_comparison,
    read_runs,
    shortest_names,
)
from polyseme.evaluation.comparison.groups import Groups, parse_groups, read_groups
from polyseme.evaluation.comparison.multi_bootstrap import SEED_COVERAGE
from polyseme.evaluation.comparison.pretraining_runs import PretrainRun, is_pretrain_run, read_pretrain_run
from polyseme.evaluation.comparison.significance import (
    bootstrap_scores,
    check_resamples,
    paired_test,
    percentile_interval,
)
from polyseme.io.atomic import is_occupied
from polyseme.io.hashes import hashed_directory
from polyseme.io.json import write_json
from polyseme.report.notebook import NotebookResult
from polyseme.report.pages.compare_page import ComparedPretraining, write_comparison, write_pretraining_comparison
from polyseme.report.pages.compare_tables import ComparedRun, PairedTest, TaskScores
from polyseme.report.pages.finetuning_page import dev_selection_note

logger = logging.getLogger(__name__)
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
JSON_NAME = "compare.json"
MASKED_NOTE = "Losses of masked models are of masked tokens: they do not compare with those of language models."


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
                "chosen_on_dev": run.dev_choices, **({"models": run.model_means} if run.models else {}),
            }
            for run in self.runs
        ]  # fmt: skip
        return {"kind": "finetuning", "runs": rows, "tests": [asdict(test) for test in self.tests]}

    def write(self, folder: str | Path) -> Path:
        """Write `compare.json`, `report.html`, `table.tex` and `scores.csv`; return the page."""
        names, _, runs_by_cell = pivot_runs(self.runs)
        rows = [[run for (row, _), run in runs_by_cell.items() if row == name] for name in names]
        compared = [self._compared_run(name, runs) for name, runs in zip(names, rows)]
        failed = ", ".join(f"{run.name} ({len(run.failed_seeds)})" for run in self.runs if run.failed_seeds)
        warnings = [f"Failed seeds, no better than a trivial baseline: {failed}."] if failed else []
        return _write(folder, self.to_json(), lambda path: write_comparison(path, compared, self.tests, warnings))

    def _compared_run(self, name: str, runs: Sequence[FinetuneRun]) -> ComparedRun:
        """Return a row of the page: the runs of one model on several tasks."""
        scores = [TaskScores(run.task, run.metric, run.seed_scores, self.intervals.get(run.name)) for run in runs]
        flops = None if any(run.train_flops is None for run in runs) else sum(run.train_flops or 0.0 for run in runs)
        notes = [f"{run.name}: {line}" for run in runs if (line := dev_selection_note(run.dev_choices))]
        seconds, latency_ms = sum(run.train_seconds for run in runs), mean_speed(runs)[1]
        return ComparedRun(name, tuple(scores), runs[0].num_parameters, flops, seconds, latency_ms, tuple(notes))


@dataclass(frozen=True)
class PretrainComparison(NotebookResult):
    """Pre-training runs side by side, each with its losses, costs and curves."""

    runs: tuple[PretrainRun, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `compare.json`."""
        return {"kind": "pretraining", "runs": [asdict(run) | {"path": str(run.path)} for run in self.runs]}

    def write(self, folder: str | Path) -> Path:
        """Write `compare.json`, `report.html`, `table.tex` and `scores.csv`; return the page."""
        is_mixed = len({run.is_masked for run in self.runs}) > 1
        compared, notes = [*map(_compared_pretraining, self.runs)], [MASKED_NOTE] * is_mixed
        return _write(folder, self.to_json(), lambda path: write_pretraining_comparison(path, compared, notes))


def _write(folder: str | Path, comparison: dict[str, Any], write_page: Callable[[Path], Path]) -> Path:
    """Write the files of a comparison and their hashes at once, and return the page."""
    with hashed_directory(Path(folder)) as temporary:
        write_json(temporary / JSON_NAME, comparison)
        page = write_page(temporary)
    return Path(folder) / page.name


def _compared_pretraining(run: PretrainRun) -> ComparedPretraining:
    figures = {name: getattr(run, name) for name in ("loss", "perplexity", "bits_per_character")}
    costs = {"tokens": run.num_tokens, "flops": run.flops, "minutes": run.minutes, "parameters": run.num_parameters}
    return ComparedPretraining(run.name, figures | costs, vars(run.valid_curve), vars(run.train_curve), run.is_masked)


def compare(
    runs: Sequence[str | Path] | Groups, out: Path | None, num_resamples: int
) -> Comparison | PretrainComparison:
    """Read runs of one kind, test whether they differ, and write the comparison; see `polyseme.compare`."""
    check_resamples(num_resamples)
    if not runs:
        raise ConfigError("there are no runs to compare")
    groups = runs if isinstance(runs, Mapping) else parse_groups(runs)
    folders = [folder for each in groups.values() for folder in each] if groups else [Path(run) for run in runs]
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        raise ConfigError(f"there is no run at {missing}")
    groups = {name: [find_run_folder(folder) for folder in each] for name, each in groups.items()}
    folders = [find_run_folder(folder) for folder in folders]
    pretraining = [folder for folder in folders if is_pretrain_run(folder)]
    if not groups and 0 < len(pretraining) < len(folders):
        other = next(folder for folder in folders if folder not in pretraining)
        raise ConfigError(f"{pretraining[0]} is a pre-training run and {other} is not: compare runs of one kind")
    is_plot = out is not None and out.suffix in PLOT_SUFFIXES
    if out is not None and not is_plot:
        _check_out(out)
    comparison: Comparison | PretrainComparison
    if pretraining and not groups:
        if is_plot:
            raise ConfigError(f"{out}: a plot is of fine-tuning runs; for pre-training runs choose a folder")
        names = shortest_names(folders)
        pretrain_runs = [read_pretrain_run(folder) for folder in folders]
        comparison = PretrainComparison(tuple(replace(run, name=name) for run, name in zip(pretrain_runs, names)))
    else:
        comparison = compare_finetuning(read_groups(groups) if groups else read_runs(folders), num_resamples)
        if out is not None and is_plot:
            plot_comparison(comparison.runs, out)
    if out is not None and not is_plot:
        comparison.write(out)
    return comparison


def compare_finetuning(runs: Sequence[FinetuneRun], num_resamples: int) -> Comparison:
    """Compute the intervals of runs, and test the best of each task against the others on the same examples."""
    warn_of_few_seeds(runs)
    tests: list[PairedTest] = []
    intervals: dict[str, tuple[float, float]] = {}
    for group in _comparable_groups(runs):
        best = max(group, key=lambda run: run.mean)
        scores = bootstrap_scores(group, num_resamples)
        intervals |= {run.name: percentile_interval(row) for run, row in zip(group, scores)}
        best_row = scores[group.index(best)]
        tests += [paired_test(best, run, best_row - row) for run, row in zip(group, scores) if run is not best]
    return Comparison(tuple(runs), tuple(tests), intervals)


def _comparable_groups(runs: Sequence[FinetuneRun]) -> list[list[FinetuneRun]]:
    """Divide the runs of each task that have predictions by their examples; warn if not all have the same."""
    groups: list[list[FinetuneRun]] = []
    for task in dict.fromkeys(run.task for run in runs):
        same_task = [run for run in runs if run.task == task]
        with_predictions = [run for run in same_task if run.supports_bootstrap]
        for other in same_task[1:]:
            first, is_known = same_task[0], {same_task[0], other} <= set(with_predictions)
            if other.metric != first.metric or (is_known and other.measure != first.measure):
                measures = f"by {first.measure}, and {other.name} by {other.measure}"
                raise ConfigError(f"{first.name} is measured {measures} ({task}): compare runs with one metric")
        parts: dict[Any, list[FinetuneRun]] = {}
        for run in with_predictions:
            parts.setdefault(run.gold, []).append(run)
        if len(parts) > 1:
            names = ("; ".join(", ".join(run.name for run in part) for part in parts.values()), task)
            logger.warning("runs on different examples are not tested against each other: %s (%s)", *names)
        groups += parts.values()
    return groups


def warn_of_few_seeds(runs: Sequence[FinetuneRun]) -> None:
    """Warn that the intervals of groups of few models are too narrow."""
    smallest = min((len(run.models) for run in runs if run.models), default=max(SEED_COVERAGE))
    if smallest == 1:
        logger.warning("a group has one pre-training seed: its scores may not hold for another")
    elif smallest < max(SEED_COVERAGE):
        share = SEED_COVERAGE[max(count for count in SEED_COVERAGE if count <= smallest)]
        text = "a group has %d pre-training seeds, so 95 %% intervals cover only about %.0f %% of true differences: %s"
        logger.warning(text, smallest, 100 * share, "run more seeds before you rely on a small one")


def find_run_folder(folder: Path) -> Path:
    """Return the run of a model folder `RUN/model`; any other folder is returned unchanged."""
    is_model = folder.name == "model" and (folder.parent / "results.json").is_file()
    return folder.parent if is_model else folder


def _check_out(out: Path) -> None:
    if out.suffix and not out.is_dir():
        raise ConfigError(f"{out}: a comparison is written to a folder, or plotted as .png, .svg or .pdf")
    if is_occupied(out) and not (out / JSON_NAME).is_file():
        raise ConfigError(f"{out} exists and holds no comparison: choose another folder")
