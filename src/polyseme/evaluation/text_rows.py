"""Texts of a file in any format, each with the row that it was read from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.errors import DataError
from polyseme.evaluation.streaming import Source
from polyseme.io.json import read_json_object
from polyseme.io.lines import raise_errors
from polyseme.io.model_path import resolve_model
from polyseme.tasks.readers.columns import Columns, missing_role
from polyseme.tasks.readers.records import detect_record_format, open_records, parse_input


class TextRow(NamedTuple):
    """A text, all columns of its row, and where it was read."""

    text: str
    row: dict[str, Any]
    location: str = ""


@dataclass(frozen=True)
class TextFile:
    """The texts of a file, the names of all its columns, and those of the text and, if there is one, the id."""

    source: Source[TextRow]
    names: list[str]
    text_column: str
    id_column: str


def open_texts(
    source: str | Path, model: Path | None = None, columns: Columns = Columns(), allow_blank: bool = False
) -> TextFile:
    """Open the texts of a file, `PATH::name=value,…` or `-`. A file of unknown format holds one text per line.

    The text is in the chosen column, that of the model's fine-tuning, `text`, or the only one. With `allow_blank` a
    text may be empty; otherwise that is an error, because each row gets one result.
    """
    remembered = None if model is None else read_remembered(model)
    path, columns = parse_input(source, replace(columns, remembered=remembered))
    columns.reject(path, "a command that reads one text per row", "pair", "label")
    format = detect_record_format(path, columns) or "text"
    records = open_records(path, columns, format)
    resolved = records.resolve(path, columns)
    text_column = resolved.text or "text"
    for role, name in (("text", text_column), ("id", columns.id)):
        if name and records.is_table and name not in records.names:
            raise missing_role(f"{path}:1", role, name, records.names)
    names = dict.fromkeys(records.names)

    def read(is_first: bool) -> Iterator[TextRow]:
        for location, row in raise_errors(open_records(path, columns, format, allow_blank).rows):
            if is_first:
                names.update(dict.fromkeys(row))
            if text_column not in row:
                raise missing_role(location, "text", text_column, row, "key")
            text = "" if row[text_column] is None and allow_blank else row[text_column]
            if not isinstance(text, str):
                raise DataError(f"{location}: {text_column} is {str(text)[:40]!r}, not a text")
            if not allow_blank and not text.strip():
                raise DataError(f"{location} is empty: every row must contain a text")
            yield TextRow(text, row, location)

    texts = Source(path, read)
    id_column = columns.id or ("id" if "id" in names and format != "text" else "")
    return TextFile(texts, list(names), text_column, id_column)


def read_labeled_texts(source: str | Path) -> tuple[list[str], list[str] | None]:
    """Read the texts of a file as `open_texts` does, and their labels if `source` names a column: `PATH::label=NAME`.

    Empty texts are left out. An empty label is an empty string.
    """
    path, columns = parse_input(source, Columns())
    file = open_texts(path, columns=replace(columns, label=""), allow_blank=True)
    rows = [row for row in file.source if row.text.strip()]
    if not columns.label:
        return [row.text for row in rows], None
    if not any(columns.label in row.row for row in rows):
        raise missing_role(f"{path}:1", "label", columns.label, file.names)
    labels = (row.row.get(columns.label) for row in rows)
    return [row.text for row in rows], ["" if label is None else str(label) for label in labels]


def read_remembered(model: Path) -> Columns | None:
    """Return the columns that a model folder remembers from fine-tuning."""
    path = resolve_model(model) / "polyseme.json"
    metadata = read_json_object(path).get("metadata") if path.is_file() else None
    return Columns.from_metadata(metadata) if isinstance(metadata, dict) else None
