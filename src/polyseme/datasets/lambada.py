"""LAMBADA (Paperno et al. 2016): predict the last word of a passage, which depends on the whole passage."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.errors import DataError
from polyseme.io.lines import raise_errors
from polyseme.tasks.readers.columns import Columns, missing_role
from polyseme.tasks.readers.records import detect_record_format, open_records, parse_input
from polyseme.tasks.readers.rows import parse_text


class LastWord(NamedTuple):
    """A passage without its last word, that word, and all columns of the row."""

    context: str
    word: str
    row: dict[str, Any]


@dataclass(frozen=True)
class LambadaFile:
    """Passages in lines of text, or rows of JSON lines, CSV, TSV or Parquet.

    A row has `context` and `continuation`, or `text`, whose last word is predicted. `PATH::text=NAME` chooses another
    column of the text.
    """

    path: Path
    columns: Columns

    @classmethod
    def open(cls, source: str | Path) -> "LambadaFile":
        """Parse `PATH::name=value,…`, or `-`."""
        path, columns = parse_input(source, Columns())
        columns.reject(path, "last words", "pair", "label", "id")
        return cls(path, columns)

    def __iter__(self) -> Iterator[LastWord]:
        format = detect_record_format(self.path, self.columns) or "text"
        records = open_records(self.path, self.columns, format)
        text_column = records.resolve(self.path, self.columns).text or "text"
        for location, row in raise_errors(records.rows):
            if not self.columns.text and "continuation" in row:
                yield LastWord(*_split_row(row, location), row)
                continue
            if text_column not in row:
                raise missing_role(location, "text", text_column, row, "column" if records.is_table else "key")
            text = row[text_column] if format == "text" else parse_text(row[text_column], location, text_column)
            context, _, word = text.rstrip().rpartition(" ")
            if not context.strip() or not word:
                raise DataError(f"{location}: not a passage of several words: {text[:40]!r}")
            yield LastWord(context, word, row)


def _split_row(row: dict[str, Any], location: str) -> tuple[str, str]:
    if "context" not in row:
        raise missing_role(location, "text", "context", row, "key")
    context, word = (parse_text(row[name], location, name) for name in ("context", "continuation"))
    return context, word.strip()
