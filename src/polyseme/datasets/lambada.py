"""LAMBADA (Paperno et al. 2016): predict the last word of a passage, which depends on the whole passage."""

from collections.abc import Iterator
from pathlib import Path

from polyseme.errors import DataError
from polyseme.io.json import parse_json
from polyseme.tasks.readers.rows import JSON_LINES_SUFFIXES, JsonRow, data_suffix, iter_lines


def read_lambada(path: Path) -> list[tuple[str, str]]:
    """Read (passage without its last word, last word) pairs from lines of text or JSON lines."""
    return list(iter_lambada(path))


def iter_lambada(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of `read_lambada`."""
    suffix = data_suffix(path)
    for line_number, line in enumerate(iter_lines(path), 1):
        location = f"{path}:{line_number}"
        if suffix in JSON_LINES_SUFFIXES:
            row = JsonRow(location, parse_json(line, location))
            if isinstance(row.values, dict) and "continuation" in row.values:
                yield row.get("context"), row.get("continuation").strip()
                continue
            line = row.get("text")
        context, _, word = line.rstrip().rpartition(" ")
        if not context.strip() or not word:
            raise DataError(f"{location}: not a passage of several words: {line[:40]!r}")
        yield context, word
