"""Shared parts of the readers of examples: lines, columns and keys of files, and bad rows.

A row that cannot be read is an error with file and line; `skip_bad` counts and skips such rows.
"""

import codecs
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Self

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, data_suffix, read_decompressed
from polyseme.io.json import parse_json_object
from polyseme.io.lines import detect_wide_encoding, wide_encoding_error
from polyseme.io.tables import NumberedRow, read_csv_rows, read_tsv_rows

logger = logging.getLogger(__name__)

TABLE_SUFFIXES, JSON_LINES_SUFFIXES = (".tsv", ".txt", ".csv"), (".jsonl", ".ndjson")
CONLL_SUFFIXES = (".conll", ".iob", ".bio")
WORD_PATTERN = re.compile(r"\w+|[^\w\s]")
RowReader = Callable[[], Any]  # parses one row, sentence or document
_JSON_NOUNS: dict[Any, str] = {str: "a text", int: "a number", list: "a list", dict: "an object"}
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
            yield partial(_get_example, example)
    except DataError as error:
        yield partial(_get_example, error)


def _get_example(example: Any) -> Any:
    if isinstance(example, DataError):
        raise example
    return example


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file without their ends; an empty file is an error."""
    return list(iter_lines(path, encoding))


def iter_lines(path: Path, encoding: str = "utf-8", keep_blank: bool = False) -> Iterator[str]:
    """Yield the lines of a text file without their ends, in bounded memory; an empty file is an error.

    Blank lines at the end are dropped. With `keep_blank` they are lines like any other, and a file may be empty.
    """
    is_empty, pieces = True, list[str]()  # the last line so far, and blank lines that may be at the end
    for block in _decode_blocks(path, encoding):
        pieces.append(block)
        if "\n" in block and not block.isspace():
            text = "".join(pieces)
            end = text.rfind("\n", 0, len(text) - 1 if keep_blank else len(text.rstrip("\r\n")))
            if end >= 0:
                is_empty = False
                yield from _split_lines(text[:end])
            pieces = [text[end + 1 :]]
    text = "".join(pieces)
    if not keep_blank and is_empty and not text.strip():
        raise DataError(f"{path} is empty")
    yield from _split_lines(text.removesuffix("\n") if keep_blank else text.rstrip("\r\n"))


def _split_lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


def _decode_blocks(path: Path, encoding: str) -> Iterator[str]:
    """Yield the decoded content of a file in blocks; an error names the line and byte that are not text."""
    is_utf8 = encoding.lower() in ("utf-8", "utf8")
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig" if is_utf8 else encoding)()
    except LookupError:
        raise ConfigError(f"there is no encoding {encoding!r}") from None
    num_bytes = num_lines = 0
    for block in chain(read_decompressed(path), [None]):
        if is_utf8 and not num_bytes and block and (wide_encoding := detect_wide_encoding(block)):
            raise wide_encoding_error(f"{path}:1", wide_encoding)
        num_bytes += len(block or b"")
        try:
            text = decoder.decode(block or b"", final=block is None)
        except UnicodeDecodeError as error:
            line = num_lines + error.object.count(b"\n", 0, error.start) + 1
            position = num_bytes - len(error.object) + error.start
            raise DataError(f"{path}:{line}: not {encoding} text (byte {position} of the file)") from None
        num_lines += text.count("\n")
        yield text


def split_sentences(lines: Iterable[str], separators: str | tuple[str, ...] = ()) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of numbered lines between blank lines, or lines that start with one of `separators`."""

    def is_separator(numbered_line: tuple[int, str]) -> bool:
        return not numbered_line[1].strip() or numbered_line[1].startswith(separators)

    return (list(group) for is_between, group in groupby(enumerate(lines, 1), is_separator) if not is_between)


@lru_cache(1024)  # many questions of one text
def split_words(text: str) -> tuple[str, ...]:
    """Split a text into runs of letters and digits, and every other character by itself."""
    return tuple(WORD_PATTERN.findall(text))


def iter_table_or_json(path: Path, columns: Columns, task_type: str, row_format: RowFormat) -> Iterator[RowReader]:
    """Yield the rows of a table (tabs or commas) or of JSON lines, by the file's suffix."""
    suffix = data_suffix(path)
    if suffix in JSON_LINES_SUFFIXES:
        lines = iter_lines(path, columns.encoding)
        return iter_json_lines(path, lines, lambda record, location: from_record(record, location, row_format))
    if suffix not in TABLE_SUFFIXES:
        raise wrong_suffix(path, task_type, TABLE_SUFFIXES + JSON_LINES_SUFFIXES)
    return iter_table(path, iter_lines(path, columns.encoding), columns.has_header, row_format)


def wrong_suffix(path: Path, task_type: str, suffixes: Iterable[str]) -> DataError:
    """Return the error for a file whose suffix a task does not read."""
    readable = f"{', '.join(suffixes)} (or these with {' '.join(COMPRESSED_SUFFIXES)})"
    return DataError(f"{path}: {task_type} reads {readable}, not {data_suffix(path)!r}")


def iter_table(path: Path, lines: Iterable[str], has_header: bool, row_format: RowFormat) -> Iterator[RowReader]:
    """Yield the rows of tab-separated columns, where a quote is a character like any other, or of quoted CSV."""
    remaining = iter(lines)
    top = next(remaining)
    is_csv = data_suffix(path) == ".csv" and "\t" not in top
    numbered_lines = enumerate(chain([top], remaining), 1)
    rows = read_csv_rows(numbered_lines, f"{path}:") if is_csv else read_tsv_rows(numbered_lines)
    header = next(rows)
    if isinstance(header, DataError):
        raise header
    first_line, first = header
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

    prefix = f"{path}:"

    def read(row: NumberedRow | DataError) -> Any:
        if isinstance(row, DataError):
            raise row
        location, cells = f"{prefix}{row[0]}", row[1]
        if len(cells) != len(first):
            raise DataError(f"{location}: {len(cells)} columns, but the first line has {len(first)}")
        return row_format.build(location, {role: cells[index] for role, index in indices.items()})

    yield from (partial(read, row) for row in (rows if has_header else chain([header], rows)))


def iter_json_lines(
    path: Path, lines: Iterable[str], build: Callable[[dict[str, Any], str], Any]
) -> Iterator[RowReader]:
    """Yield the JSON objects of a file, one per line; `build` turns one and its location into an example."""

    def read(location: str, line: str) -> Any:
        return build(parse_json_object(line, location), location)

    prefix = f"{path}:"
    return (partial(read, f"{prefix}{number}", line) for number, line in enumerate(lines, 1) if line.strip())


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
