"""A small grid of settings, as BERT's paper searches one (§A.3): each point is a run, the best on dev is kept."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyseme.errors import UserError
from polyseme.finetuning.finetune import FinetuneSpec
from polyseme.io.files import read_json, write_json
from polyseme.report.html import write_report

SHORT = {"lr": "optim.rate", "rate": "optim.rate", "batch": "batch_size", "warmup": "schedule.warmup"}


def points(settings: FinetuneSpec, axes: Sequence[str]) -> list[tuple[str, FinetuneSpec]]:
    """Every combination of `name=value,value…`, with a name for each."""
    named: list[list[tuple[str, str]]] = []
    for axis in " ".join(axes).split():
        name, equals, values = axis.partition("=")
        given = [value for value in values.split(",") if value]
        if not equals or not given:
            raise UserError(f"--grid {axis!r} is not name=value,value…")
        named.append([(name, value) for value in given])
    found = []
    for chosen in itertools.product(*named):
        spec = settings
        for name, value in chosen:
            spec = spec.at(SHORT.get(name, name), value)
        found.append(("_".join(f"{name}={value}" for name, value in chosen), spec.check()))
    return found


def search(
    run: Callable[[FinetuneSpec, Path], dict[str, Any]], out: Path, grid: Sequence[tuple[str, FinetuneSpec]]
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Run every point under `out/grid`, going on where a search was stopped; the best by mean becomes the run in `out`.

    Of the others the models go, so that there are never more than two. The results say that the best was chosen.
    """
    if (out / "results.json").exists():
        raise UserError(f"{out} already holds results.json: give another folder for the run")
    found: list[tuple[str, dict[str, Any]]] = []
    best = ""
    for name, spec in grid:
        folder = out / "grid" / name
        if (folder / "results.json").is_file():
            results = read_json(folder / "results.json")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            results = run(spec, folder)
        found.append((name, results))
        value = results["mean"][results["primary"]]
        top = dict(found).get(best)
        loser = name
        if top is None or value > top["mean"][top["primary"]]:
            loser, best = best, name
        if loser:
            for part in ("model", "seeds"):
                shutil.rmtree(out / "grid" / loser / part, ignore_errors=True)
    results, among = dict(found)[best], f"the best of {len(grid)} settings"
    if len(grid) > 1 and among not in results["chosen_on_dev"]:
        results["chosen_on_dev"].append(among)
        write_json(out / "grid" / best / "results.json", results)
        write_report(out / "grid" / best)
    rows = [
        {"settings": name, "mean": r["mean"], "deviation": r["deviation"], "failed": r["failed"]} for name, r in found
    ]
    write_json(out / "grid.json", {"best": best, "runs": rows})
    for file in sorted((out / "grid" / best).iterdir(), key=lambda p: p.name == "results.json"):
        os.replace(file, out / file.name)
    return results, found
