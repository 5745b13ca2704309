"""What `polyseme finetune` reads and prints, for one task or several over one trunk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.finetuning.experiment import TaskData
    from polyseme.tasks.base import TaskConfig
    from polyseme.tasks.readers.rows import Columns


@dataclass(frozen=True)
class TaskFiles:
    """The files of all tasks: folders of named data sets, or train and dev files."""

    data: Sequence[Path]
    train: Sequence[Path]
    dev: Sequence[Path]
    skip_bad: bool
    strict: bool


def list_tasks(names: Sequence[str], is_single: bool, over_features: bool) -> list[TaskData]:
    """Return the tasks that --task names, as [NAME=]TASK, still without data."""
    from polyseme.cli.output import find_task
    from polyseme.finetuning.experiment import TaskData

    data = []
    for name in names:
        label, equals, task_name = name.partition("=")
        task = find_task(task_name if equals else label)()
        data.append(TaskData(task.for_features() if over_features else task, (), (), "" if is_single else label))
    return data


def apply_overrides(
    config: FinetuneConfig, data: Sequence[TaskData], overrides: Sequence[str]
) -> tuple[FinetuneConfig, list[TaskData]]:
    """Apply each `--set path=value` to the settings, or to the tasks where it begins with `task.`."""
    from polyseme.finetuning.grid import override

    for each in overrides:
        path, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--set {each!r} is not path=value")
        config, data = override(config, data, path, value)
    return config, list(data)


def baseline_names(task: TaskConfig, baselines: bool, names: Sequence[str]) -> list[str]:
    """Return the rows that are printed beside the result: with --baselines the first two, and those of --baseline."""
    chosen = list(dict.fromkeys([*(list(task.baselines())[:2] if baselines else ()), *names]))
    for name in chosen:
        task.check_baseline(name)
    return chosen


def read_single(name: str, data: TaskData, files: TaskFiles, columns: Columns) -> TaskData:
    """Read the data of the only task: the --data of a named data set, or --train and --dev."""
    from polyseme.datasets.catalog import DATASETS

    pairs = (("--train", files.train), ("--dev", files.dev), ("--data", files.data))
    train, dev, folder = (_at_most_one(option, values) for option, values in pairs)
    if name in DATASETS:
        if train or dev or columns != type(columns)():
            raise ConfigError(f"{name} has its own files and columns: give --data FOLDER alone")
        if folder is None:
            raise ConfigError(
                f"--data is missing: the folder that holds {DATASETS[name].folder}, or that folder itself"
            )
        return _read_dataset(name, data, folder, files)
    if train is None or dev is None or folder is not None:
        wrong = "--data is for named data sets" if folder else f"--{'dev' if train else 'train'} is missing"
        raise ConfigError(f"{wrong}: {name} reads two files, --train and --dev")
    return _read_files(data, train, dev, files, columns)


def read_several(names: Sequence[str], data: Sequence[TaskData], files: TaskFiles, columns: Columns) -> list[TaskData]:
    """Read the data of each --task: named data sets take the --data in their order, or all the same one; the others the
    --train and --dev in theirs."""
    from polyseme.datasets.catalog import DATASETS

    sources = [name.rpartition("=")[2] for name in names]
    num_datasets = sum(source in DATASETS for source in sources)
    num_files = len(sources) - num_datasets
    if (num_datasets and len(files.data) not in (1, num_datasets)) or (files.data and not num_datasets):
        raise ConfigError(f"{len(files.data)} --data for {num_datasets} named data sets: one for each, or one for all")
    if len(files.train) != num_files or len(files.dev) != num_files:
        counts = f"{len(files.train)} --train and {len(files.dev)} --dev"
        raise ConfigError(f"{counts} for {num_files} tasks that read files: one for each")
    folders = iter(list(files.data) * (num_datasets if len(files.data) == 1 else 1))
    train, dev = iter(files.train), iter(files.dev)
    return [
        _read_dataset(source, each, next(folders), files)
        if source in DATASETS
        else _read_files(each, next(train), next(dev), files, columns)
        for source, each in zip(sources, data)
    ]


def _read_dataset(name: str, data: TaskData, folder: Path, files: TaskFiles) -> TaskData:
    from polyseme.datasets.catalog import DATASETS

    dataset = DATASETS[name]
    train, dev = dataset.read(folder, files.skip_bad, files.strict)
    return replace(
        data,
        train=train,
        dev=dev,
        primary_metric=dataset.metric,
        dataset_name=name,
        extra_metrics=dataset.extra_metrics,
    )


def _read_files(data: TaskData, train: Path, dev: Path, files: TaskFiles, columns: Columns) -> TaskData:
    train_examples, dev_examples = (
        data.task.read(path, columns, skip_bad=files.skip_bad, strict=files.strict) for path in (train, dev)
    )
    return replace(data, train=train_examples, dev=dev_examples)


def _at_most_one(option: str, values: Sequence[Any]) -> Any:
    if len(values) > 1:
        raise ConfigError(f"{len(values)} {option} for one task: one is read; several tasks are several --task")
    return values[0] if values else None


def run_or_search(
    run_point: Callable[[FinetuneConfig, Sequence[TaskData], Path], dict[str, Any]],
    config: FinetuneConfig,
    data: Sequence[TaskData],
    out: Path,
    grid: Sequence[str],
) -> dict[str, Any]:
    """Run once, or with --grid every point of it; then print the points."""
    from polyseme.cli.output import print_table
    from polyseme.finetuning.grid import expand_grid, grid_search

    if not grid:
        return run_point(config, data, out)
    results, points = grid_search(run_point, out, expand_grid(config, data, grid))
    metric = results["primary_metric"]
    print_table([metric, "settings"], [[f"{r['mean'][metric]:.4f}", name] for name, r in points])
    return results


def print_single(results: dict[str, Any], data: TaskData, out: Path, baselines: Sequence[str], row_name: str) -> None:
    """Print the table of one task, with its baselines, and what should be known of the run."""
    from polyseme.cli.output import print_table
    from polyseme.datasets.catalog import DATASETS
    from polyseme.report.run_page import dev_selection_note, truncation_note

    if results["failed_seeds"]:
        description = f"no better than a blind guess ({results['majority_score']:.4f})"
        failed = ", ".join(map(str, results["failed_seeds"]))
        print(f"failed seeds, {description}: {failed}; try another rate", file=sys.stderr)
    dataset = DATASETS.get(data.dataset_name)
    if dataset and dataset.get_warnings:
        for line in dataset.get_warnings(list(data.train), list(data.dev), results["mean"]["accuracy"]):
            print(f"{data.dataset_name}: {line}", file=sys.stderr)
    _print_data_facts(results)
    for split in results["num_truncated"]:
        if line := truncation_note(results, split):
            print(line, file=sys.stderr)
    metric_names = list(results["mean"])
    rows = []
    task = data.task.fit(data.train)
    for name in baselines:
        metrics = task.baseline_metrics(name, data.train, data.dev, data.extra_metrics)
        rows.append([name, *(f"{metrics[n]:.4f}" for n in metric_names)])
    rows.append([row_name, *(_format_mean(results, n) for n in metric_names)])
    print_table([f"{len(results['seeds'])} seed(s)", *metric_names], rows)
    if results["chosen_on_dev"]:
        print(dev_selection_note(results["chosen_on_dev"]))
    print(f"{out}/model: seed {results['best_seed']}; see {out}/report.html")


def _print_data_facts(results: dict[str, Any]) -> None:
    for split, (num_bad, num_lost) in results.get("bad_offsets", {}).items():
        if num_bad:
            consequence = f", so {num_lost} questions were not trained on" if split == "train" else ""
            print(f"{split}: {num_bad} answers do not stand at their offset{consequence}", file=sys.stderr)
    for split, (num_lost, total) in results.get("unreachable_mentions", {}).items():
        if num_lost:
            reason = "are too wide or cross sentences: never found"
            print(f"{split}: {num_lost} of {total} mentions {reason}", file=sys.stderr)


def print_tasks(results: dict[str, Any], data: Sequence[TaskData], out: Path, seeds: int, baselines: bool) -> None:
    """Print a row for each of several tasks."""
    from polyseme.cli.output import print_table

    rows = []
    for each in data:
        task_results = results["tasks"][each.name]
        metric, failed = task_results["primary_metric"], ", ".join(map(str, task_results["failed_seeds"]))
        task = each.task.fit(each.train)
        names = list(task.baselines())[:2] if baselines else []
        scores = [task.baseline_metrics(name, each.train, each.dev, each.extra_metrics)[metric] for name in names]
        cells = [f"{score:.4f}" for score in scores]
        rows.append([each.name, task.task_type, metric, *cells, _format_mean(task_results, metric)])
        if failed:
            reason = f"no better than a blind guess ({task_results['majority_score']:.4f})"
            print(f"{each.name}: failed seeds, {reason}: {failed}", file=sys.stderr)
        for split, num_truncated in task_results["num_truncated"].items():
            if num_truncated:
                print(f"{each.name}, {split}: {num_truncated} examples were truncated", file=sys.stderr)
    header = ["task", "type", "metric", *(["majority", "linear"] if baselines else []), f"{seeds} seed(s)"]
    print_table(header, rows)
    print(f"mean: {results['mean']['mean']:.4f}")
    print(f"{out}/model: seed {results['best_seed']}; ask it with --task NAME; see {out}/report.html")


def _format_mean(results: dict[str, Any], metric: str) -> str:
    std = results["std"][metric]
    return f"{results['mean'][metric]:.4f}" + (f" ± {std:.4f}" if std is not None else "")
