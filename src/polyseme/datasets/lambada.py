"""LAMBADA (Paperno et al. 2016): passages whose last word needs all of them; nothing is fine-tuned."""

from __future__ import annotations

from pathlib import Path

from polyseme.datasets.base import JsonRow
from polyseme.errors import DataError
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.io.json import parse_json
from polyseme.tasks.examples import JSON_LINES_SUFFIXES, read_lines


def read_lambada(path: Path) -> list[tuple[str, str]]:
    """Passages without their last word, and that word: a passage a line, or JSON lines."""
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path).suffix
    passages = []
    for line_number, line in enumerate(read_lines(path), 1):
        location = f"{path}:{line_number}"
        if suffix in JSON_LINES_SUFFIXES:
            row = JsonRow(location, parse_json(line, location), True)
            if isinstance(row.values, dict) and "continuation" in row.values:
                passages.append((row.get("context"), row.get("continuation").strip()))
                continue
            line = row.get("text")
        context, _, word = line.rstrip().rpartition(" ")
        if not context.strip() or not word:
            raise DataError(f"{location}: not a passage of several words: {line[:40]!r}")
        passages.append((context, word))
    return passages
