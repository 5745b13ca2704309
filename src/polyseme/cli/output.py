"""Print tables and JSON; read what several commands read."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.compress.result import CompressionResult
    from polyseme.config import ConfigT


MIN_WRAPPED_WIDTH = 24  # of a column of text


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
    """Print aligned columns, the last of which is wrapped to the width of the terminal, or 80 columns.

    If little room is left for a long last column, it is printed below the others.
    """
    cells = [list(header)] + [[f"{c:,}" if type(c) is int else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)]
    right_align = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(widths))]
    indent = sum(widths) + 2 * len(widths)
    room = shutil.get_terminal_size().columns - indent
    is_below = room < MIN_WRAPPED_WIDTH and any(len(row[-1]) > room for row in cells)
    for row in cells:
        start = "".join(f"{c.rjust(w) if r else c.ljust(w)}  " for c, w, r in zip(row, widths, right_align))
        if is_below:
            print(start.rstrip())
            print_wrapped(f"    {row[-1]}", 4, 4)
        else:
            print_wrapped(start + row[-1], indent, indent)


def print_wrapped(text: str, indent: int, num_fixed: int = 0) -> None:
    """Print a text in lines as wide as the terminal, the second and later ones indented; the first characters stay."""
    width = max(shutil.get_terminal_size().columns, indent + 8)
    lines = textwrap.wrap(text[num_fixed:], width - max(indent, num_fixed), break_on_hyphens=False) or [""]
    print(f"\n{' ' * indent}".join([text[:num_fixed] + lines[0], *lines[1:]]).rstrip())


def read_texts(source: str | Path) -> list[str]:
    """Read the texts of a file in any format; an empty one is an error, because each text gets one result."""
    from polyseme.evaluation.text_rows import open_texts

    return [row.text for row in open_texts(source).source]


def parse_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Split each `--set path=value`."""
    values: dict[str, str] = {}
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override!r} is not path=value")
        if values.setdefault(path, value) != value:
            raise ConfigError(f"{path} is set twice, to {values[path]} and to {value}")
    return values


def parse_settings(overrides: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Return the values of each `--set path=value` and of the flags that were passed; one setting may not be both."""
    from polyseme.config import parse_text

    values = {path: parse_text(text, path) for path, text in parse_overrides(overrides).items()}
    for name, value in flags.items():
        if value not in (None, "") and values.setdefault(name, value) != value:
            raise ConfigError(f"{name} is set twice, to {values[name]} and to {value}")
    return values


def parse_seeds(text: str) -> int | list[int]:
    """Parse `--seeds`: a number of seeds, or seeds separated by commas."""
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError:
        raise ConfigError(f"--seeds is {text!r}: a number of seeds, or seeds such as 7,11,13, is expected") from None


def apply_overrides(config: "ConfigT", overrides: Sequence[str]) -> "ConfigT":
    """Return the config with each `--set path=value` applied."""
    for path, value in parse_overrides(overrides).items():
        config = config.with_override(path, value)
    return config


def print_compression(compressed: "CompressionResult", as_json: bool, *lines: str) -> None:
    """Print what a smaller model saves and costs: its table, more lines, and its page; or all of it as JSON."""
    if as_json:
        print_json(compressed.to_json())
        return
    print_table(*compressed.table)
    for line in (*lines, f"times: median of single texts, {compressed.record['device']}"):
        print(line)
    print(f"{compressed.out}; see {compressed.out / 'compression.html'}")
