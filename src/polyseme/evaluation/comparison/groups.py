"""Groups of fine-tuning runs that differ in the pre-training seed of their model: one row of a comparison."""

import glob
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from polyseme.errors import ConfigError
from polyseme.evaluation.comparison.finetuning_runs import FinetuneRun, find_runs, mean_speed, read_run
from polyseme.evaluation.comparison.pretraining_runs import is_pretrain_run

Groups = Mapping[str, Sequence[Path]]


def parse_groups(runs: Sequence[str | Path]) -> dict[str, list[Path]]:
    """Return the folders of groups by name, from `NAME=FOLDER`; empty if all are plain folders.

    Several folders are a pattern such as `bert=runs/bert-*/cola`, or separated by commas.
    """
    named = [str(run).partition("=") for run in runs if "=" in str(run) and not Path(run).exists()]
    if not named:
        return {}
    if len(named) < len(runs):
        plain = next(run for run in runs if "=" not in str(run) or Path(run).exists())
        raise ConfigError(f"{plain} is in no group: write NAME=FOLDER for every group, such as 'bert=runs/bert-*/cola'")
    groups: dict[str, list[Path]] = {}
    for name, _, patterns in named:
        if not name or name in groups:
            raise ConfigError(f"{name!r} is no name of a group, or that of two")
        groups[name] = []
        for pattern in patterns.split(","):
            folders = [Path(path) for path in sorted(glob.glob(pattern)) if Path(path).is_dir()]
            if not folders:
                raise ConfigError(f"there is no run at {pattern} (the group {name})")
            groups[name] += folders
    return groups


def read_groups(groups: Groups) -> list[FinetuneRun]:
    """Read the runs of groups; each group is one run for each task."""
    return [run for name, folders in groups.items() for run in _read_group(name, folders)]


def _read_group(name: str, folders: Sequence[Path]) -> list[FinetuneRun]:
    if pretraining := next((folder for folder in folders if is_pretrain_run(folder)), None):
        raise ConfigError(f"{pretraining} is a pre-training run: a group has fine-tuning runs, one for each model")
    runs = [read_run(path) for folder in folders for path in find_runs(folder)]
    if not runs:
        raise ConfigError(f"the group {name} has no runs")
    tasks = dict.fromkeys(run.task for run in runs)
    return [_merge(name, [run for run in runs if run.task == task]) for task in tasks]


def _merge(name: str, runs: Sequence[FinetuneRun]) -> FinetuneRun:
    """Return a group as one run, whose seeds are those of pre-training."""
    runs = sorted(runs, key=lambda run: run.model_id)
    for first, second in pairwise(runs):
        if first.model_id == second.model_id:
            raise ConfigError(
                f"{first.path} and {second.path} fine-tune the same model {first.model}: a group has one run for each "
                "pre-training seed"
            )
        if not first.is_comparable(second):
            raise ConfigError(f"{first.path} and {second.path} were not measured on the same examples by one metric")
    speed, latency_ms = mean_speed(runs)
    flops = [run.train_flops for run in runs]
    return FinetuneRun(
        runs[0].path, f"{len(runs)} pre-trained", runs[0].task, runs[0].metric, tuple(run.mean for run in runs),
        runs[0].num_parameters, sum(run.train_seconds for run in runs),
        tuple(seed for run in runs for seed in run.failed_seeds), runs[0].gold,
        dev_choices=tuple(dict.fromkeys(choice for run in runs for choice in run.dev_choices)),
        examples_per_second=speed, latency_ms=latency_ms,
        train_flops=None if None in flops else sum(each or 0.0 for each in flops),
        name=name, row=name, models=tuple(runs),
    )  # fmt: skip
