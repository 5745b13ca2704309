"""A small grid of settings, as BERT's paper searches one (§A.3): each point is a run, the best on dev is kept."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.finetuning.finetune import FinetuneConfig
from polyseme.io.json import read_json, write_json
from polyseme.report.html import write_report

AXIS_ALIASES = {"lr": "optimizer.lr", "warmup": "schedule.warmup"}


def expand_grid(settings: FinetuneConfig, axes: Sequence[str]) -> list[tuple[str, FinetuneConfig]]:
    """Every combination of `name=value,value…`, with a name for each."""
    axis_choices: list[list[tuple[str, str]]] = []
    for axis in " ".join(axes).split():
        name, equals, values = axis.partition("=")
        choices = [value for value in values.split(",") if value]
        if not equals or not choices:
            raise ConfigError(f"the grid axis {axis!r} is not name=value,value…")
        axis_choices.append([(name, value) for value in choices])
    grid_points = []
    for assignment in itertools.product(*axis_choices):
        config = settings
        for name, value in assignment:
            config = config.with_override(AXIS_ALIASES.get(name, name), value)
        grid_points.append(("_".join(f"{name}={value}" for name, value in assignment), config.validate()))
    return grid_points


def grid_search(
    run_point: Callable[[FinetuneConfig, Path], dict[str, Any]],
    out: Path,
    grid_points: Sequence[tuple[str, FinetuneConfig]],
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Run every point under `out/grid`, going on where a search was stopped; the best by mean becomes the run in `out`.

    Of the others the models go, so that there are never more than two. The results say that the best was chosen.
    """
    if (out / "results.json").exists():
        raise ConfigError(f"{out} already holds results.json: give another folder for the run")
    point_results: list[tuple[str, dict[str, Any]]] = []
    best_name = ""
    for name, config in grid_points:
        folder = out / "grid" / name
        if (folder / "results.json").is_file():
            results = read_json(folder / "results.json")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            results = run_point(config, folder)
        point_results.append((name, results))
        score = results["mean"][results["primary_metric"]]
        best_results = dict(point_results).get(best_name)
        worse_name = name
        if best_results is None or score > best_results["mean"][best_results["primary_metric"]]:
            worse_name, best_name = best_name, name
        if worse_name:
            for subfolder in ("model", "seeds"):
                shutil.rmtree(out / "grid" / worse_name / subfolder, ignore_errors=True)
    results, selection_note = dict(point_results)[best_name], f"the best of {len(grid_points)} settings"
    if len(grid_points) > 1 and selection_note not in results["chosen_on_dev"]:
        results["chosen_on_dev"].append(selection_note)
        write_json(out / "grid" / best_name / "results.json", results)
        write_report(out / "grid" / best_name)
    rows = [
        {"settings": name, "mean": r["mean"], "std": r["std"], "failed_seeds": r["failed_seeds"]}
        for name, r in point_results
    ]
    write_json(out / "grid.json", {"best": best_name, "runs": rows})
    for file in sorted((out / "grid" / best_name).iterdir(), key=lambda p: p.name == "results.json"):
        os.replace(file, out / file.name)
    return results, point_results
