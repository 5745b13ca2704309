"""Figures that others published, from one file, each with its source. Where two sources disagree both are there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyseme.errors import ConfigError, suggest


@dataclass(frozen=True)
class PublishedResult:
    """One system's row of a published table, as printed there: mostly percents."""

    system: str
    values: dict[str, float]
    source: str


@dataclass(frozen=True)
class PublishedTable:
    description: str
    columns: tuple[str, ...]
    rows: tuple[PublishedResult, ...]


@cache
def load_published_tables() -> dict[str, PublishedTable]:
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: _parse_table(table_json) for name, table_json in content.items()}


def published_table(name: str) -> PublishedTable:
    if name not in load_published_tables():
        raise ConfigError(f"there is no published table {name!r}; {suggest(name, load_published_tables())}")
    return load_published_tables()[name]


def _parse_table(table_json: dict) -> PublishedTable:
    columns = tuple(table_json["columns"])
    rows = [
        PublishedResult(
            row["system"],
            {name: value for name, value in zip(columns, row["values"], strict=True) if value is not None},
            row["source"],
        )
        for row in table_json["rows"]
    ]
    return PublishedTable(table_json["description"], columns, tuple(rows))
