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

from polyseme.corpus.sources.lines import LONGEST_ROW, Document, Found, bad, lines
from polyseme.errors import UserError, nearest
from polyseme.io.files import PACKED, Damaged, arrow, unpacked

Line = tuple[int, str]
_ROWS = 512  # of a Parquet file that are in memory at once
_CLOSE = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # the rest of a quoted field, with its closing quote


def wanted(key: str, names: Collection[str]) -> list[str]:
    """The columns a key stands for: `a+b` is two, unless one has that very name."""
    return [key] if key in names else key.split("+")


def missing(where: str, what: str, key: str, names: Collection[str]) -> UserError:
    shown = [name[:40] for name in islice(names, 20)]
    among = " among " + ", ".join(shown) + (", …" if len(names) > len(shown) else "") if shown else ""
    return bad(f"{where}: no {what} {key!r}{among}; {nearest(key, shown)}")


def read_tsv(path: Path, name: str, key: str) -> Iterator[Found]:
    """Columns between tabs, where a quote is a character like any other."""
    rows = (found if isinstance(found, UserError) else (found[0], found[1].split("\t")) for found in lines(path, name))
    return _documents(rows, name, key)


def read_csv(path: Path, name: str, key: str) -> Iterator[Found]:
    """Fields between commas (RFC 4180): quoted, they may hold commas, line breaks and doubled quotes."""
    return _documents(_Records(lines(path, name), name), name, key)


def _documents(rows: Iterable[tuple[int, list[str]] | UserError], name: str, key: str) -> Iterator[Found]:
    width, places = 0, list[int]()
    for found in rows:
        if isinstance(found, UserError):
            yield found
            continue
        number, fields = found
        where = f"{name} line {number}"
        if not places and fields != [""]:
            width = len(fields)
            for column in wanted(key, fields):
                if column not in fields:
                    yield missing(where, "column", column, fields)
                    return
                places.append(fields.index(column))
        elif len(fields) == width:
            yield Document("\n".join([fields[place] for place in places]), name, f"line {number}")
        elif fields != [""]:
            yield bad(f"{where}: {len(fields)} fields, but the first line has {width}")


class _Records:
    """The records of a CSV file, each with the number of its first line.

    After quotes that cannot be right, the next record begins on the next line. `spare` bounds how many lines
    are read again for that, so that no file takes more than linear time.
    """

    def __init__(self, source: Iterator[Line | UserError], name: str):
        self.source, self.name = source, name
        self.again: deque[Line | UserError] = deque()
        self.taken: list[Line | UserError] = []  # the lines after the first of the record that is read
        self.size = self.spare = 0

    def __iter__(self) -> Iterator[tuple[int, list[str]] | UserError]:
        while (found := self._next()) is not None:
            if isinstance(found, UserError):
                yield found
                continue
            number, line = found
            if '"' not in line:
                yield number, line.split(",")
                continue
            self.taken, self.size = [], len(line)
            fields = self._fields(line)
            if isinstance(fields, list):
                yield number, fields
                continue
            lost = 0
            if len(self.taken) > self.spare:
                lost = len(self.taken)
                self.taken = [each for each in self.taken if isinstance(each, UserError)]
            self.spare -= len(self.taken)
            self.again.extendleft(reversed(self.taken))
            yield bad(f"{self.name} line {number}: {fields}" + (f"; {lost} lines after it are lost" if lost else ""))

    def _next(self) -> Line | UserError | None:
        if self.again:
            return self.again.popleft()
        self.spare += 4
        return next(self.source, None)

    def _more(self) -> str | None:
        """The next line of a quoted field, if there is one."""
        found = self._next()
        if found is None:
            return None
        self.taken.append(found)
        if isinstance(found, UserError):
            return None
        self.size += len(found[1]) + 1
        return found[1] if self.size <= LONGEST_ROW else None

    def _fields(self, line: str) -> list[str] | str:
        """The fields of the record that begins with a line, or what is wrong with it."""
        fields, at = list[str](), 0
        while True:
            if line.startswith('"', at):
                at += 1
                pieces = []
                while not (close := _CLOSE.match(line, at)):
                    pieces.append(line[at:])
                    following = self._more()
                    if following is None:
                        return "a quote that is not closed"
                    line, at = following, 0
                pieces.append(line[at : close.end() - 1])
                fields.append("\n".join(pieces).replace('""', '"'))
                at = close.end()
                if at < len(line) and line[at] != ",":
                    return f"{line[at : at + 20]!r} after a closing quote"
            else:
                end = line.find(",", at)
                fields.append(line[at : end if end >= 0 else len(line)])
                at = end if end >= 0 else len(line)
            if at == len(line):
                return fields
            at += 1


def read_parquet(path: Path, name: str, key: str) -> Iterator[Found]:
    row = 0
    try:
        for columns in _batches(path, name, key):
            for values in zip(*columns):
                row += 1
                yield _joined(values, name, row)
    except Damaged:
        yield bad(f"{name} is cut off or damaged: it cannot be read beyond row {row}")
    except UserError as error:
        yield error


def _joined(values: tuple[bytes | None, ...], name: str, row: int) -> Found:
    texts = []
    for value in values:
        if value is None:
            return bad(f"{name} row {row}: there is no text, but null")
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            return bad(f"{name} row {row}: byte {error.start} of its text is not UTF-8")
    return Document("\n".join(texts).replace("\r\n", "\n"), name, f"row {row}")


def _batches(path: Path, name: str, key: str) -> Iterator[list[list[bytes | None]]]:
    """The wanted columns of some rows at a time. Whatever Arrow says of a damaged file is `Damaged`."""
    pa = arrow("Parquet files")
    try:
        from pyarrow import parquet

        with ExitStack() as stack:
            if path.suffix.lower() in PACKED:  # Parquet is read from its end
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="polyseme-"))
                packed, path = path, Path(folder, "unpacked")
                with open(path, "wb") as copy:
                    for block in unpacked(packed):
                        copy.write(block)
            if not path.stat().st_size:
                raise bad(f"{name} is empty")
            plain = stack.enter_context(pa.OSFile(os.fsencode(path)))
            file = stack.enter_context(parquet.ParquetFile(plain, pre_buffer=False, buffer_size=1 << 20))
            schema = file.schema_arrow
            columns = wanted(key, schema.names)
            for column in columns:
                if column not in schema.names:
                    raise missing(name, "column", column, schema.names)
                kind = schema.field(column).type
                if kind not in _texts(pa) and getattr(kind, "value_type", None) not in _texts(pa):
                    raise bad(f"{name}: column {column!r} holds {kind}, not text")
            for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
                yield [_values(pa, batch.column(column)) for column in columns]
    except UserError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise UserError(f"cannot read {name}: {error.strerror or error}") from None
        raise Damaged(str(error)) from None
    except Exception as error:  # Arrow's own, and those of Python for sizes and names that make no sense
        raise Damaged(str(error)) from None


def _texts(pa: Any) -> list[Any]:
    return [pa.string(), pa.large_string(), pa.string_view()]


def _values(pa: Any, array: Any) -> list[bytes | None]:
    """The bytes of each text, which Arrow does not check."""
    if pa.types.is_dictionary(array.type):
        array.indices.validate(full=True)
        for index in array.indices.unique().to_pylist():
            if index is not None and not 0 <= index < len(array.dictionary):
                raise Damaged("an index outside of its dictionary")
        array = array.dictionary_decode()
    values: list[bytes | None] = array.cast(pa.large_binary()).to_pylist()
    return values
