"""Print tables and JSON; read what several commands read."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.config import ConfigT


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON; without an indent on one line."""
    print(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns, numbers to the right."""
    cells = [list(header)] + [[f"{c:,}" if type(c) is int else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right_align = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for row in cells:
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right_align)).rstrip())


def print_wrapped_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns, the last of which is wrapped to the width of the terminal, or 80 columns."""
    cells = [list(header)] + [[f"{c:,}" if type(c) is int else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)]
    right_align = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(widths))]
    for row in cells:
        start = "".join(f"{c.rjust(w) if r else c.ljust(w)}  " for c, w, r in zip(row, widths, right_align))
        print_wrapped(start + row[-1], sum(widths) + 2 * len(widths), len(start))


def print_wrapped(text: str, indent: int, num_fixed: int = 0) -> None:
    """Print a text in lines as wide as the terminal, the second and later ones indented; the first characters stay."""
    width = max(shutil.get_terminal_size().columns, indent + 8)
    lines = textwrap.wrap(text[num_fixed:], width - max(indent, num_fixed), break_on_hyphens=False) or [""]
    print(f"\n{' ' * indent}".join([text[:num_fixed] + lines[0], *lines[1:]]).rstrip())


def read_texts(path: Path) -> list[str]:
    """Read one text per line; an empty line is an error, because each line gets one result."""
    return list(iter_texts(path))


def iter_texts(path: Path) -> Iterator[str]:
    """Yield the texts of `read_texts`."""
    from polyseme.tasks.readers.rows import iter_lines

    for number, line in enumerate(iter_lines(path), start=1):
        if not line.strip():
            raise ConfigError(f"{path}, line {number} is empty: every line must contain a text")
        yield line


def parse_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Split each `--set path=value`."""
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"--set {override!r} is not path=value")
    return dict(override.split("=", 1) for override in overrides)


def apply_overrides(config: "ConfigT", overrides: Sequence[str]) -> "ConfigT":
    """Return the config with each `--set path=value` applied."""
    for path, value in parse_overrides(overrides).items():
        config = config.with_override(path, value)
    return config
