"""Readers of documents from the columns of CSV, TSV and Parquet files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.errors import DataError, PolysemeError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, CorruptFileError, read_decompressed, require_pyarrow
from polyseme.io.lines import bad_input, read_lines
from polyseme.io.tables import NumberedRow, read_csv_rows, read_tsv_rows

_BATCH_ROWS = 512  # rows of a Parquet file in memory at once


def parse_columns(key: str, names: Collection[str]) -> list[str]:
    """Return the columns a key names: `a+b` is two columns, unless `names` has a column of that name."""
    return [key] if key in names else key.split("+")


def missing_column(location: str, noun: str, key: str, names: Collection[str]) -> DataError:
    """Return the error for a column or key (`noun`) that does not exist, with the names that do."""
    shown = [name[:40] for name in islice(names, 20)]
    listing = " among " + ", ".join(shown) + (", …" if len(names) > len(shown) else "") if shown else ""
    return bad_input(f"{location}: no {noun} {key!r}{listing}; {suggest(key, shown)}")


def read_tsv(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    """Read documents from tab-separated columns. The first line is the header; quotes have no special meaning."""
    return _rows_to_documents(read_tsv_rows(read_lines(path, name)), name, key)


def read_csv(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    """Read documents from a CSV file. The first row is the header."""
    return _rows_to_documents(read_csv_rows(read_lines(path, name), name), name, key)


def _rows_to_documents(rows: Iterable[NumberedRow | DataError], name: str, key: str) -> Iterator[ReadResult]:
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


def read_parquet(path: Path, name: str, key: str) -> Iterator[ReadResult]:
    """Read documents from text columns of a Parquet file."""
    row = 0
    try:
        for columns in _read_batches(path, name, key):
            for values in zip(*columns):
                row += 1
                yield _join_columns(values, name, row)
    except CorruptFileError:
        yield bad_input(f"{name} is truncated or damaged: cannot read it beyond row {row}")
    except DataError as error:
        yield error


def _join_columns(values: tuple[bytes | None, ...], name: str, row: int) -> ReadResult:
    texts = []
    for value in values:
        if value is None:
            return bad_input(f"{name} row {row}: the text is null")
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as error:
            return bad_input(f"{name} row {row}: byte {error.start} of the text is not UTF-8")
    return Document("\n".join(texts).replace("\r\n", "\n"), name, f"row {row}")


def _read_batches(path: Path, name: str, key: str) -> Iterator[list[list[bytes | None]]]:
    """Yield the columns of `key` for a batch of rows at a time. Arrow's errors become `CorruptFileError`."""
    pa = require_pyarrow("Parquet files")
    try:
        from pyarrow import parquet

        with ExitStack() as stack:
            if path.suffix.lower() in COMPRESSED_SUFFIXES:  # Parquet needs random access
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
                value_type = getattr(column_type, "value_type", None)  # of a dictionary
                if column_type not in _text_types(pa) and value_type not in _text_types(pa):
                    raise bad_input(f"{name}: column {column!r} holds {column_type}, not text")
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                yield [_to_bytes(pa, batch.column(column)) for column in columns]
    except PolysemeError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise DataError(f"cannot read {name}: {error.strerror or error}") from None
        raise CorruptFileError(str(error)) from None
    except Exception as error:  # from Arrow, or from Python for impossible sizes and names
        raise CorruptFileError(str(error)) from None


def _text_types(pa: Any) -> list[Any]:
    return [pa.string(), pa.large_string(), pa.string_view()]


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
