"""Reading and writing JSON, with errors that name the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.atomic import write_text


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file, or a `DataError` naming the line at fault."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path} is not valid JSON{where}") from None


def parse_json(text: str | bytes, where: str) -> Any:
    """Parsed JSON, or a `DataError` that says where it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: malformed JSON: {error}") from None


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """The same of what has to be an object."""
    parsed = parse_json(text, where)
    if not isinstance(parsed, dict):
        raise DataError(f"{where}: expected a JSON object, found {text[:40]!r}")
    return parsed
