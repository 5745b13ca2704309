"""Published results of other systems, each with its source; where two sources disagree, both are listed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyseme.errors import ConfigError, suggest


@dataclass(frozen=True)
class PublishedResult:
    """A row of a published table: the values of one system as printed, mostly percentages."""

    system: str
    values: dict[str, float]
    source: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of published results."""

    """A table of published results."""

    description: str
    columns: tuple[str, ...]
    rows: tuple[PublishedResult, ...]


@cache
def load_published_tables() -> dict[str, PublishedTable]:
    """Load all tables by name."""
    """Load all tables by name."""
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: _parse_table(table_json) for name, table_json in content.items()}


def published_table(name: str) -> PublishedTable:
    """Return a table; raise `ConfigError` if the name is unknown."""
    """Return a table; raise `ConfigError` if the name is unknown."""
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
