"""Input files as users write them: `PATH`, `PATH::name=value,…`, or `-` for standard input."""

import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import atomic_write

STDIN = "-"
_spool_folders: list[Any] = []  # temporary folders with copies of standard input, removed when Python exits


def split_spec(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split `PATH::name=value,…` into the path and its options, whose names are among `names`.

    An existing path that contains `::` is read as it is.
    """
    path, separator, options = text.rpartition("::")
    if not separator or os.path.exists(text):
        return text, {}
    settings: dict[str, str] = {}
    for option in options.split(","):
        name, equals, value = (part.strip() for part in option.partition("="))
        if name not in names:
            raise ConfigError(f"{text}: there is no option {name!r} here; {suggest(name, names)}")
        if not equals or not value or name in settings:
            raise ConfigError(f"{text}: {name} is set " + ("twice" if name in settings else "without a value"))
        settings[name] = value
    return path, settings


def check_conflicts(text: str, settings: Mapping[str, str], keywords: Mapping[str, str]) -> None:
    """Raise an error if an option of a spec differs from a keyword for all files, such as `text_column` (if set)."""
    for keyword, value in keywords.items():
        name = keyword.removesuffix("_column")
        if value and settings.get(name, value) != value:
            raise ConfigError(f"{text}: {name} is {settings[name]!r}, but `{keyword}` is {value!r}: leave out one")


def parse_bool(text: str, location: str, name: str) -> bool:
    """Parse an option that is true or false."""
    values = {**dict.fromkeys(("true", "yes", "1"), True), **dict.fromkeys(("false", "no", "0"), False)}
    if text.lower() not in values:
        raise ConfigError(f"{location}: {name} is {text!r}, expected true or false")
    return values[text.lower()]


def spool_stdin(folder: Path | None = None) -> Path:
    """Copy standard input to a file, because it is read more than once; by default to a temporary folder."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise DataError("standard input (-) is not piped from anything")
    if folder is None:
        _spool_folders.append(tempfile.TemporaryDirectory(prefix="polyseme-"))
        path = Path(_spool_folders[-1].name) / "standard input"
    else:
        path = folder / "stdin"

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)

    atomic_write(path, write)
    return path
