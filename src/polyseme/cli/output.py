"""Print tables and JSON; read what several commands read."""

import json
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
