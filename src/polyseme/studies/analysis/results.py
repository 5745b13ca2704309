"""The results of a study as read from its folder: one row for each arm and seed, also if it is not finished."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.json import has_shape, read_json_object
from polyseme.studies.base import Study
from polyseme.studies.plan import BASELINES_FILE, read_row

Row = Mapping[str, Any]


@dataclass(frozen=True)
class StudyResults:
    """A study, the settings in its `study.json`, and its rows in the order of arms and seeds.

    `learning_rates` are those that were tried and chosen, by arm; `baselines` the scores of simple models, by task.
    """

    path: Path
    study: Study
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]
    learning_rates: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def num_seeds(self) -> int:
        """The planned number of seeds of each arm."""
        return len(self.settings["seeds"])

    @property
    def num_done(self) -> int:
        """The number of finished rows."""
        return sum("error" not in row and "is_unfinished" not in row for row in self.rows)

    def arm_rows(self, arm: str) -> list[Row]:
        """Return the rows of an arm that did not fail."""
        return [row for row in self.rows if row["arm"] == arm and "error" not in row]

    def values(self, arm: str, metric: str) -> list[float]:
        """Return the values of an arm, one for each seed that has the metric."""
        return metric_values(self.arm_rows(arm), metric)


def metric_values(rows: Sequence[Row], metric: str) -> list[float]:
    """Return the finite values of a metric, one for each row that has it."""
    values = [row["metrics"].get(metric, {}).get("value") for row in rows]
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def read_results(out: Path) -> StudyResults:
    """Read the results of the study in a folder, however many there are."""
    path = out / "study.json"
    if not path.is_file():
        raise DataError(f"{out} is not a study: there is no study.json")
    settings = read_json_object(path)
    if settings.get("kind") != "study" or not isinstance(settings.get("seeds"), list):
        raise DataError(f"{path} is not the plan of a study")
    study = Study.from_json(settings.get("study", {}), str(path))
    order = {arm.name: number for number, arm in enumerate(study.arms)}
    parts = [row for file in out.glob("arms/*/seed-*.json") if (row := _read_row(file)) and row["arm"] in order]
    parts.sort(key=lambda row: (order[row["arm"]], row["seed"], "is_unfinished" not in row))
    rows = {(row["arm"], row["seed"]): row for row in parts}  # the finished one, if there are both
    rates, baselines = (
        read_json_object(path) if path.is_file() else {} for path in (out / "lr.json", out / BASELINES_FILE)
    )
    return StudyResults(out, study, settings, tuple(rows.values()), rates, baselines)


def _read_row(path: Path) -> dict[str, Any] | None:
    """Read a row; None for a file of examples."""
    if path.name.count(".") > 1 and not path.name.endswith(".partial.json"):
        return None
    row = read_row(path)
    metrics = {name: facts for name, facts in row.get("metrics", {}).items() if facts}
    if not has_shape(metrics, {str: {"value": float}}):
        raise DataError(f"{path} is damaged: a metric has no value; remove it and run the study again")
    return row | {"metrics": metrics}
