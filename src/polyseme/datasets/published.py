"""Published results of other systems, each with its source; where two sources disagree, both are listed."""

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

    description: str
    columns: tuple[str, ...]
    rows: tuple[PublishedResult, ...]


@cache
def load_published_tables() -> dict[str, PublishedTable]:
    """Load all tables by name."""
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    tables = {}
    for name, table in content.items():
        rows = []
        for row in table["rows"]:
            cells = zip(table["columns"], row["values"], strict=True)
            values = {column: value for column, value in cells if value is not None}
            rows.append(PublishedResult(row["system"], values, row["source"]))
        tables[name] = PublishedTable(table["description"], tuple(table["columns"]), tuple(rows))
    return tables


def published_table(name: str) -> PublishedTable:
    """Return a table; raise `ConfigError` if the name is unknown."""
    if name not in load_published_tables():
        raise ConfigError(f"there is no published table {name!r}; {suggest(name, load_published_tables())}")
    return load_published_tables()[name]
