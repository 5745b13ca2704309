"""Grid search as in BERT's paper (§A.3): each point is a run, and the best on the dev examples is kept."""

import dataclasses
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.config import ConfigT, override_config
from polyseme.errors import ConfigError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.resume import UnfinishedRun, read_finished_results
from polyseme.io.hashes import write_hashes
from polyseme.io.json import read_json, write_json
from polyseme.report.cards.readme import add_limit
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.run_page import write_report

RunPoint = Callable[[FinetuneConfig, Sequence[TaskData], Path], dict[str, Any]]


class GridPoint(NamedTuple):
    """One combination of settings: a name, the config of training, and the tasks with theirs."""

    name: str
    config: FinetuneConfig
    data: Sequence[TaskData]
    values: dict[str, Any]


def override(
    config: FinetuneConfig, data: Sequence[TaskData], path: str, value: Any
) -> tuple[FinetuneConfig, list[TaskData]]:
    """Set a field of the config (`lr` or `optimizer.lr`), or of every task that has it; a string is parsed.

    `task.decoder` or `decoder` is a field of tasks; a name that both have is that of the config.
    """
    path = "task.decoder" if path == "tag_decoder" else path
    name = path.removeprefix("task.").partition(".")[0]
    has_field = [name in {f.name for f in dataclasses.fields(each.task)} for each in data]
    if not path.startswith("task.") and (config.find_paths(name) or not any(has_field)):
        return _set(config, path, value), list(data)
    path = path.removeprefix("task.")
    chosen = has_field if any(has_field) else [True] * len(data)  # the error of a task that lacks it names its fields
    tasks = [_set(each.task, path, value) if use else each.task for each, use in zip(data, chosen)]
    return config, [dataclasses.replace(each, task=task) for each, task in zip(data, tasks)]


def _set(config: ConfigT, path: str, value: Any) -> ConfigT:
    return config.with_override(path, value) if isinstance(value, str) else override_config(config, {path: value})


def expand_grid(
    config: FinetuneConfig, data: Sequence[TaskData], axes: Mapping[str, Sequence[Any]] | Sequence[str]
) -> list[GridPoint]:
    """Return every combination of the axes: `{"lr": [1e-4, 1e-3]}`, or texts `lr=1e-4,1e-3`."""
    pairs = list(axes.items()) if isinstance(axes, Mapping) else [*map(_parse_axis, " ".join(axes).split())]
    names = [name for name, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"the grid has the axis {repeated[0]!r} twice: put all of its values into one")
    if not pairs:
        raise ConfigError(f"the grid {axes!r} has no axis name=value,value…")
    points = []
    for combination in itertools.product(*([(n, value) for value in _list_values(n, values)] for n, values in pairs)):
        point_config, point_data = config, list(data)
        for name, value in combination:
            point_config, point_data = override(point_config, point_data, name, value)
        label = "_".join(f"{name}={value}" for name, value in combination)
        points.append(GridPoint(label, point_config.validate(), point_data, dict(combination)))
    return points


def _parse_axis(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    options = [value for value in values.split(",") if value]
    if not equals or not options:
        raise ConfigError(f"the grid axis {text!r} is not name=value,value…")
    return name, options


def _list_values(name: str, values: Any) -> list[Any]:
    """Return the values of an axis; raise `ConfigError` if they are no list, or one of them is there twice."""
    options = [] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    if not options:
        raise ConfigError(f"the grid axis {name!r} is {values!r}, expected a list of values")
    texts = [str(option) for option in options]  # which name the folders of points
    if repeated := [text for text in texts if texts.count(text) > 1]:
        raise ConfigError(f"the grid axis {name!r} has the value {repeated[0]} twice")
    return options


def grid_search(run_point: RunPoint, run: UnfinishedRun, grid_points: Sequence[GridPoint]) -> dict[str, Any]:
    """Run every point under `grid`, continuing an interrupted search; the best by mean becomes the run in the folder.

    The models of the others are removed, so that there are never more than two. The results record the selection and,
    as `grid`, the mean score of every point.
    """
    out = run.folder
    if not run.is_complete:
        _move_best(out, _run_points(run_point, run, grid_points))
        write_run_card(out, f"Grid search of {len(grid_points)} settings")
    results, rows = read_json(out / "results.json"), read_json(out / "grid.json")["runs"]
    run.finish()
    return {**results, "grid": {row["settings"]: row["mean"][results["primary_metric"]] for row in rows}}


def _run_points(run_point: RunPoint, run: UnfinishedRun, grid_points: Sequence[GridPoint]) -> str:
    """Run the points that are not finished, write `grid.json`, and return the name of the best point."""
    out, rows = run.folder, []
    best_name, best_score = "", -math.inf
    for name, config, data, values in grid_points:
        folder = out / "grid" / name
        results = read_finished_results(folder) or run_point(config, data, folder)
        run.start()
        rows.append(
            {"settings": name, "values": values, **{field: results[field] for field in ("mean", "std", "failed_seeds")}}
        )
        score = results["mean"][results["primary_metric"]]
        worse_name = name
        if not best_name or score > best_score:
            worse_name, best_name, best_score = best_name, name, score
        if worse_name:
            for subfolder in ("model", "seeds"):
                shutil.rmtree(out / "grid" / worse_name / subfolder, ignore_errors=True)
            write_hashes(out / "grid" / worse_name)
    write_json(out / "grid.json", {"best": best_name, "runs": rows})
    return best_name


def _move_best(out: Path, best_name: str) -> None:
    """Move the files of the best point to the folder of the search, first the model and last the results."""
    folder = out / "grid" / best_name
    num_points = len(read_json(out / "grid.json")["runs"])
    if num_points > 1 and (folder / "model").is_dir():
        results, selection_note = read_json(folder / "results.json"), f"the best of {num_points} settings"
        if selection_note not in results["chosen_on_dev"]:
            results["chosen_on_dev"].append(selection_note)
        add_limit(folder / "model", f"Scores are optimistic: the settings are {selection_note} on the dev examples.")
        write_json(folder / "results.json", results)
    for file in sorted(folder.iterdir(), key=lambda path: (path.name == "results.json", path.name != "model")):
        if file.name == "results.json":
            write_report(out, read_json(file))  # its plot of the grid reads `grid.json`
        os.replace(file, out / file.name)
