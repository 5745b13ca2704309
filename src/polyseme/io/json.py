"""Reading and writing of JSON, with errors that name the file and line."""

import json
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.atomic import write_text


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise `DataError` with the line of a syntax error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path} is not valid JSON{line}") from None


def parse_json(text: str | bytes, location: str) -> Any:
    """Parse JSON; raise `DataError` naming the location."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{location}: malformed JSON ({reason})") from None


def parse_json_object(text: str, location: str) -> dict[str, Any]:
    """Parse a JSON object; raise `DataError` naming the location for anything else."""
    parsed = parse_json(text, location)
    if not isinstance(parsed, dict):
        raise DataError(f"{location}: expected a JSON object, found {text[:40]!r}")
    return parsed
