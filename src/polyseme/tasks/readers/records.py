"""Rows of CSV, TSV, JSON lines, Parquet and text files, each a dictionary with its location."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, CorruptFileError, data_suffix
from polyseme.io.json import parse_json_object
from polyseme.io.specs import STDIN, spool_stdin
from polyseme.io.tables import NumberedRow, open_parquet_rows, read_csv_rows, read_tsv_rows
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.readers.lines import iter_lines

Record = tuple[str, dict[str, Any]]  # a location, and the values by column
RECORD_FORMATS = {
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **{f".{name}": name for name in ("csv", "tsv", "parquet")},
}


@dataclass(frozen=True)
class Records:
    """The rows of a file, and the names of its columns, or the keys of its first object."""

    names: list[str]
    rows: Iterator[Record | DataError]
    format: str

    @property
    def is_table(self) -> bool:
        """Whether all rows have the same columns."""
        return self.format in ("csv", "tsv", "parquet")

    def resolve(self, path: Path, columns: Columns) -> Columns:
        """Return the columns to read; in lines of text there are none to choose."""
        return columns if self.format == "text" else columns.resolve(path, self.names, self.is_table)


def detect_record_format(path: Path, columns: Columns, suffixes: Iterable[str] = tuple(RECORD_FORMATS)) -> str:
    """Return the format of a file of records: the chosen one, or by its name; empty if that is not in `suffixes`."""
    known = sorted(set(RECORD_FORMATS.values()))
    if columns.format and columns.format not in known:
        raise ConfigError(f"{path}: format is {columns.format!r}; {suggest(columns.format, known)}")
    suffix = data_suffix(path)
    return columns.format or (RECORD_FORMATS[suffix] if suffix in suffixes else "")


def unknown_format(path: Path) -> DataError:
    """Return the error for a file whose name does not show its format."""
    known = f"{' '.join(RECORD_FORMATS)}, plain or with {' '.join(COMPRESSED_SUFFIXES)}"
    formats = ", ".join(sorted(set(RECORD_FORMATS.values())))
    return DataError(f"{path} ends in none of {known}: choose its format with {path}::format=NAME ({formats})")


def parse_input(source: str | Path, columns: Columns) -> tuple[Path, Columns]:
    """Parse `PATH::name=value,…` or `-`; return the file to open, and the columns with the options of the spec."""
    text, columns = columns.with_spec(str(source))
    if text != STDIN:
        return Path(text), columns
    return spool_stdin(), replace(columns, format=columns.format or "text")


def open_records(path: Path, columns: Columns, format: str, keep_blank: bool = False) -> Records:
    """Open a file of records; raise an error for options without effect on its format.

    With `keep_blank`, blank lines at the end of lines of text are rows like any other.
    """
    if format == "text":
        columns.reject(path, "lines of text", "text", "pair", "label", "id", "header")
        lines = enumerate(iter_lines(path, columns.encoding, keep_blank), 1)
        return Records(["text"], ((f"{path}:{number}", {"text": line}) for number, line in lines), format)
    if format == "jsonl":
        columns.reject(path, "JSON lines", "header")
        return _open_json_lines(path, columns.encoding)
    if format == "parquet":
        columns.reject(path, "Parquet", "header", "encoding")
        try:
            names, rows = open_parquet_rows(path, str(path))
        except CorruptFileError as error:
            is_named = str(error).startswith(str(path))  # of a compressed file
            raise error if is_named else DataError(f"{path} is not a valid Parquet file: {error}") from None
        return Records(names, _number_rows(path, rows), format)
    return _open_table(path, columns, format)


def _open_table(path: Path, columns: Columns, format: str) -> Records:
    """Open tab-separated columns, where a quote is a character like any other, or quoted CSV."""
    lines = iter_lines(path, columns.encoding)
    top = next(lines)
    numbered_lines = enumerate(chain([top], lines), 1)
    is_csv = format == "csv" and "\t" not in top
    rows = read_csv_rows(numbered_lines, f"{path}:") if is_csv else read_tsv_rows(numbered_lines)
    first = next(rows)
    if isinstance(first, DataError):
        raise first
    width, prefix = len(first[1]), f"{path}:"
    names = _unique(first[1]) if columns.has_header else [str(number) for number in range(1, width + 1)]

    def to_record(row: NumberedRow | DataError) -> Record | DataError:
        if isinstance(row, DataError):
            return row
        number, cells = row
        if len(cells) != width:
            return DataError(f"{prefix}{number}: {len(cells)} columns, but the first line has {width}")
        return f"{prefix}{number}", dict(zip(names, cells))

    return Records(names, map(to_record, rows if columns.has_header else chain([first], rows)), format)


def _unique(names: list[str]) -> list[str]:
    """Return the names of columns; the second `a` becomes `a_2`."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return unique


def _open_json_lines(path: Path, encoding: str) -> Records:
    prefix = f"{path}:"

    def parse_all() -> Iterator[Record | DataError]:
        for number, line in enumerate(iter_lines(path, encoding), 1):
            if line.strip():
                location = f"{prefix}{number}"
                try:
                    yield location, parse_json_object(line, location)
                except DataError as error:
                    yield error

    records = parse_all()
    first = next(records, None)
    names = list(first[1]) if isinstance(first, tuple) else []
    return Records(names, chain([] if first is None else [first], records), "jsonl")


def _number_rows(path: Path, rows: Iterator[dict[str, Any]]) -> Iterator[Record | DataError]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield f"{path}:{number}", row
    except CorruptFileError:
        yield DataError(f"{path} is truncated or damaged: cannot read it beyond row {number}")
