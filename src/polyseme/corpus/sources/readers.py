"""What is inside a file: a reader for each format gives its documents, and never raises for what is bad in it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from polyseme.corpus.sources import gettext_catalogs as gettext_catalogues
from polyseme.corpus.sources import midi, python_docs, tables
from polyseme.corpus.sources.lines import (
    LONGEST_ROW,
    Document,
    Found,
    Gather,
    bad,
    characters,
    first_byte,
    legible,
    lines,
    parts,
    stretches,
)
from polyseme.errors import UserError
from polyseme.io.files import PACKED, Damaged, unpacked

PYTHON_DOCS = "python-docs"
SPLITS = ("file", "blank", "line")
ENDINGS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".wet": "wet",
    ".mo": "mo",
    **dict.fromkeys((".mid", ".midi"), "midi"),
}
_WIKI = re.compile(r"wiki_\d+")  # as WikiExtractor names its files
_LONGEST_HEAD = 1000  # lines of the head of a web record


@dataclass(frozen=True)
class Input:
    """One file of a source, and how it is read; or all of `python-docs`."""

    origin: int
    path: Path | str  # as it is named
    lang: str = "en"
    format: str = "text"
    key: str = "text"
    split: str = "file"
    copy: Path | None = None  # what is opened instead: standard input has been written there

    @property
    def name(self) -> str:
        return "standard input" if self.path == "-" else legible(str(self.path))

    @property
    def file(self) -> Path:
        return self.copy or Path(self.path)

    def read(self) -> Iterator[Found]:
        """Its documents, and for what cannot be read an error. The same ones at every call."""
        for found in _READERS[self.format](self):
            yield from parts(found)


def format_of(path: Path) -> str:
    """The format that a file's name tells, whatever it is packed with; empty if it tells none."""
    inner = Path(path.stem) if path.suffix.lower() in PACKED else path
    return "wiki" if _WIKI.fullmatch(inner.name) else ENDINGS.get(inner.suffix.lower(), "")


def _text(source: Input) -> Iterator[Found]:
    gather = Gather(source.name)
    for found in stretches(source.file, source.name, cut_lines=True):
        if isinstance(found, UserError):
            yield from gather.end()
            yield found
        elif source.split == "file":
            yield from gather.add(*found)
        else:
            for number, line in enumerate(io.StringIO(found[1]), found[0]):
                if source.split == "blank":
                    yield from gather.end() if line.isspace() else gather.add(number, line)
                elif line.endswith("\n") and not gather.size:
                    yield Document(line[:-1], source.name, f"line {number}")
                else:  # a piece of a long line, or the last line
                    yield from gather.add(number, line)
                    if line.endswith("\n"):
                        yield from gather.end()
    yield from gather.end()


def _json_lines(source: Input) -> Iterator[Found]:
    first = True
    for found in lines(source.file, source.name):
        if isinstance(found, tuple):
            number, line = found
            if not line or line.isspace():
                continue
            row = _row(source, number, line)
        else:
            row = found
        if first and isinstance(row, UserError) and _is_array(source, found):
            yield bad(f"{source.name} is one JSON array: it must be one object a line")
            return
        yield row
        first = False


def _is_array(source: Input, found: tuple[int, str] | UserError) -> bool:
    """Whether a file is one array; a first line that is a whole list may be a bad row, but not in .json."""
    if first_byte(source.file) != b"[":
        return False
    named = ".json" in (suffix.lower() for suffix in Path(source.path).suffixes[-2:])
    return named or not (isinstance(found, tuple) and found[1].rstrip().endswith("]"))


def _row(source: Input, number: int, line: str) -> Found:
    where = f"{source.name} line {number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at character {error.colno}"
        return bad(f"{where}: malformed JSON ({why}); each line must be one object")
    except (ValueError, RecursionError) as error:
        return bad(f"{where}: malformed JSON ({error}); each line must be one object")
    if not isinstance(row, dict):
        return bad(f"{where}: {type(row).__name__} where an object with {source.key!r} must be")
    texts = []
    for key in tables.wanted(source.key, row):
        if key not in row:
            return tables.missing(where, "key", key, row)
        value = row[key]
        if not isinstance(value, str):
            shown = type(value).__name__ if isinstance(value, dict | list) else json.dumps(value)[:40]
            return bad(f"{where}: {key!r} is {shown}, not a string")
        texts.append(value)
    text = "\n".join(texts).replace("\r\n", "\n")
    if "\\u" in line:  # an escape may be half of a pair, which is no character
        text = characters(text)
    return Document(text, source.name, f"line {number}")


def _wiki(source: Input) -> Iterator[Found]:
    """WikiExtractor's output: articles between `<doc …>` and `</doc>`, or JSON lines. The title is the first line."""
    if first_byte(source.file) == b"{":
        yield from _json_lines(source)
        return
    gather, opened, broken = Gather(source.name), 0, False
    for found in lines(source.file, source.name):
        if isinstance(found, UserError):
            gather.clear()
            broken = True
            yield found
            continue
        number, line = found
        if line.startswith("<doc ") and line.rstrip().endswith(">"):
            if opened and not broken:
                yield bad(f"{source.name} line {opened}: a document that is not closed before line {number}")
            gather.clear()
            opened, broken = number, False
        elif opened and line.rstrip() == "</doc>":
            yield from gather.end()
            opened = 0
        elif opened:
            if not broken:
                yield from gather.add(number, line + "\n")
        elif line and not line.isspace():
            yield bad(f"{source.name} line {number}: text outside of <doc …> and </doc>")
    if opened and not broken:
        yield bad(f"{source.name} line {opened}: a document that is not closed")


class _Unpacked(io.RawIOBase):
    """The blocks of a file as a stream of bytes."""

    def __init__(self, path: Path):
        self.blocks, self.block = unpacked(path), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self.block:
            self.block = memoryview(next(self.blocks, b""))
        size = min(len(buffer), len(self.block))
        buffer[:size], self.block = self.block[:size], self.block[size:]
        return size


def _wet(source: Input) -> Iterator[Found]:
    """Text that Common Crawl took out of web pages: the records of type conversion in a WARC file."""
    stream = io.BufferedReader(_Unpacked(source.file), 1 << 16)
    number, lost = 0, False
    held: Found | None = None  # the last record, until it is seen that it ends where it says
    error: UserError | None = None
    try:
        while line := stream.readline(1 << 16):
            if line.startswith(b"WARC/"):
                if held is not None:
                    yield held
                held = None
                held = _record(stream, source, number + 1)
                number, lost = number + 1, isinstance(held, UserError)
            elif not lost and line.strip():
                what = "its Content-Length is wrong, it goes on behind that" if number else "it begins without WARC/1.0"
                lost, held = True, bad(f"{source.name} record {number or 1}: {what}")
    except Damaged:
        error = bad(f"{source.name} is cut off or damaged: it cannot be unpacked beyond record {number}")
    except UserError as other:
        error = other
    if held is None and error is None and not number:
        error = bad(f"{source.name} is empty")
    yield from (each for each in (held, error) if each is not None)


def _record(stream: BinaryIO, source: Input, number: int) -> Found | None:
    """What follows the first line of a record: a document, or nothing if the record is of another type."""
    where = f"{source.name} record {number}"
    head: dict[bytes, bytes] = {}
    for _ in range(_LONGEST_HEAD):
        name, _, value = stream.readline(1 << 16).strip().partition(b":")
        if not name:
            break
        head[name.strip().lower()] = value.strip()
    length = head.get(b"content-length", b"")
    if not re.fullmatch(rb"[0-9]{1,15}", length):
        return bad(f"{where}: its Content-Length is {length.decode('latin-1')[:40]!r}, not a number")
    size = left = int(length)
    kept = []
    wanted = head.get(b"warc-type", b"").lower() == b"conversion"
    while left and (block := stream.read(min(left, 1 << 20))):
        left -= len(block)
        if wanted and size <= LONGEST_ROW:
            kept.append(block)
    if left:
        return bad(f"{where}: cut off, {left} of its {size} bytes are missing")
    if not wanted:
        return None
    if size > LONGEST_ROW:
        return bad(f"{where}: longer than {LONGEST_ROW >> 20} MB")
    try:
        text = b"".join(kept).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return bad(f"{where}: byte {error.start} of it is not UTF-8 text")
    return Document(text.replace("\r\n", "\n").rstrip("\n"), source.name, f"record {number}")


def _table(read: Callable[[Path, str, str], Iterator[Found]]) -> Callable[[Input], Iterator[Found]]:
    return lambda source: read(source.file, source.name, source.key)


_READERS: dict[str, Callable[[Input], Iterator[Found]]] = {
    "text": _text,
    "jsonl": _json_lines,
    "csv": _table(tables.read_csv),
    "tsv": _table(tables.read_tsv),
    "parquet": _table(tables.read_parquet),
    "wiki": _wiki,
    "wet": _wet,
    "mo": lambda source: gettext_catalogues.read(source.file, source.name),
    "midi": lambda source: midi.read(source.file, source.name),
    PYTHON_DOCS: lambda source: (Document(text, PYTHON_DOCS, module) for module, text in python_docs.documents()),
}
FORMATS = tuple(name for name in _READERS if name != PYTHON_DOCS)
