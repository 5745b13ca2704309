"""`polyseme finetune` with several --task: one trunk, one head for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.finetuning.finetune import FinetuneConfig
    from polyseme.finetuning.multitask import TaskData


def at_most_one(option: str, values: Sequence[Any]) -> Any:
    """The one value of an option that is for one task, or none."""
    if len(values) > 1:
        raise ConfigError(f"{len(values)} {option} for one task: one is read; several tasks are several --task")
    return values[0] if values else None


def read_task_data(
    tasks: Sequence[str],
    data: Sequence[Path],
    train: Sequence[Path],
    dev: Sequence[Path],
    reader_options: dict[str, Any],
) -> list[TaskData]:
    """Each --task with its own data: named data sets take the --data in their order, or all the same one; the others
    the --train and --dev in theirs."""
    from polyseme.cli.output import task_type_of
    from polyseme.datasets.catalog import DATASETS
    from polyseme.finetuning.multitask import TaskData
    from polyseme.tasks.examples import read_examples

    parsed_tasks = [task.partition("=") for task in tasks]
    pairs = [(name, task_type) if equals else (name, name) for name, equals, task_type in parsed_tasks]
    dataset_names = [task_or_dataset for _, task_or_dataset in pairs if task_or_dataset in DATASETS]
    num_file_tasks = len(pairs) - len(dataset_names)
    for _, task_or_dataset in pairs:
        task_type_of(task_or_dataset)
    if (dataset_names and len(data) not in (1, len(dataset_names))) or (data and not dataset_names):
        raise ConfigError(f"{len(data)} --data for {len(dataset_names)} named data sets: one for each, or one for all")
    if len(train) != num_file_tasks or len(dev) != num_file_tasks:
        raise ConfigError(
            f"{len(train)} --train and {len(dev)} --dev for {num_file_tasks} tasks that read files: one for each"
        )
    folders, train_paths, dev_paths = (
        iter(list(data) * (len(dataset_names) if len(data) == 1 else 1)),
        iter(train),
        iter(dev),
    )
    task_data = []
    for name, task_or_dataset in pairs:
        task_type = task_type_of(task_or_dataset)
        if task_or_dataset in DATASETS:
            dataset = DATASETS[task_or_dataset]
            train_and_dev = dataset.read(next(folders), reader_options["skip_bad"], reader_options["strict"])
            task_data.append(
                TaskData(name, task_type, *train_and_dev, dataset.metric, task_or_dataset, dataset.extra_metrics)
            )
        else:
            train_examples, dev_examples = (
                read_examples(next(paths), task_type, **reader_options) for paths in (train_paths, dev_paths)
            )
            task_data.append(TaskData(name, task_type, train_examples, dev_examples))
    return task_data


def run_multitask(
    model: Path | None,
    task_data: Sequence[TaskData],
    out: Path,
    settings: FinetuneConfig,
    grid: Sequence[str],
    seeds: int,
    from_scratch: bool,
    baselines: bool,
) -> None:
    """Fine-tune for all tasks at once, and print what each is worth."""
    import sys

    from polyseme.cli.output import print_table
    from polyseme.finetuning.grid import expand_grid, grid_search
    from polyseme.finetuning.multitask import finetune_multitask
    from polyseme.tasks.baselines.surface import linear_baseline, majority_baseline

    if model is None:
        raise ConfigError("several tasks share a trunk that learns: give a model folder, not --features")

    def run_config(config: FinetuneConfig, folder: Path) -> dict[str, Any]:
        return finetune_multitask(model, task_data, folder, config, seeds=seeds, from_scratch=from_scratch)

    if grid:
        results, grid_results = grid_search(run_config, out, expand_grid(settings, grid))
        print_table(["mean", "settings"], [[f"{r['mean']['mean']:.4f}", name] for name, r in grid_results])
    else:
        results = run_config(settings, out)
    rows = []
    for task in task_data:
        task_results = results["tasks"][task.name]
        metric, failed = task_results["primary_metric"], ", ".join(map(str, task_results["failed_seeds"]))
        deviation = task_results["std"][metric]
        mean_text = f"{task_results['mean'][metric]:.4f}" + (f" ± {deviation:.4f}" if deviation is not None else "")
        baseline_metrics = (
            [baseline(task.train, task.dev, task.task_type) for baseline in (majority_baseline, linear_baseline)]
            if baselines
            else []
        )
        rows.append(
            [task.name, task.task_type, metric, *(f"{metrics[metric]:.4f}" for metrics in baseline_metrics), mean_text]
        )
        if failed:
            reason = f"no better than a blind guess ({task_results['majority_score']:.4f})"
            print(f"{task.name}: failed seeds, {reason}: {failed}", file=sys.stderr)
        for split, num_truncated in task_results["num_truncated"].items():
            if num_truncated:
                print(f"{task.name}, {split}: {num_truncated} examples were cut", file=sys.stderr)
    header = ["task", "type", "metric", *(["majority", "linear"] if baselines else []), f"{seeds} seed(s)"]
    print_table(header, rows)
    print(f"mean: {results['mean']['mean']:.4f}")
    print(f"{out}/model: seed {results['best_seed']}; ask it with --task NAME; see {out}/report.html")
