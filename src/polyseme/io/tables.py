"""Rows of CSV, TSV and Parquet files, with an error for each bad row.

The standard library's `csv` either accepts malformed quotes silently or, with `strict`, stops at the first. Here one
bad quote costs one row.
"""

import os
import re
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from polyseme.errors import DataError, PolysemeError, require_package, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, CorruptFileError, check_expansion, read_decompressed
from polyseme.io.limits import MAX_ROW_BYTES
from polyseme.io.lines import bad_input

NumberedLine = tuple[int, str]
NumberedRow = tuple[int, list[str]]  # number of the row's first line, fields
_BATCH_ROWS = 512  # rows of a Parquet file in memory at once
_CLOSING_QUOTE = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # the rest of a quoted field, with its closing quote


def read_tsv_rows(lines: Iterable[NumberedLine | DataError]) -> Iterator[NumberedRow | DataError]:
    """Split numbered lines at tabs. Quotes have no special meaning. Errors are passed through."""
    for line in lines:
        yield line if isinstance(line, DataError) else (line[0], line[1].split("\t"))


def read_csv_rows(lines: Iterable[NumberedLine | DataError], prefix: str) -> Iterator[NumberedRow | DataError]:
    """Parse numbered lines as CSV (RFC 4180): quoted fields may contain commas, line breaks and doubled quotes.

    Yields an error for a row with invalid quotes, whose message starts with `prefix` and the line number, and goes on
    with the next line. Errors among `lines` are passed through.
    """
    return iter(_CsvParser(iter(lines), prefix))


class _CsvParser:
    """Iterator over the rows of a CSV file, each with the number of its first line.

    After a row with invalid quotes, parsing restarts on the line after its first. `reread_budget` limits how many lines
    are parsed again, so that the time is linear for every file.
    """

    def __init__(self, lines: Iterator[NumberedLine | DataError], prefix: str):
        self.lines, self.prefix = lines, prefix
        self.pushed_back: deque[NumberedLine | DataError] = deque()
        self.continuation_lines: list[NumberedLine | DataError] = []  # lines of the current row after its first
        self.num_characters = self.reread_budget = 0

    def __iter__(self) -> Iterator[NumberedRow | DataError]:
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
            num_skipped = 0
            if len(self.continuation_lines) > self.reread_budget:
                num_skipped = len(self.continuation_lines)
                self.continuation_lines = [line for line in self.continuation_lines if isinstance(line, DataError)]
            self.reread_budget -= len(self.continuation_lines)
            self.pushed_back.extendleft(reversed(self.continuation_lines))
            note = f"; skipped the {num_skipped} lines after it" if num_skipped else ""
            yield bad_input(f"{self.prefix}{number}: {fields}{note}")

    def _next(self) -> NumberedLine | DataError | None:
        if self.pushed_back:
            return self.pushed_back.popleft()
        self.reread_budget += 4
        return next(self.lines, None)

    def _next_continuation(self) -> str | None:
        """Return the next line of a quoted field, or None if there is none."""
        numbered_line = self._next()
        if numbered_line is None:
            return None
        self.continuation_lines.append(numbered_line)
        if isinstance(numbered_line, DataError):
            return None
        self.num_characters += len(numbered_line[1]) + 1
        return numbered_line[1] if self.num_characters <= MAX_ROW_BYTES else None

    def _parse_fields(self, line: str) -> list[str] | str:
        """Return the fields of the row that begins with `line`, or a description of the error."""
        fields, position = list[str](), 0
        while True:
            if line.startswith('"', position):
                position += 1
                pieces = []
                while not (close := _CLOSING_QUOTE.match(line, position)):
                    pieces.append(line[position:])
                    next_line = self._next_continuation()
                    if next_line is None:
                        return "unclosed quote"
                    line, position = next_line, 0
                pieces.append(line[position : close.end() - 1])
                fields.append("\n".join(pieces).replace('""', '"'))
                position = close.end()
                if position < len(line) and line[position] != ",":
                    return f"unexpected {line[position : position + 20]!r} after a closing quote"
            else:
                start, position = position, line.find(",", position)
                position = len(line) if position < 0 else position
                fields.append(line[start:position])
            if position == len(line):
                return fields
            position += 1


def parse_columns(key: str, names: Collection[str]) -> list[str]:
    """Return the columns a key names: `a+b` is two columns, unless `names` has a column of that name."""
    return [key] if key in names else key.split("+")


def choose_columns(key: str, names: Collection[str]) -> list[str]:
    """Return the columns of a table that a key names; the only column is the text if none has the default name."""
    return list(names) if len(names) == 1 and key == "text" else parse_columns(key, names)


def missing_column(location: str, noun: str, key: str, names: Collection[str]) -> DataError:
    """Return the error for a column or key (`noun`) that does not exist, with the names that do."""
    shown = [name[:40] for name in islice(names, 20)]
    listing = " among " + ", ".join(shown) + (", …" if len(names) > len(shown) else "") if shown else ""
    advice = f" (choose with ::text={noun.upper()})" if shown else ""
    return bad_input(f"{location}: no {noun} {key!r}{listing}; {suggest(key, shown)}{advice}")


def read_parquet_rows(path: Path, name: str, key: str, allow_large: bool = False) -> Iterator[list[str] | str]:
    """Yield the texts of each row in the columns of `key`, or an error message; raise `CorruptFileError` if damaged."""
    for columns in _read_batches(path, name, key, allow_large):
        for values in zip(*columns):
            if None in values:
                yield "the text is null"
                continue
            try:
                yield [value.decode() for value in values]
            except UnicodeDecodeError as error:
                yield f"byte {error.start} of the text is not UTF-8"


def open_parquet_rows(path: Path, name: str) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the names of all columns, and an iterator over the rows; `CorruptFileError` if the file is damaged."""
    with _open_parquet(path, name, allow_large=False) as file:
        names = list(file.schema_arrow.names)

    def read() -> Iterator[dict[str, Any]]:
        with _open_parquet(path, name, allow_large=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                yield from batch.to_pylist()

    return names, read()


@contextmanager
def _open_parquet(path: Path, name: str, allow_large: bool) -> Iterator[Any]:
    """Open a Parquet file, plain or compressed. Arrow's errors become `CorruptFileError`."""
    pa = require_package("pyarrow", "reading Parquet files")
    try:
        from pyarrow import parquet

        with ExitStack() as stack:
            if path.suffix.lower() in COMPRESSED_SUFFIXES:  # Parquet needs random access
                copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="polyseme-"))
                for block in read_decompressed(path, allow_large):
                    copy.write(block)
                copy.flush()
                path = Path(copy.name)
            if not path.stat().st_size:
                raise bad_input(f"{name} is empty")
            input_file = stack.enter_context(pa.OSFile(os.fsencode(path)))
            yield stack.enter_context(parquet.ParquetFile(input_file, pre_buffer=False, buffer_size=1 << 20))
    except (PolysemeError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise DataError(f"{name} is missing") from None
    except OSError as error:
        if error.errno is not None:
            raise DataError(f"cannot read {name}: {error.strerror or error}") from None
        raise CorruptFileError(str(error)) from None
    except Exception as error:  # from Arrow, or from Python for impossible sizes and names
        raise CorruptFileError(str(error)) from None


def _read_batches(path: Path, name: str, key: str, allow_large: bool) -> Iterator[list[list[Any]]]:
    """Yield the columns of `key` for a batch of rows at a time."""
    pa = require_package("pyarrow", "reading Parquet files")
    text_types = [pa.string(), pa.large_string(), pa.string_view()]
    with _open_parquet(path, name, allow_large) as file:
        schema = file.schema_arrow
        columns = choose_columns(key, schema.names)
        for column in columns:
            if column not in schema.names:
                raise missing_column(name, "column", column, schema.names)
            column_type = schema.field(column).type
            value_type = getattr(column_type, "value_type", None)  # of a dictionary
            if column_type not in text_types and value_type not in text_types:
                raise bad_input(f"{name}: column {column!r} holds {column_type}, not text")
        num_bytes = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            values = [_to_bytes(pa, batch.column(column)) for column in columns]
            num_bytes += sum(len(value) for column_values in values for value in column_values if value)
            if not allow_large:
                check_expansion(name, path, num_bytes)
            yield values


def _to_bytes(pa: Any, array: Any) -> list[bytes | None]:
    """Return the bytes of each text. Arrow does not check that they are UTF-8."""
    if pa.types.is_dictionary(array.type):
        array.indices.validate(full=True)
        for index in array.indices.unique().to_pylist():
            if index is not None and not 0 <= index < len(array.dictionary):
                raise CorruptFileError("dictionary index out of range")
        array = array.dictionary_decode()
    values: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return values
