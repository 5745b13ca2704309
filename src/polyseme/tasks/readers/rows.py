"""Shared parts of the readers of examples: lines, columns and keys of files, and bad rows.

A row that cannot be read is an error with file and line; `skip_bad` counts and skips such rows.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from polyseme.errors import DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, data_suffix
from polyseme.io.json import parse_json
from polyseme.tasks.readers.columns import Columns, missing_role
from polyseme.tasks.readers.lines import iter_lines as iter_lines
from polyseme.tasks.readers.lines import read_lines as read_lines
from polyseme.tasks.readers.records import Record, open_records

logger = logging.getLogger(__name__)

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
NESTED_SUFFIXES = (*JSON_LINES_SUFFIXES, ".csv", ".parquet")  # where rows may hold lists
CONLL_SUFFIXES = (".conll", ".iob", ".bio")
WORD_PATTERN = re.compile(r"\w+|[^\w\s]")
RowReader = Callable[[], Any]  # parses one row, sentence or document
_JSON_NOUNS: dict[Any, str] = {str: "a text", int: "a number", list: "a list", dict: "an object"}
Build = Callable[[str, dict[str, Any]], Any]  # a location and the values by column to an example


@dataclass(frozen=True)
class RowFormat:
    """The columns that rows have (role to name), those that may be missing, and how a row becomes an example."""

    columns: Mapping[str, str]
    optional: tuple[str, ...]
    build: Build


@dataclass(frozen=True)
class JsonRow:
    """A JSON object with its location for error messages."""

    location: str
    values: Any
    needs_labels: bool = True

    def get(self, name: str, expected_type: type | tuple[type, ...] = str) -> Any:
        """Return a value; raise `DataError` if it is missing, blank or of another type."""
        if not isinstance(self.values, dict):
            raise DataError(f"{self.location}: expected a JSON object, found {str(self.values)[:40]!r}")
        if name not in self.values:
            raise DataError(f"{self.location}: there is no key {name!r}; {suggest(name, self.values)}")
        value = self.values[name]
        is_blank = isinstance(value, str) and expected_type is not object and not value.strip()
        if is_blank or not isinstance(value, expected_type):
            noun = _JSON_NOUNS.get(expected_type, "a text or a number")
            raise DataError(f"{self.location}: {name} is {str(value)[:40]!r}, not {noun}")
        return value

    def child(self, name: str) -> Self:
        """Return a nested object."""
        return replace(self, location=f"{self.location}, {name}", values=self.get(name, dict))

    def children(self, name: str) -> list[Self]:
        """Return the objects of a nested list."""
        elements = enumerate(self.get(name, list))
        return [replace(self, location=f"{self.location}, {name}[{i}]", values=value) for i, value in elements]

    def label(self, name: str = "label") -> str | None:
        """Return a label as written (`true` for a JSON true), or None if it is missing and not required."""
        if not self.needs_labels and name not in self.values:
            return None
        value = self.get(name, (str, int))
        return value if isinstance(value, str) else json.dumps(value)

    def id(self, name: str = "idx") -> str:
        """Return the id as a string; empty if there is none."""
        return str(self.values.get(name, ""))


def read_rows(path: Path, rows: Iterable[RowReader], skip_bad: bool = False) -> list[Any]:
    """Read every row; the first bad one is an error, or bad ones are counted and skipped."""
    return list(iter_valid_rows(path, rows, skip_bad))


def iter_valid_rows(path: Path, rows: Iterable[RowReader], skip_bad: bool, log_skipped: bool = True) -> Iterator[Any]:
    """Yield the example of each row as `read_rows` reads it; with `log_skipped`, log the number of bad rows."""
    num_examples, num_bad, first_error = 0, 0, None
    for read in rows:
        try:
            example = read()
        except DataError as error:
            if not skip_bad:
                raise
            num_bad, first_error = num_bad + 1, first_error or error
        else:
            num_examples += 1
            yield example
    if num_bad and log_skipped:
        total = num_bad + num_examples
        logger.warning(f"{path}: skipped {num_bad} bad of {total} rows, the first: {first_error}")
    if not num_examples:
        raise DataError(f"{path} holds no examples" + (f" but {num_bad} bad rows" if num_bad else ""))


def lazy_rows(to_examples: Callable[[Any], Iterable[Any]], row: Any) -> Iterator[RowReader]:
    """Yield readers of the examples of a row; an error in it is raised when it is read, so that it can be skipped."""
    try:
        for example in list(to_examples(row)):
            yield partial(value_or_raise, example)
    except DataError as error:
        yield partial(value_or_raise, error)


def value_or_raise(value: Any) -> Any:
    """Return a value that was read; raise it if it is the error of a bad row."""
    if isinstance(value, DataError):
        raise value
    return value


def split_sentences(lines: Iterable[str], separators: str | tuple[str, ...] = ()) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of numbered lines between blank lines, or lines that start with one of `separators`."""

    def is_separator(numbered_line: tuple[int, str]) -> bool:
        return not numbered_line[1].strip() or numbered_line[1].startswith(separators)

    return (list(group) for is_between, group in groupby(enumerate(lines, 1), is_separator) if not is_between)


@lru_cache(1024)  # many questions of one text
def split_words(text: str) -> tuple[str, ...]:
    """Split a text into runs of letters and digits, and every other character by itself."""
    return tuple(WORD_PATTERN.findall(text))


def iter_row_format(
    path: Path, columns: Columns, format: str, get_row_format: Callable[[Columns], RowFormat]
) -> Iterator[RowReader]:
    """Yield the rows of a file of records; in a table, all required columns must exist."""
    records = open_records(path, columns, format)
    columns = records.resolve(path, columns)
    row_format = get_row_format(columns)
    if format != "jsonl":
        for role, name in row_format.columns.items():
            if name not in records.names and role not in row_format.optional:
                if not columns.has_header:
                    numbers = f"a column number from 1 to {len(records.names)}"
                    raise DataError(f"{path}: without a header, {role} is {numbers}, not {name!r}")
                raise missing_role(f"{path}:1", role, name, records.names)
    present = [(role, name) for role, name in row_format.columns.items() if name in records.names]

    def from_table_row(values: dict[str, Any], location: str) -> Any:  # all rows have the same columns
        return row_format.build(location, {role: values[name] for role, name in present})

    build = from_table_row if records.is_table else partial(from_record, row_format=row_format)
    return iter_records(records.rows, build, columns.keep_rows)


def iter_records(
    records: Iterable[Record | DataError], build: Callable[[dict[str, Any], str], Any], keep_rows: bool = False
) -> Iterator[RowReader]:
    """Yield a function per record; `build` turns a dictionary and its location into an example."""

    def read(record: Record | DataError) -> Any:
        location, values = value_or_raise(record)
        example = build(values, location)
        return replace(example, row=values) if keep_rows else example

    return (partial(read, record) for record in records)


def wrong_suffix(path: Path, task_type: str, suffixes: Iterable[str]) -> DataError:
    """Return the error for a file whose suffix a task does not read."""
    readable = f"{', '.join(suffixes)} (or these with {' '.join(COMPRESSED_SUFFIXES)})"
    advice = f"choose its format with {path}::format=NAME"
    return DataError(f"{path}: {task_type} reads {readable}, not {data_suffix(path)!r}: {advice}")


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
        number = math.nan if isinstance(label, str) and "_" in label else float(label)  # Python reads 1_000 as 1000
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
    if isinstance(value, str) and value.startswith("["):  # a cell of a table
        value = parse_json(value, location)
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a list of texts")
    return tuple(parse_text(text, location, f"{name}[{i}]") for i, text in enumerate(value))


def parse_label(value: Any, location: str, name: str, needs_labels: bool) -> str | None:
    """Return a label as it is written: JSON numbers, true and false keep their form."""
    if value is not None and not isinstance(value, str):
        if not isinstance(value, int | float):
            raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a label")
        value = None if value != value else json.dumps(value)  # NaN is no value
    if value is not None and value.strip():
        return value
    if needs_labels:
        raise DataError(f"{location}: the label ({name}) is missing")
    return None
