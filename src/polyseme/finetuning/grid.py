"""Grid search as in BERT's paper (§A.3): each point is a run, and the best on the dev examples is kept."""

import dataclasses
import itertools
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.config import ConfigT, override_config
from polyseme.errors import ConfigError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.io.json import read_json, write_json
from polyseme.report.run_page import write_report

SHORT_NAMES = {
    "lr": "optimizer.lr",
    "layer_decay": "optimizer.layer_decay",
    "warmup": "schedule.warmup",
    "tag_decoder": "task.decoder",
}
RunPoint = Callable[[FinetuneConfig, Sequence[TaskData], Path], dict[str, Any]]


class GridPoint(NamedTuple):
    """One combination of settings: a name, the config of training, and the tasks with theirs."""

    name: str
    config: FinetuneConfig
    data: Sequence[TaskData]


def override(
    config: FinetuneConfig, data: Sequence[TaskData], path: str, value: Any
) -> tuple[FinetuneConfig, list[TaskData]]:
    """Set a field of the config or, with the prefix `task.`, of every task that has it; a string is parsed."""
    path = SHORT_NAMES.get(path, path)
    if not path.startswith("task."):
        return _set(config, path, value), list(data)
    path = path.removeprefix("task.")
    name = path.partition(".")[0]
    has_field = [name in {f.name for f in dataclasses.fields(each.task)} for each in data]
    chosen = has_field if any(has_field) else [True] * len(data)  # the error of a task that lacks it names its fields
    tasks = [_set(each.task, path, value) if use else each.task for each, use in zip(data, chosen)]
    return config, [dataclasses.replace(each, task=task) for each, task in zip(data, tasks)]


def _set(config: ConfigT, path: str, value: Any) -> ConfigT:
    return config.with_override(path, value) if isinstance(value, str) else override_config(config, {path: value})


def expand_grid(
    config: FinetuneConfig, data: Sequence[TaskData], axes: Mapping[str, Sequence[Any]] | Sequence[str]
) -> list[GridPoint]:
    """Return every combination of the axes: `{"lr": [1e-4, 1e-3]}`, or texts `lr=1e-4,1e-3`."""
    if not isinstance(axes, Mapping):
        axes = dict(map(_parse_axis, " ".join(axes).split()))
    points = []
    for combination in itertools.product(*([(name, value) for value in values] for name, values in axes.items())):
        point_config, point_data = config, list(data)
        for name, value in combination:
            point_config, point_data = override(point_config, point_data, name, value)
        label = "_".join(f"{name}={value}" for name, value in combination)
        points.append(GridPoint(label, point_config.validate(), point_data))
    return points


def _parse_axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    options = [value for value in values.split(",") if value]
    if not equals or not options:
        raise ConfigError(f"the grid axis {text!r} is not name=value,value…")
    return name, options


def grid_search(
    run_point: RunPoint, out: Path, grid_points: Sequence[GridPoint]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Run every point under `out/grid`, continuing an interrupted search; the best by mean becomes the run in `out`.

    The models of the others are removed, so that there are never more than two. The results record the selection.
    """
    if (out / "results.json").exists():
        raise ConfigError(f"{out} already holds results.json: give another folder for the run")
    point_results: dict[str, dict[str, Any]] = {}
    best_name, best_score = "", -math.inf
    for name, config, data in grid_points:
        folder = out / "grid" / name
        if (folder / "results.json").is_file():
            results = read_json(folder / "results.json")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            results = run_point(config, data, folder)
        point_results[name] = results
        score = results["mean"][results["primary_metric"]]
        worse_name = name
        if not best_name or score > best_score:
            worse_name, best_name, best_score = best_name, name, score
        if worse_name:
            for subfolder in ("model", "seeds"):
                shutil.rmtree(out / "grid" / worse_name / subfolder, ignore_errors=True)
    results, best_folder = point_results[best_name], out / "grid" / best_name
    selection_note = f"the best of {len(grid_points)} settings"
    if len(grid_points) > 1 and selection_note not in results["chosen_on_dev"]:
        results["chosen_on_dev"].append(selection_note)
        write_json(best_folder / "results.json", results)
        write_report(best_folder)
    fields = ("mean", "std", "failed_seeds")
    rows = [{"settings": name, **{field: r[field] for field in fields}} for name, r in point_results.items()]
    write_json(out / "grid.json", {"best": best_name, "runs": rows})
    for file in sorted(best_folder.iterdir(), key=lambda p: p.name == "results.json"):
        os.replace(file, out / file.name)
    return results, point_results
