"""The run folder: `recipe.json`, which says what the run is, and its log."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import is_occupied, wrap_os_errors, write_text
from polyseme.io.json import read_json, write_json
from polyseme.train.loop import StepReport
from polyseme.train.recipe import Recipe


def open_run(
    out: Path, recipe: Recipe, corpus: Corpus, provenance: dict[str, str], resume: bool = False
) -> dict[str, Any]:
    """Return the contents of `recipe.json`, existing or new, if a run may start or resume in this folder."""
    path, recipe_json = out / "recipe.json", recipe.to_json()
    record = {"recipe": recipe_json, "corpus": str(corpus.path), "corpus_hash": corpus.manifest_hash, **provenance}
    if not path.exists():
        if is_occupied(out):
            raise ConfigError(f"{out} exists and is not a run: choose another folder")
        return record
    if not resume:
        raise ConfigError(f"{out} already holds a run: resume the run, or choose another folder")
    existing = read_run_record(out)
    if not record.keys() <= existing.keys():
        raise DataError(f"{path} is not the recipe of a run")
    if existing["corpus_hash"] != record["corpus_hash"]:
        raise ConfigError(f"{out} was started on another corpus ({existing['corpus']})")
    # parsed, so that it has the fields that were added since
    saved_recipe = Recipe.from_json(existing["recipe"], config_types=(type(recipe.objective),)).to_json()
    if difference := describe_difference(saved_recipe | {"budget": recipe_json["budget"]}, recipe_json):
        advice = "pass no recipe and no overrides to continue with those of the run, or choose another folder"
        raise ConfigError(f"{out} was started with another recipe: {difference}; {advice}")
    if existing.get("initialized_from_hash") != record.get("initialized_from_hash"):
        raise ConfigError(f"{out} was started from another model ({existing.get('initialized_from')})")
    return existing | {"recipe": saved_recipe}


def read_run_record(out: Path) -> dict[str, Any]:
    """Return the contents of the `recipe.json` of a run: its recipe, corpus, plan and provenance."""
    path = out / "recipe.json"
    existing = read_json(path)
    total_steps = existing.get("total_steps", 1) if isinstance(existing, dict) else 0
    if not isinstance(existing, dict) or type(total_steps) is not int or not isinstance(existing.get("recipe"), dict):
        raise DataError(f"{path} is not the recipe of a run")
    return existing


def describe_difference(saved: Any, current: Any, path: str = "") -> str:
    """Describe the first value that differs in two JSON objects; empty if there is none."""
    if isinstance(saved, dict) and isinstance(current, dict) and saved.get("kind") == current.get("kind"):
        keys = [key for key in {**saved, **current} if saved.get(key) != current.get(key)]
        return describe_difference(saved.get(keys[0]), current.get(keys[0]), f"{path}.{keys[0]}") if keys else ""
    return f"{path[1:]} was {saved!r}, now {current!r}" if saved != current else ""


def update_run_record(out: Path, record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Write `recipe.json` with changed values and return them all."""
    record = record | changes
    write_json(out / "recipe.json", record)
    return record


class RunLogger:
    """`log.jsonl` and TensorBoard events, written by rank 0. A resumed run continues both from its checkpoint."""

    def __init__(self, out: Path, start_step: int, rank: int = 0):
        self.path, self.is_active = out / "log.jsonl", rank == 0
        self.last_time, self.last_step = time.perf_counter(), start_step
        self.tensorboard: Any = None
        if not self.is_active:
            return
        truncate_rows(self.path, start_step)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # the extra `report` is not installed
            return
        self.tensorboard = SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1 if start_step else None)

    def log_step(self, report: StepReport) -> None:
        """Write the metrics of a step, and the mean time of the steps since the last one."""
        now = time.perf_counter()
        seconds = (now - self.last_time) / max(report.step - self.last_step, 1)
        self.last_time, self.last_step = now, report.step
        if self.is_active:
            row = {name: getattr(report, name) for name in ("step", "loss", "lr", "grad_norm", "tokens")}
            self.write_row(row | {"seconds": seconds, "tokens_per_second": report.tokens / max(seconds, 1e-9)})

    def write_row(self, row: dict[str, Any]) -> None:
        """Write numbers, or groups of numbers, of `row["step"]`."""
        if not self.is_active:
            return
        with wrap_os_errors(self.path), open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
        if self.tensorboard is not None:
            for key, value in row.items():
                scalars = {f"{key}/{name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
                for name, scalar in scalars.items():
                    self.tensorboard.add_scalar(name, scalar, row["step"])
            self.tensorboard.flush()


def truncate_rows(path: Path, step: int) -> None:
    """Remove the rows of a log that were written after a step; damaged ones too."""
    rows = _read_rows(path) if step else []
    write_text(path, "".join(row + "\n" for row in rows if _row_step(row) <= step))


def read_losses(
    out: Path, terms: Sequence[str], max_step: int
) -> tuple[dict[str, tuple[float, int]], dict[str, float]]:
    """Return the lowest held-out loss of each term in the log, with its step, and the last losses in training."""
    best_losses, training_losses = dict[str, tuple[float, int]](), dict[str, float]()
    for row in (json.loads(row) for row in _read_rows(out / "log.jsonl") if _row_step(row) <= max_step):
        training_losses = row["loss"] if isinstance(row.get("loss"), dict) else training_losses
        for term in terms:
            loss = row["valid"].get(term) if isinstance(row.get("valid"), dict) else None
            if isinstance(loss, float) and loss < best_losses.get(term, (math.inf, 0))[0]:
                best_losses[term] = loss, row["step"]
    return best_losses, training_losses


def last_logged_step(out: Path) -> int:
    """Return the last step in the log of a run; 0 if there is none."""
    steps = [_row_step(row) for row in _read_rows(out / "log.jsonl")]
    return int(max((step for step in steps if step < math.inf), default=0))


def _read_rows(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def _row_step(row: str) -> float:
    """Return the step of a log row; infinity for a row that was cut off by a crash, or is damaged."""
    try:
        step = json.loads(row)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
    return step if type(step) is int else math.inf
