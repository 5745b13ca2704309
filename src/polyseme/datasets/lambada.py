"""LAMBADA (Paperno et al. 2016): passages whose last word needs all of them; nothing is fine-tuned."""

from __future__ import annotations

from pathlib import Path

from polyseme.datasets.base import Row
from polyseme.errors import UserError
from polyseme.io.files import PACKED, parse_json
from polyseme.tasks.examples import LINES, read_lines


def read_last_words(path: Path) -> list[tuple[str, str]]:
    """Passages without their last word, and that word: a passage a line, or JSON lines."""
    suffix = (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix
    found = []
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        if suffix in LINES:
            row = Row(where, parse_json(line, where), True)
            if isinstance(row.values, dict) and "continuation" in row.values:
                found.append((row.get("context"), row.get("continuation").strip()))
                continue
            line = row.get("text")
        context, _, word = line.rstrip().rpartition(" ")
        if not context.strip() or not word:
            raise UserError(f"{where}: not a passage of several words: {line[:40]!r}")
        found.append((context, word))
    return found
