"""How verbs speak: tables and JSON; and what they are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polyseme.errors import UserError, nearest

if TYPE_CHECKING:
    from polyseme.config import Spec
    from polyseme.tasks.examples import Kind

SomeSpec = TypeVar("SomeSpec", bound="Spec")
SOURCES = (
    "files or folders of text, JSON lines, CSV, TSV, Parquet, WikiExtractor, WET or MIDI; plain, .gz .xz .zst or .bz2; "
    "- for standard input (say --format); python-docs or gettext. "
    "Each may end in ::lang=de,weight=2,key=body,format=jsonl"
)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns lined up; numbers to the right."""
    cells = [list(header)] + [[f"{c:,}" if type(c) is int else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for row in cells:
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)).rstrip())


def read_texts(path: Path) -> list[str]:
    """One text a line; an empty line is an error that names it, so that answers stand beside their lines."""
    from polyseme.tasks.examples import read_lines

    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UserError(f"{path}, line {number} is empty: every line has to hold a text")
    return lines


def set_values(spec: SomeSpec, changes: Sequence[str]) -> SomeSpec:
    """The spec with each `--set path=value` applied."""
    for change in changes:
        path, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set {change!r} is not path=value")
        spec = spec.at(path, value)
    return spec


def kind_of(task: str) -> Kind:
    from polyseme.datasets.catalog import DATA_SETS
    from polyseme.tasks.task import HEADS

    for kind in HEADS:
        if task == kind:
            return kind
    if task in DATA_SETS:
        return DATA_SETS[task].kind
    raise UserError(f"there is no task {task!r}; {nearest(task, [*HEADS, *DATA_SETS])}")
