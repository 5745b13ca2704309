"""Readers of documents, one per file format. They yield an error for bad input instead of raising it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from polyseme.corpus.sources import gettext_catalogs, midi, python_docs, tables
from polyseme.corpus.sources.documents import Document, DocumentBuilder, ReadResult, split_long_document
from polyseme.errors import DataError
from polyseme.io.compression import COMPRESSED_SUFFIXES, CorruptFileError, read_decompressed
from polyseme.io.lines import (
    MAX_ROW_BYTES,
    bad_input,
    make_printable,
    read_first_byte,
    read_line_chunks,
    read_lines,
)
from polyseme.text.pipelines import replace_surrogates

PYTHON_DOCS = "python-docs"
SPLITS = ("file", "blank", "line")
SUFFIX_FORMATS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".wet": "wet",
    ".mo": "mo",
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
    key: str = "text"
    split: str = "file"
    spooled_path: Path | None = None  # the copy of standard input, opened instead of `path`

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
    inner = Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    return "wiki" if _WIKI.fullmatch(inner.name) else SUFFIX_FORMATS.get(inner.suffix.lower(), "")


def _read_text(source_file: SourceFile) -> Iterator[ReadResult]:
    builder = DocumentBuilder(source_file.name)
    for chunk in read_line_chunks(source_file.local_path, source_file.name, split_long_lines=True):
        if isinstance(chunk, DataError):
            yield from builder.finish()
            yield chunk
        elif source_file.split == "file":
            yield from builder.add(*chunk)
        else:
            for number, line in enumerate(io.StringIO(chunk[1]), chunk[0]):
                if source_file.split == "blank":
                    yield from builder.finish() if line.isspace() else builder.add(number, line)
                elif line.endswith("\n") and not builder.num_characters:
                    yield Document(line[:-1], source_file.name, f"line {number}")
                else:  # part of a long line, or the last line
                    yield from builder.add(number, line)
                    if line.endswith("\n"):
                        yield from builder.finish()
    yield from builder.finish()


def _read_json_lines(source_file: SourceFile) -> Iterator[ReadResult]:
    is_first = True
    for numbered_line in read_lines(source_file.local_path, source_file.name):
        if isinstance(numbered_line, tuple):
            number, line = numbered_line
            if not line or line.isspace():
                continue
            row = _parse_json_row(source_file, number, line)
        else:
            row = numbered_line
        if is_first and isinstance(row, DataError) and _is_json_array(source_file, numbered_line):
            yield bad_input(f"{source_file.name} is one JSON array: expected one object per line")
            return
        yield row
        is_first = False


def _is_json_array(source_file: SourceFile, first_line: tuple[int, str] | DataError) -> bool:
    """Return whether a file is one array. A first line that is a whole list is a bad row, except in .json files."""
    if read_first_byte(source_file.local_path) != b"[":
        return False
    has_json_suffix = ".json" in (suffix.lower() for suffix in Path(source_file.path).suffixes[-2:])
    return has_json_suffix or not (isinstance(first_line, tuple) and first_line[1].rstrip().endswith("]"))


def _parse_json_row(source_file: SourceFile, number: int, line: str) -> ReadResult:
    location = f"{source_file.name} line {number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.colno}"
        return bad_input(f"{location}: malformed JSON ({reason}); each line must be one object")
    except (ValueError, RecursionError) as error:
        return bad_input(f"{location}: malformed JSON ({error}); each line must be one object")
    if not isinstance(row, dict):
        return bad_input(f"{location}: expected an object with {source_file.key!r}, not {type(row).__name__}")
    texts = []
    for key in tables.parse_columns(source_file.key, row):
        if key not in row:
            return tables.missing_column(location, "key", key, row)
        value = row[key]
        if not isinstance(value, str):
            shown = type(value).__name__ if isinstance(value, dict | list) else json.dumps(value)[:40]
            return bad_input(f"{location}: {key!r} is {shown}, not a string")
        texts.append(value)
    text = "\n".join(texts).replace("\r\n", "\n")
    if "\\u" in line:  # an escape may be half of a surrogate pair
        text = replace_surrogates(text)
    return Document(text, source_file.name, f"line {number}")


def _read_wiki(source_file: SourceFile) -> Iterator[ReadResult]:
    """Read WikiExtractor output: articles between `<doc …>` and `</doc>`, or JSON lines."""
    if read_first_byte(source_file.local_path) == b"{":
        yield from _read_json_lines(source_file)
        return
    builder, open_line, is_broken = DocumentBuilder(source_file.name), 0, False
    for numbered_line in read_lines(source_file.local_path, source_file.name):
        if isinstance(numbered_line, DataError):
            builder.clear()
            is_broken = True
            yield numbered_line
            continue
        number, line = numbered_line
        if line.startswith("<doc ") and line.rstrip().endswith(">"):
            if open_line and not is_broken:
                yield bad_input(f"{source_file.name} line {open_line}: <doc> is not closed before line {number}")
            builder.clear()
            open_line, is_broken = number, False
        elif open_line and line.rstrip() == "</doc>":
            yield from builder.finish()
            open_line = 0
        elif open_line:
            if not is_broken:
                yield from builder.add(number, line + "\n")
        elif line and not line.isspace():
            yield bad_input(f"{source_file.name} line {number}: text outside <doc …> and </doc>")
    if open_line and not is_broken:
        yield bad_input(f"{source_file.name} line {open_line}: <doc> is not closed")


class _DecompressedStream(io.RawIOBase):
    """Decompressed content of a file as a byte stream."""

    def __init__(self, path: Path):
        self.blocks, self.block = read_decompressed(path), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self.block:
            self.block = memoryview(next(self.blocks, b""))
        size = min(len(buffer), len(self.block))
        buffer[:size], self.block = self.block[:size], self.block[size:]
        return size


def _read_wet(source_file: SourceFile) -> Iterator[ReadResult]:
    """Read Common Crawl's extracted text: the records of type `conversion` in a WARC file.

    The package warcio does not serve here: it stops at a bad record, and reads over a wrong Content-Length or a
    truncated record without an error. This reader reports each bad record and goes on at the next `WARC/` line.
    """
    stream = io.BufferedReader(_DecompressedStream(source_file.local_path), 1 << 16)
    num_records, is_out_of_sync = 0, False
    pending: ReadResult | None = None  # the last record, held back until its end is verified
    error: DataError | None = None
    try:
        while line := stream.readline(1 << 16):
            if line.startswith(b"WARC/"):
                if pending is not None:
                    yield pending
                pending = None
                pending = _read_warc_record(stream, source_file, num_records + 1)
                num_records, is_out_of_sync = num_records + 1, isinstance(pending, DataError)
            elif not is_out_of_sync and line.strip():
                problem = "longer than its Content-Length" if num_records else "does not begin with WARC/"
                is_out_of_sync, pending = True, bad_input(f"{source_file.name} record {num_records or 1}: {problem}")
    except CorruptFileError:
        error = bad_input(
            f"{source_file.name} is truncated or damaged: cannot decompress it beyond record {num_records}"
        )
    except DataError as read_error:
        error = read_error
    if pending is None and error is None and not num_records:
        error = bad_input(f"{source_file.name} is empty")
    yield from (document for document in (pending, error) if document is not None)


def _read_warc_record(stream: BinaryIO, source_file: SourceFile, number: int) -> ReadResult | None:
    """Read a record after its first line. Returns None if the record is not of type `conversion`."""
    location = f"{source_file.name} record {number}"
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
    return Document(text.replace("\r\n", "\n").rstrip("\n"), source_file.name, f"record {number}")


def _table_reader(
    read: Callable[[Path, str, str], Iterator[ReadResult]],
) -> Callable[[SourceFile], Iterator[ReadResult]]:
    return lambda source: read(source.local_path, source.name, source.key)


_READERS: dict[str, Callable[[SourceFile], Iterator[ReadResult]]] = {
    "text": _read_text,
    "jsonl": _read_json_lines,
    "csv": _table_reader(tables.read_csv),
    "tsv": _table_reader(tables.read_tsv),
    "parquet": _table_reader(tables.read_parquet),
    "wiki": _read_wiki,
    "wet": _read_wet,
    "mo": lambda source: gettext_catalogs.read_translations(source.local_path, source.name),
    "midi": lambda source: midi.read_midi(source.local_path, source.name),
    PYTHON_DOCS: lambda source: (Document(text, PYTHON_DOCS, module) for module, text in python_docs.read_documents()),
}
FORMATS = tuple(name for name in _READERS if name != PYTHON_DOCS)
