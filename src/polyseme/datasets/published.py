"""Figures that others published, from one file, each with its source. Where two sources disagree both are there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyseme.errors import UserError, nearest


@dataclass(frozen=True)
class Published:
    """One system's row of a published table, as printed there: mostly percents."""

    system: str
    values: dict[str, float]
    source: str


@dataclass(frozen=True)
class PublishedTable:
    about: str
    columns: tuple[str, ...]
    rows: tuple[Published, ...]


@cache
def published() -> dict[str, PublishedTable]:
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: _table(given) for name, given in content.items()}


def table(name: str) -> PublishedTable:
    if name not in published():
        raise UserError(f"there is no published table {name!r}; {nearest(name, published())}")
    return published()[name]


def _table(given: dict) -> PublishedTable:
    columns = tuple(given["columns"])
    rows = [
        Published(
            row["system"],
            {name: value for name, value in zip(columns, row["values"], strict=True) if value is not None},
            row["source"],
        )
        for row in given["rows"]
    ]
    return PublishedTable(given["about"], columns, tuple(rows))
