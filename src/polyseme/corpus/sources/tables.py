"""Documents from a column of a table: CSV, TSV, Parquet."""

from __future__ import annotations

import os
import re
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from polyseme.corpus.sources.lines import MAX_ROW_BYTES, Document, ReadResult, bad_input, read_lines
from polyseme.errors import DataError, PolysemeError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, CorruptFileError, read_decompressed, require_pyarrow

NumberedLine = tuple[int, str]
_BATCH_ROWS = 512  # of a Parquet file that are in memory at once
_CLOSING_QUOTE = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # the rest of a quoted field, with its closing quote


def parse_columns(key: str, names: Collection[str]) -> list[str]:
    """The columns a key stands for: `a+b` is two, unless one has that very name."""
    return [key] if key in names else key.split("+")


def missing_column(location: str, noun: str, key: str, names: Collection[str]) -> DataError:
    shown = [name[:40] for name in islice(names, 20)]
    listing = " among " + ", ".join(shown) + (", …" if len(names) > len(shown) else "") if shown else ""
    return bad_input(f"{location}: no {noun} {key!r}{listing}; {suggest(key, shown)}")


def read_tsv(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    """Columns between tabs, where a quote is a character like any other."""
    rows = (
        numbered_line if isinstance(numbered_line, DataError) else (numbered_line[0], numbered_line[1].split("\t"))
        for numbered_line in read_lines(path, name)
    )
    return _rows_to_documents(rows, name, key)


def read_csv(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    """Fields between commas (RFC 4180): quoted, they may hold commas, line breaks and doubled quotes."""
    return _rows_to_documents(_CsvRecords(read_lines(path, name), name), name, key)


def _rows_to_documents(rows: Iterable[tuple[int, list[str]] | DataError], name: str, key: str) -> Iterator[ReadResult]:
    width, columns = 0, list[int]()
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        number, fields = row
        location = f"{name} line {number}"
        if not columns and fields != [""]:
            width = len(fields)
            for column in parse_columns(key, fields):
                if column not in fields:
                    yield missing_column(location, "column", column, fields)
                    return
                columns.append(fields.index(column))
        elif len(fields) == width:
            yield Document("\n".join([fields[index] for index in columns]), name, f"line {number}")
        elif fields != [""]:
            yield bad_input(f"{location}: {len(fields)} fields, but the first line has {width}")


class _CsvRecords:
    """The records of a CSV file, each with the number of its first line.

    After quotes that cannot be right, the next record begins on the next line. `reread_budget` bounds how many lines
    are read again for that, so that no file takes more than linear time.
    """

    def __init__(self, lines: Iterator[NumberedLine | DataError], name: str):
        self.lines, self.name = lines, name
        self.pushed_back: deque[NumberedLine | DataError] = deque()
        self.continuation_lines: list[
            NumberedLine | DataError
        ] = []  # the lines after the first of the record that is read
        self.num_characters = self.reread_budget = 0

    def __iter__(self) -> Iterator[tuple[int, list[str]] | DataError]:
        while (numbered_line := self._next()) is not None:
            if isinstance(numbered_line, DataError):
                yield numbered_line
                continue
            number, line = numbered_line
            if '"' not in line:
                yield number, line.split(",")
                continue
            self.continuation_lines, self.num_characters = [], len(line)
            fields = self._parse_fields(line)
            if isinstance(fields, list):
                yield number, fields
                continue
            num_lost = 0
            if len(self.continuation_lines) > self.reread_budget:
                num_lost = len(self.continuation_lines)
                self.continuation_lines = [each for each in self.continuation_lines if isinstance(each, DataError)]
            self.reread_budget -= len(self.continuation_lines)
            self.pushed_back.extendleft(reversed(self.continuation_lines))
            yield bad_input(
                f"{self.name} line {number}: {fields}" + (f"; {num_lost} lines after it are lost" if num_lost else "")
            )

    def _next(self) -> NumberedLine | DataError | None:
        if self.pushed_back:
            return self.pushed_back.popleft()
        self.reread_budget += 4
        return next(self.lines, None)

    def _next_continuation(self) -> str | None:
        """The next line of a quoted field, if there is one."""
        numbered_line = self._next()
        if numbered_line is None:
            return None
        self.continuation_lines.append(numbered_line)
        if isinstance(numbered_line, DataError):
            return None
        self.num_characters += len(numbered_line[1]) + 1
        return numbered_line[1] if self.num_characters <= MAX_ROW_BYTES else None

    def _parse_fields(self, line: str) -> list[str] | str:
        """The fields of the record that begins with a line, or what is wrong with it."""
        fields, position = list[str](), 0
        while True:
            if line.startswith('"', position):
                position += 1
                pieces = []
                while not (close := _CLOSING_QUOTE.match(line, position)):
                    pieces.append(line[position:])
                    next_line = self._next_continuation()
                    if next_line is None:
                        return "a quote that is not closed"
                    line, position = next_line, 0
                pieces.append(line[position : close.end() - 1])
                fields.append("\n".join(pieces).replace('""', '"'))
                position = close.end()
                if position < len(line) and line[position] != ",":
                    return f"{line[position : position + 20]!r} after a closing quote"
            else:
                end = line.find(",", position)
                fields.append(line[position : end if end >= 0 else len(line)])
                position = end if end >= 0 else len(line)
            if position == len(line):
                return fields
            position += 1


def read_parquet(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    row = 0
    try:
        for columns in _read_batches(path, name, key):
            for values in zip(*columns):
                row += 1
                yield _join_columns(values, name, row)
    except CorruptFileError:
        yield bad_input(f"{name} is cut off or damaged: it cannot be read beyond row {row}")
    except DataError as error:
        yield error


def _join_columns(values: tuple[bytes | None, ...], name: str, row: int) -> ReadResult:
    texts = []
    for value in values:
        if value is None:
            return bad_input(f"{name} row {row}: there is no text, but null")
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            return bad_input(f"{name} row {row}: byte {error.start} of its text is not UTF-8")
    return Document("\n".join(texts).replace("\r\n", "\n"), name, f"row {row}")


def _read_batches(path: Path, name: str, key: str) -> Iterator[list[list[bytes | None]]]:
    """The wanted columns of some rows at a time. Whatever Arrow says of a damaged file is `CorruptFileError`."""
    pa = require_pyarrow("Parquet files")
    try:
        from pyarrow import parquet

        with ExitStack() as stack:
            if path.suffix.lower() in COMPRESSED_SUFFIXES:  # Parquet is read from its end
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="polyseme-"))
                compressed_path, path = path, Path(folder, "unpacked")
                with open(path, "wb") as copy:
                    for block in read_decompressed(compressed_path):
                        copy.write(block)
            if not path.stat().st_size:
                raise bad_input(f"{name} is empty")
            input_file = stack.enter_context(pa.OSFile(os.fsencode(path)))
            file = stack.enter_context(parquet.ParquetFile(input_file, pre_buffer=False, buffer_size=1 << 20))
            schema = file.schema_arrow
            columns = parse_columns(key, schema.names)
            for column in columns:
                if column not in schema.names:
                    raise missing_column(name, "column", column, schema.names)
                column_type = schema.field(column).type
                if column_type not in _text_types(pa) and getattr(column_type, "value_type", None) not in _text_types(
                    pa
                ):
                    raise bad_input(f"{name}: column {column!r} holds {column_type}, not text")
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                yield [_to_bytes(pa, batch.column(column)) for column in columns]
    except PolysemeError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise DataError(f"cannot read {name}: {error.strerror or error}") from None
        raise CorruptFileError(str(error)) from None
    except Exception as error:  # Arrow's own, and those of Python for sizes and names that make no sense
        raise CorruptFileError(str(error)) from None


def _text_types(pa: Any) -> list[Any]:
    return [pa.string(), pa.large_string(), pa.string_view()]


def _to_bytes(pa: Any, array: Any) -> list[bytes | None]:
    """The bytes of each text, which Arrow does not check."""
    if pa.types.is_dictionary(array.type):
        array.indices.validate(full=True)
        for index in array.indices.unique().to_pylist():
            if index is not None and not 0 <= index < len(array.dictionary):
                raise CorruptFileError("an index outside of its dictionary")
        array = array.dictionary_decode()
    values: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return values
