"""What the readers of examples share: lines, cells and keys of files, and rows that cannot be read.

A row that cannot be read is an error with file and line; `skip_bad` counts and skips such rows.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, read_decompressed
from polyseme.io.json import parse_json_object

TABLE_SUFFIXES, JSON_LINES_SUFFIXES = (".tsv", ".txt", ".csv"), (".jsonl", ".ndjson")
CONLL_SUFFIXES = (".conll", ".iob", ".bio")
RowReader = Callable[[], Any]  # parses one row, sentence or document
Build = Callable[[str, dict[str, Any]], Any]  # a location and the values by column to an example


@dataclass(frozen=True)
class Columns:
    """The columns or keys of a file: names, or without a header numbers from 1."""

    text: str = "text"
    pair: str = "pair"
    label: str = "label"
    has_header: bool = True
    encoding: str = "utf-8"


@dataclass(frozen=True)
class RowFormat:
    """The columns that rows have (role to name), those that may be missing, and how a row becomes an example."""

    columns: Mapping[str, str]
    optional: tuple[str, ...]
    build: Build


def read_rows(path: Path, rows: Iterable[RowReader], skip_bad: bool = False) -> list[Any]:
    """Read every row; the first bad one is an error, or bad ones are counted and skipped."""
    examples, errors = [], []
    for read in rows:
        try:
            examples.append(read())
        except DataError as error:
            if not skip_bad:
                raise
            errors.append(error)
    if errors:
        total = len(errors) + len(examples)
        print(f"{path}: skipped {len(errors)} bad of {total} rows, the first: {errors[0]}", file=sys.stderr)
    if not examples:
        raise DataError(f"{path} holds no examples" + (f" but {len(errors)} bad rows" if errors else ""))
    return examples


def lazy_rows(to_examples: Callable[[Any], Iterable[Any]], row: Any) -> Iterator[RowReader]:
    """Yield the examples of a row; an error in it is raised when it is read, so that it can be skipped."""
    try:
        examples = list(to_examples(row))
    except DataError as error:
        yield partial(_raise_error, error)
        return
    for example in examples:
        yield partial(_return_example, example)


def _raise_error(error: DataError) -> Any:
    raise error


def _return_example(example: Any) -> Any:
    return example


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file without their ends; an empty file is an error."""
    content = b"".join(read_decompressed(path))
    try:
        text = content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise ConfigError(f"there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not {encoding} text (byte {error.start} of the file)") from None
    if not text.strip():
        raise DataError(f"{path} is empty")
    return [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]


def data_suffix(path: Path) -> str:
    """Return the suffix of a file, without that of its compression."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path).suffix


def iter_table_or_json(path: Path, columns: Columns, task_type: str, row_format: RowFormat) -> Iterator[RowReader]:
    """Yield the rows of a table (tabs or commas) or of JSON lines, by the file's suffix."""
    suffix = data_suffix(path)
    if suffix in JSON_LINES_SUFFIXES:
        lines = read_lines(path, columns.encoding)
        return iter_json_lines(path, lines, lambda record, location: from_record(record, location, row_format))
    if suffix not in TABLE_SUFFIXES:
        raise wrong_suffix(path, task_type, TABLE_SUFFIXES + JSON_LINES_SUFFIXES)
    return iter_table(path, read_lines(path, columns.encoding), columns.has_header, row_format)


def wrong_suffix(path: Path, task_type: str, suffixes: Iterable[str]) -> DataError:
    known = ", ".join(suffixes)
    packed = " ".join(COMPRESSED_SUFFIXES)
    return DataError(f"{path}: {task_type} reads {known} (or these with {packed}), not {data_suffix(path)!r}")


def iter_table(path: Path, lines: list[str], has_header: bool, row_format: RowFormat) -> Iterator[RowReader]:
    """Yield the rows of tab-separated columns, where a quote is a character like any other, or of quoted CSV."""
    is_csv = data_suffix(path) == ".csv" and "\t" not in lines[0]
    rows = read_csv(path, lines) if is_csv else ((n, line.split("\t")) for n, line in enumerate(lines, 1))
    first_line, first = next(rows)
    indices: dict[str, int] = {}
    for role, name in row_format.columns.items():
        if has_header and name in first:
            indices[role] = first.index(name)
        elif not has_header and name.isdecimal() and 1 <= int(name) <= len(first):
            indices[role] = int(name) - 1
        elif role in row_format.optional:
            continue
        elif has_header:
            raise DataError(f"{path}:{first_line}: there is no column {name!r}; {suggest(name, first)}")
        else:
            raise DataError(f"{path}: without a header, {role} is a column number from 1 to {len(first)}, not {name!r}")
    if not has_header:
        yield partial(_from_cells, f"{path}:{first_line}", first, indices, len(first), row_format.build)
    for line, cells in rows:
        yield partial(_from_cells, f"{path}:{line}", cells, indices, len(first), row_format.build)


def _from_cells(location: str, cells: list[str], indices: dict[str, int], width: int, build: Build) -> Any:
    if len(cells) != width:
        raise DataError(f"{location}: {len(cells)} columns, but the first line has {width}")
    return build(location, {role: cells[index] for role, index in indices.items()})


def read_csv(path: Path, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of quoted CSV."""
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not valid CSV: {error}") from None


def iter_json_lines(path: Path, lines: list[str], build: Callable[[dict[str, Any], str], Any]) -> Iterator[RowReader]:
    """Yield the JSON objects of a file, one per line; `build` turns one and its location into an example."""

    def parse(location: str, content: str) -> Any:
        return build(parse_json_object(content, location), location)

    for line, content in enumerate(lines, 1):
        if content.strip():
            yield partial(parse, f"{path}:{line}", content)


def from_record(record: dict[str, Any], location: str, row_format: RowFormat) -> Any:
    """Convert a JSON object to an example."""
    values = {}
    for role, key in row_format.columns.items():
        if key in record:
            values[role] = record[key]
        elif role not in row_format.optional:
            raise DataError(f"{location}: there is no key {key!r}; {suggest(key, record)}")
    return row_format.build(location, values)


def parse_float(label: Any, location: str) -> float:
    """Parse a label that has to be a finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{location}: the label {str(label)[:40]!r} is not a number")
    return number


def parse_text(value: Any, location: str, name: str) -> str:
    """Check that a value is a text with something in it."""
    if not isinstance(value, str):
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a text")
    if not value.strip():
        raise DataError(f"{location}: {name} is an empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{location}: {name} holds half a surrogate pair, which is no character") from None
    return value


def parse_texts(value: Any, location: str, name: str) -> tuple[str, ...]:
    """Check that a value is a list of texts."""
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a list of texts")
    return tuple(parse_text(text, location, f"{name}[{i}]") for i, text in enumerate(value))


def parse_label(value: Any, location: str, name: str, needs_labels: bool) -> str | None:
    """Return a label as it is written: JSON numbers, true and false keep their form."""
    if value is not None and not isinstance(value, str):
        if not isinstance(value, int | float):
            raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a label")
        value = json.dumps(value)
    if needs_labels and not value:
        raise DataError(f"{location}: the label ({name}) is missing")
    return value or None


def flatten_cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return re.sub(r"[\t\r\n]+", " ", text)
