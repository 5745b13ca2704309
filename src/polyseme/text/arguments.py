"""Checks of what is passed to functions: a string is one text, a list of strings a list of texts; numbers and paths."""

from collections.abc import Iterable, Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError


def check_text(value: Any, noun: str = "text") -> str:
    """Return a value that is a string; raise `DataError` for anything else."""
    if not isinstance(value, str):
        raise DataError(f"expected a {noun}, not {_describe(value)}")
    return value


def check_texts(values: Any, noun: str = "text") -> list[str]:
    """Return a list of strings; raise `DataError` for anything else, also for a single string."""
    texts = check_list(values, noun)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise DataError(f"{noun} {number} of {len(texts)} is {_describe(text)}, not a {noun}")
    return texts


def check_list(values: Any, noun: str = "text") -> list[Any]:
    """Return a list of the elements of a list, an array or another iterable, but not of a string, bytes or mapping."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"expected a list of {noun}s, not {_describe(values)}")
    return list(values)


def check_count(value: Any, name: str) -> int:
    """Return a number of things, 1 or more, from Python or numpy; raise `ConfigError` for anything else."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}, expected an integer of 1 or more")
    return int(value)


def check_path(value: Any, noun: str) -> Path:
    """Return the path of a file or folder; raise `ConfigError` for anything else."""
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"expected {noun}, not {_describe(value)}")
    return Path(value)


def _describe(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown[:40]}{'…' * (len(shown) > 40)}" if value is not None else "None"
