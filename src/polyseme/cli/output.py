"""How verbs speak: tables and JSON; and what they are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polyseme.errors import ConfigError, DataError, suggest

if TYPE_CHECKING:
    from polyseme.config import Config
    from polyseme.tasks.examples import TaskType

ConfigT = TypeVar("ConfigT", bound="Config")
SOURCES_HELP = (
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
    right_align = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for row in cells:
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right_align)).rstrip())


def read_texts(path: Path) -> list[str]:
    """One text a line; an empty line is an error that names it, so that answers stand beside their lines."""
    from polyseme.tasks.examples import read_lines

    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}, line {number} is empty: every line has to hold a text")
    return lines


def apply_overrides(config: ConfigT, overrides: Sequence[str]) -> ConfigT:
    """The spec with each `--set path=value` applied."""
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override!r} is not path=value")
        config = config.with_override(path, value)
    return config


def task_type_of(task: str) -> TaskType:
    from polyseme.datasets.catalog import DATASETS
    from polyseme.tasks.task import HEAD_BY_TASK

    for task_type in HEAD_BY_TASK:
        if task == task_type:
            return task_type
    if task in DATASETS:
        return DATASETS[task].task_type
    raise ConfigError(f"there is no task {task!r}; {suggest(task, [*HEAD_BY_TASK, *DATASETS])}")
