"""Reading and writing of JSON, with errors that name the file and line.

Our own files are read by a strict parser: `limits` bounds their size, depth and integers, and a repeated key is an
error. Rows of data are only bounded in depth, since they are many.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.atomic import write_text
from polyseme.io.limits import MAX_INTEGER_DIGITS, MAX_JSON_BYTES, MAX_JSON_DEPTH

_SURROGATE = re.compile("[\ud800-\udfff]")


def format_json(value: Any) -> str:
    """Return the text of a JSON file: indented, with a newline at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, format_json(value))


def read_json(path: Path) -> Any:
    """Read a JSON file of ours strictly; raise `DataError` with the line of a syntax error."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise DataError(f"{path} has more than {MAX_JSON_BYTES >> 20} MB, too much for a JSON file of this kind")
        return parse_strict(content.decode())
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not valid JSON: it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not valid JSON at line {error.lineno}") from None
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{path} is not valid JSON: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of ours that holds an object; raise `DataError` for anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object")
    return value


def parse_strict(text: str) -> Any:
    """Parse JSON within all limits; raise `ValueError`: `json.JSONDecodeError` for a syntax error."""
    try:
        value = _STRICT_DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_JSON_DEPTH} levels deep") from None
    _check_depth(text, value)
    if "\\u" in text and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a string has half of a surrogate pair, which is no character")
    return value


def parse_json(text: str | bytes, location: str) -> Any:
    """Parse a row of JSON; raise `DataError` naming the location."""
    try:
        value = json.loads(text)
        _check_depth(text, value)
        return value
    except RecursionError:
        reason = f"nested more than {MAX_JSON_DEPTH} levels deep"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.colno}"
    except ValueError as error:
        reason = str(error)
    raise DataError(f"{location}: malformed JSON ({reason})")


def parse_json_object(text: str, location: str) -> dict[str, Any]:
    """Parse a JSON object; raise `DataError` naming the location for anything else."""
    parsed = parse_json(text, location)
    if not isinstance(parsed, dict):
        raise DataError(f"{location}: expected a JSON object, found {text[:40]!r}")
    return parsed


def has_shape(value: Any, shape: Any) -> bool:
    """Return whether a parsed value has the types of `shape`.

    A type stands for itself and `float` for any number, `[shape]` for a list, `{"key": shape}` for an object with at
    least these keys, and `{str: shape}` for an object with any keys.
    """
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(inner, shape[0]) for inner in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if str in shape:
            return all(has_shape(inner, shape[str]) for inner in value.values())
        return all(key in value and has_shape(value[key], inner) for key, inner in shape.items())
    return isinstance(value, int | float if shape is float else shape) and (
        not isinstance(value, bool) or shape is bool
    )


def json_differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted path and both values of each difference between two JSON values; None where one is missing."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from json_differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _check_depth(text: str | bytes, value: Any) -> None:
    """Raise `ValueError` if a parsed value is nested too deeply for code that walks it recursively."""
    brackets: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) <= MAX_JSON_DEPTH:
        return
    level, depth = [value], 0
    while level:
        depth += 1
        containers = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [v for container in containers for v in container if isinstance(v, dict | list)]
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"nested more than {MAX_JSON_DEPTH} levels deep")


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    obj = dict(pairs)
    if len(obj) < len(pairs):
        keys: set[str] = set()
        repeated = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {repeated[:100]!r} occurs twice in one object")
    return obj


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError(
            f"the integer {digits[:20]}… has {len(digits):,} digits, at most {MAX_INTEGER_DIGITS} are read"
        )
    return int(digits)


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_reject_repeated_keys, parse_int=_parse_integer)
