"""Readers of documents, one per file format. They yield an error for bad input instead of raising it."""

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from polyseme.corpus.sources import gettext_catalogs, midi, python_docs
from polyseme.corpus.sources.documents import Document, DocumentBuilder, ReadResult, split_long_document
from polyseme.errors import DataError
from polyseme.io.compression import CorruptFileError, read_decompressed, read_first_byte, strip_compression
from polyseme.io.json import parse_json
from polyseme.io.limits import MAX_ROW_BYTES
from polyseme.io.lines import bad_input, make_printable, read_line_chunks, read_lines, replace_surrogates
from polyseme.io.tables import (
    choose_columns,
    missing_column,
    parse_columns,
    read_csv_rows,
    read_parquet_rows,
    read_tsv_rows,
)

PYTHON_DOCS = "python-docs"
SPLITS = ("file", "blank", "line")
COLUMN_FORMATS = ("jsonl", "csv", "tsv", "parquet", "wiki")  # a row has several values, one of which is the text
SUFFIX_FORMATS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **{f".{name}": name for name in ("csv", "tsv", "parquet", "wet", "mo")},
    **dict.fromkeys((".mid", ".midi"), "midi"),
}
_WIKI = re.compile(r"wiki_\d+")  # file names of WikiExtractor
_MAX_HEADER_LINES = 1000  # of a WARC record


@dataclass(frozen=True)
class SourceFile:
    """One file of a source and how to read it, or the whole source `python-docs`."""

    source_index: int
    path: Path | str  # as given by the user
    lang: str = "en"
    format: str = "text"
    text: str = "text"  # column or key
    split: str = "file"
    spooled_path: Path | None = None  # the copy of standard input, opened instead of `path`
    allow_large: bool = False  # read compressed files that expand a thousandfold, too

    @property
    def name(self) -> str:
        """Name of the file in messages and documents."""
        return "standard input" if self.path == "-" else make_printable(str(self.path))

    @property
    def local_path(self) -> Path:
        """Path of the file to open."""
        return self.spooled_path or Path(self.path)

    def read(self) -> Iterator[ReadResult]:
        """Yield the documents, and an error for each part that cannot be read. Every call yields the same."""
        for document in _READERS[self.format](self):
            yield from split_long_document(document)


def detect_format(path: Path) -> str:
    """Return the format of a file by its name, ignoring a compression suffix; empty if unknown."""
    path = strip_compression(path)
    return "wiki" if _WIKI.fullmatch(path.name) else SUFFIX_FORMATS.get(path.suffix.lower(), "")


def _read_text(file: SourceFile) -> Iterator[ReadResult]:
    builder = DocumentBuilder(file.name)
    for chunk in read_line_chunks(file.local_path, file.name, True, file.allow_large):
        if isinstance(chunk, DataError):
            yield from builder.finish()
            yield chunk
        elif file.split == "file":
            yield from builder.add(*chunk)
        else:
            for number, line in enumerate(io.StringIO(chunk[1]), chunk[0]):
                if file.split == "blank":
                    yield from builder.finish() if line.isspace() else builder.add(number, line)
                elif line.endswith("\n") and not builder.num_characters:
                    yield Document(line[:-1], file.name, f"line {number}")
                else:  # part of a long line, or the last line
                    yield from builder.add(number, line)
                    if line.endswith("\n"):
                        yield from builder.finish()
    yield from builder.finish()


def _read_json_lines(file: SourceFile) -> Iterator[ReadResult]:
    is_first = True
    for line in read_lines(file.local_path, file.name, file.allow_large):
        if isinstance(line, tuple) and (not line[1] or line[1].isspace()):
            continue
        row = line if isinstance(line, DataError) else _parse_json_row(file, *line)
        if is_first and isinstance(row, DataError) and _is_json_array(file, line):
            yield bad_input(f"{file.name} is one JSON array: expected one object per line")
            return
        yield row
        is_first = False


def _is_json_array(file: SourceFile, first_line: tuple[int, str] | DataError) -> bool:
    """Return whether a file is one array. A first line that is a whole list is a bad row, except in .json files."""
    if read_first_byte(file.local_path) != b"[":
        return False
    has_json_suffix = ".json" in (suffix.lower() for suffix in Path(file.path).suffixes[-2:])
    return has_json_suffix or not (isinstance(first_line, tuple) and first_line[1].rstrip().endswith("]"))


def _parse_json_row(file: SourceFile, number: int, line: str) -> ReadResult:
    location = f"{file.name} line {number}"
    try:
        row = parse_json(line, location)
    except DataError as error:
        return bad_input(f"{error}; each line must be one object")
    if not isinstance(row, dict):
        return bad_input(f"{location}: expected an object with {file.text!r}, not {type(row).__name__}")
    texts = []
    for key in parse_columns(file.text, row):
        if key not in row:
            return missing_column(location, "key", key, row)
        value = row[key]
        if not isinstance(value, str):
            shown = type(value).__name__ if isinstance(value, dict | list) else json.dumps(value)[:40]
            return bad_input(f"{location}: {key!r} is {shown}, not a string")
        texts.append(value)
    text = "\n".join(texts).replace("\r\n", "\n")
    if "\\u" in line:  # an escape may be half of a surrogate pair
        text = replace_surrogates(text)
    return Document(text, file.name, f"line {number}")


def _read_table(file: SourceFile) -> Iterator[ReadResult]:
    """Read documents from columns of a CSV or TSV file. The first row is the header."""
    lines = read_lines(file.local_path, file.name, file.allow_large)
    rows = read_csv_rows(lines, f"{file.name} line ") if file.format == "csv" else read_tsv_rows(lines)
    width, columns = 0, list[int]()
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        number, fields = row
        if not columns and fields != [""]:
            width = len(fields)
            for column in choose_columns(file.text, fields):
                if column not in fields:
                    yield missing_column(f"{file.name} line {number}", "column", column, fields)
                    return
                columns.append(fields.index(column))
        elif len(fields) == width:
            yield Document("\n".join([fields[index] for index in columns]), file.name, f"line {number}")
        elif fields != [""]:
            yield bad_input(f"{file.name} line {number}: {len(fields)} fields, but the first line has {width}")


def _read_parquet(file: SourceFile) -> Iterator[ReadResult]:
    """Read documents from text columns of a Parquet file."""
    row = 0
    try:
        rows = read_parquet_rows(file.local_path, file.name, file.text, file.allow_large)
        for row, texts in enumerate(rows, 1):
            if isinstance(texts, str):
                yield bad_input(f"{file.name} row {row}: {texts}")
            else:
                yield Document("\n".join(texts).replace("\r\n", "\n"), file.name, f"row {row}")
    except CorruptFileError:
        yield bad_input(f"{file.name} is truncated or damaged: cannot read it beyond row {row}")
    except DataError as error:
        yield error


def _read_wiki(file: SourceFile) -> Iterator[ReadResult]:
    """Read WikiExtractor output: articles between `<doc …>` and `</doc>`, or JSON lines."""
    if read_first_byte(file.local_path) == b"{":
        yield from _read_json_lines(file)
        return
    builder, open_line, is_broken = DocumentBuilder(file.name), 0, False
    for numbered_line in read_lines(file.local_path, file.name, file.allow_large):
        if isinstance(numbered_line, DataError):
            builder.clear()
            is_broken = True
            yield numbered_line
            continue
        number, line = numbered_line
        if line.startswith("<doc ") and line.rstrip().endswith(">"):
            if open_line and not is_broken:
                yield bad_input(f"{file.name} line {open_line}: <doc> is not closed before line {number}")
            builder.clear()
            open_line, is_broken = number, False
        elif open_line and line.rstrip() == "</doc>":
            yield from builder.finish()
            open_line = 0
        elif open_line:
            if not is_broken:
                yield from builder.add(number, line + "\n")
        elif line and not line.isspace():
            yield bad_input(f"{file.name} line {number}: text outside <doc …> and </doc>")
    if open_line and not is_broken:
        yield bad_input(f"{file.name} line {open_line}: <doc> is not closed")


class _DecompressedStream(io.RawIOBase):
    """Decompressed content of a file as a byte stream."""

    def __init__(self, path: Path, allow_large: bool):
        self.blocks, self.block = read_decompressed(path, allow_large), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self.block:
            self.block = memoryview(next(self.blocks, b""))
        size = min(len(buffer), len(self.block))
        buffer[:size], self.block = self.block[:size], self.block[size:]
        return size


def _read_wet(file: SourceFile) -> Iterator[ReadResult]:
    """Read Common Crawl's extracted text: the records of type `conversion` in a WARC file.

    Reports each bad record and goes on at the next `WARC/` line. warcio would stop or hide the error (decision 032).
    """
    stream = io.BufferedReader(_DecompressedStream(file.local_path, file.allow_large), 1 << 16)
    num_records, is_out_of_sync = 0, False
    pending: ReadResult | None = None  # the last record, held back until its end is verified
    error: DataError | None = None
    try:
        while line := stream.readline(1 << 16):
            if line.startswith(b"WARC/"):
                if pending is not None:
                    yield pending
                pending = None
                pending = _read_warc_record(stream, file, num_records + 1)
                num_records, is_out_of_sync = num_records + 1, isinstance(pending, DataError)
            elif not is_out_of_sync and line.strip():
                problem = "longer than its Content-Length" if num_records else "does not begin with WARC/"
                is_out_of_sync, pending = True, bad_input(f"{file.name} record {num_records or 1}: {problem}")
    except CorruptFileError:
        problem = f"cannot decompress it beyond record {num_records}"
        error = bad_input(f"{file.name} is truncated or damaged: {problem}")
    except DataError as read_error:
        error = read_error
    if pending is None and error is None and not num_records:
        error = bad_input(f"{file.name} is empty")
    yield from (document for document in (pending, error) if document is not None)


def _read_warc_record(stream: BinaryIO, file: SourceFile, number: int) -> ReadResult | None:
    """Read a record after its first line. Returns None if the record is not of type `conversion`."""
    location = f"{file.name} record {number}"
    headers: dict[bytes, bytes] = {}
    for _ in range(_MAX_HEADER_LINES):
        name, _, value = stream.readline(1 << 16).strip().partition(b":")
        if not name:
            break
        headers[name.strip().lower()] = value.strip()
    length = headers.get(b"content-length", b"")
    if not re.fullmatch(rb"[0-9]{1,15}", length):
        return bad_input(f"{location}: Content-Length is {length.decode('latin-1')[:40]!r}, not a number")
    size = num_remaining = int(length)
    blocks = []
    is_text = headers.get(b"warc-type", b"").lower() == b"conversion"
    while num_remaining and (block := stream.read(min(num_remaining, 1 << 20))):
        num_remaining -= len(block)
        if is_text and size <= MAX_ROW_BYTES:
            blocks.append(block)
    if num_remaining:
        return bad_input(f"{location}: truncated, {num_remaining} of {size} bytes are missing")
    if not is_text:
        return None
    if size > MAX_ROW_BYTES:
        return bad_input(f"{location}: longer than {MAX_ROW_BYTES >> 20} MB")
    try:
        text = b"".join(blocks).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return bad_input(f"{location}: byte {error.start} is not UTF-8 text")
    return Document(text.replace("\r\n", "\n").rstrip("\n"), file.name, f"record {number}")


_READERS: dict[str, Callable[[SourceFile], Iterator[ReadResult]]] = {
    "text": _read_text,
    "jsonl": _read_json_lines,
    "csv": _read_table,
    "tsv": _read_table,
    "parquet": _read_parquet,
    "wiki": _read_wiki,
    "wet": _read_wet,
    "mo": lambda file: gettext_catalogs.read_translations(file.local_path, file.name),
    "midi": lambda file: midi.read_midi(file.local_path, file.name),
    PYTHON_DOCS: lambda _: (Document(text, PYTHON_DOCS, module) for module, text in python_docs.read_documents()),
}
FORMATS = tuple(name for name in _READERS if name != PYTHON_DOCS)
