"""Published results of other systems, each with its source; where two sources disagree, both are listed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

from polyseme.errors import ConfigError, suggest
from polyseme.report.notebook import NotebookResult

DEV_NOTE = "Ours are on dev sets and the published ones on test sets: compare with care."
PARAMETERS = "parameters"  # the score of a column that shows the size of a model, in millions


@dataclass(frozen=True)
class PublishedResult:
    """A row of a published table: the values of one system as printed, mostly percentages."""

    system: str
    values: dict[str, float]
    source: str


@dataclass(frozen=True)
class MeasuredResult:
    """A row of our own next to a published table, in the same units; each value is a mean over seeds.

    `split` is that of all values: `dev` or `test`. `notes` say what to know about them, such as choices made on dev.
    """

    system: str
    values: dict[str, float]
    split: str
    std: dict[str, float] = field(default_factory=dict)
    num_seeds: dict[str, int] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScoreColumn:
    """Which score of ours belongs in a column: a metric on the dev examples of a data set.

    `split` is `test` for data sets that are distributed without dev examples, whose test examples stand in for them.
    `transfer` restricts the column to models that were fine-tuned (`finetune`) or frozen (`features`).
    """

    dataset: str
    metric: str = ""
    split: str = "dev"
    transfer: str = ""

    @classmethod
    def parse(cls, text: str) -> "ScoreColumn":
        """Parse `DATASET METRIC`, followed by `test`, `finetune` or `features` where they apply."""
        dataset, metric, *words = [*text.split(), ""]
        transfer = next((word for word in words if word in ("finetune", "features")), "")
        return cls(dataset, metric, "test" if "test" in words else "dev", transfer)


@dataclass(frozen=True)
class PublishedTable(NotebookResult):
    """A table of published results, with our own next to them if there are any.

    `split` is what the published values were measured on, empty if the columns say so. `score_columns` says which
    scores of ours belong in which column.
    """

    name: str
    description: str
    split: str
    columns: tuple[str, ...]
    rows: tuple[PublishedResult, ...]
    measured: tuple[MeasuredResult, ...] = ()
    score_columns: dict[str, ScoreColumn] = field(default_factory=dict, repr=False)
    average_of: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    def average(self, values: Mapping[str, float]) -> float | None:
        """Return the average of a row, as the table defines it; None if it defines none, or a value is missing."""
        if not self.average_of or any(name not in values for group in self.average_of for name in group):
            return None
        return fmean(fmean(values[name] for name in group) for group in self.average_of)

    @property
    def sources(self) -> list[str]:
        """The sources of the published rows, each once."""
        return list(dict.fromkeys(row.source for row in self.rows))


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
        tables[name] = PublishedTable(
            name,
            table["description"],
            table["split"],
            tuple(table["columns"]),
            tuple(rows),
            score_columns={column: ScoreColumn.parse(text) for column, text in table["scores"].items()},
            average_of=tuple((g,) if isinstance(g, str) else tuple(g) for g in table.get("average_of", ())),
        )
    return tables


def published_table(name: str) -> PublishedTable:
    """Return a table; raise `ConfigError` if the name is unknown."""
    if name not in load_published_tables():
        if Path(name).exists():
            raise ConfigError(f"{name} is not a published table: name the table first, then the runs")
        raise ConfigError(f"there is no published table {name!r}; {suggest(name, load_published_tables())}")
    return load_published_tables()[name]


def format_published(table: PublishedTable) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the header, the rows, and notes: what is measured on what, and the numbered sources."""
    sources = table.sources
    header = [table.name, "on", *table.columns, "#"]
    rows = []
    for row in table.rows:
        cells = [_format_value(row.values.get(column)) for column in table.columns]
        rows.append([row.system, table.split, *cells, str(sources.index(row.source) + 1)])
    for ours in table.measured:
        cells = [_format_value(ours.values.get(c), ours.std.get(c), is_rounded=True) for c in table.columns]
        rows.append([f"{ours.system} (ours{_format_seeds(ours)})", ours.split, *cells, ""])
    if not any(row[1] for row in rows):  # the columns say what they are measured on
        header.pop(1)
        rows = [[row[0], *row[2:]] for row in rows]
    notes = [DEV_NOTE] * (table.split == "test" and any(ours.split == "dev" for ours in table.measured))
    notes += dict.fromkeys(note for ours in table.measured for note in ours.notes)
    return header, rows, notes + [f"{number}: {source}" for number, source in enumerate(sources, 1)]


def _format_seeds(ours: MeasuredResult) -> str:
    """Return the number of seeds, or the range if it differs between columns; empty if it is unknown."""
    counts = sorted({*ours.num_seeds.values()})
    shown = "–".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
    return f", {shown} seed{'s' * (counts != [1])}" if counts else ""


def _format_value(value: float | None, std: float | None = None, is_rounded: bool = False) -> str:
    """Format a published value as printed, and ours with one decimal and its standard deviation."""
    if value is None:
        return ""
    if is_rounded or (isinstance(value, float) and round(value, 1) == value and abs(value) < 1e6):
        return f"{value:.1f}" + ("" if std is None else f" ± {std:.1f}")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
