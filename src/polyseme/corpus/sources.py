"""Where text comes from: files, folders and JSON lines, plain or compressed, and Python's documentation."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from polyseme.corpus import python_docs
from polyseme.errors import UserError, nearest
from polyseme.files import sha256

PYTHON_DOCS = "python-docs"
SPLITS = ("file", "blank", "line")
_SHOWN = 100  # how many bad rows are kept with their message; all are counted


@dataclass(frozen=True)
class Document:
    text: str
    source: str
    where: str = ""  # a line in a file, or a module


# A reader gives documents, and for what it cannot read an error that is not raised yet.
Found = Document | UserError


@dataclass(eq=False)
class Sources:
    """Documents in a fixed order. Iterating starts from the beginning, and counts what was passed over."""

    files: list[Path | str]
    key: str = "text"
    split: str = "file"
    skip_bad: bool = False
    num_blank: int = 0
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Document]:
        self.num_blank = self.num_bad = 0
        self.bad = []
        for file in self.files:
            for found in self._read(file):
                if isinstance(found, UserError):
                    if not self.skip_bad:
                        raise found
                    self.num_bad += 1
                    self.bad += [str(found)] * (len(self.bad) < _SHOWN)
                elif not found.text or found.text.isspace():
                    self.num_blank += 1
                else:
                    yield found

    def _read(self, file: Path | str) -> Iterator[Found]:
        if isinstance(file, str):
            return (Document(text, PYTHON_DOCS, module) for module, text in python_docs.documents())
        return _READERS.get(_kind(file), _read_text)(file, self)

    @cached_property
    def fingerprint(self) -> list[dict[str, Any]]:
        """What the documents depend on, file by file: enough to tell whether two runs read the same."""
        return [
            {"path": file, "version": python_docs.version()}
            if isinstance(file, str)
            else {"path": str(file), "bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in self.files
        ]

    @property
    def size(self) -> int | None:
        """Bytes to read, or None when that is not known without reading."""
        if any(isinstance(file, str) or file.suffix in _OPENERS for file in self.files):
            return None
        return sum(Path(file).stat().st_size for file in self.files)


def open_sources(
    paths: Sequence[str | Path], key: str = "text", split: str = "file", skip_bad: bool = False
) -> Sources:
    """Find the files, before anything is read. `split` says what one document is in a text file.

    "file": all of it; "blank": documents are separated by blank lines, as in BERT's input; "line": each line.
    """
    if split not in SPLITS:
        raise UserError(f"split is {split!r}: {nearest(split, SPLITS)}")
    files: list[Path | str] = []
    for name in paths:
        path = Path(name)
        if str(name) == PYTHON_DOCS:
            files.append(PYTHON_DOCS)
        elif path.is_dir():
            files += _in_folder(path)
        elif path.is_file():
            files.append(path)
        else:
            there = os.listdir(path.parent) if path.parent.is_dir() else []
            raise UserError(f"there is no {path}: {nearest(path.name, [*there, PYTHON_DOCS])}")
    if not files:
        raise UserError("no source of text was given")
    return Sources(files, key, split, skip_bad)


def _in_folder(folder: Path) -> list[Path]:
    """Every file below with a known ending, in the order of paths; empty and hidden ones are passed over."""
    known = (".txt", ".md", ".rst", *_READERS)
    found = [
        path
        for path in folder.rglob("*")
        if _kind(path) in known
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
        and path.stat().st_size
    ]
    if not found:
        raise UserError(f"{folder} has no text in files that end in {' '.join(known)}, plain, .gz or .xz")
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _kind(path: Path) -> str:
    """The ending that says what is inside, without that of the compression."""
    return Path(path.stem).suffix.lower() if path.suffix in _OPENERS else path.suffix.lower()


def _lines(path: Path) -> Iterator[tuple[int, str] | UserError]:
    """Numbered lines of a file in UTF-8, each with its `\\n`; an error where one cannot be had."""
    number = offset = 0
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            for number, raw in enumerate(io.BufferedReader(file), 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield number, (line[:-2] + "\n" if line.endswith("\r\n") else line)
                except UnicodeDecodeError as error:
                    hint = ", it looks like UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
                    yield UserError(f"{path} line {number}: byte {offset + error.start} is not UTF-8 text{hint}")
                offset += len(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
        yield UserError(f"{path} is cut off or damaged: it cannot be unpacked beyond line {number}")
    except OSError as error:
        yield UserError(f"cannot read {path}: {error.strerror or error}")
    else:
        if not number:
            yield UserError(f"{path} is empty")


def _read_text(path: Path, options: Sources) -> Iterator[Found]:
    pending: list[str] = []
    start = 1

    def document() -> Document:
        return Document("".join(pending).rstrip("\n"), str(path), f"line {start}")

    for found in _lines(path):
        if isinstance(found, UserError):
            yield found
            if options.split == "file":
                return
            continue
        number, line = found
        ends = options.split == "line" or (options.split == "blank" and line.isspace())
        if not pending:
            start = number
        pending.append(line)
        if ends:
            if options.split == "line" or len(pending) > 1:
                yield document()
            pending = []
    if pending:
        yield document()


def _read_json_lines(path: Path, options: Sources) -> Iterator[Found]:
    for found in _lines(path):
        if isinstance(found, UserError):
            yield found
        elif not found[1].isspace():
            yield _row(found[1], options.key, path, found[0])


def _row(line: str, key: str, path: Path, number: int) -> Found:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return UserError(f"{path} line {number}: malformed JSON ({error}); each line must be one object")
    if not isinstance(row, dict):
        return UserError(f"{path} line {number}: {type(row).__name__} where an object with {key!r} must be")
    if key not in row:
        return UserError(f"{path} line {number}: no key {key!r} among {', '.join(row)}; {nearest(key, row)}")
    if not isinstance(row[key], str):
        return UserError(f"{path} line {number}: {key!r} is {json.dumps(row[key])[:40]}, not a string")
    return Document(row[key].replace("\r\n", "\n"), str(path), f"line {number}")


_OPENERS: dict[str, Callable[..., BinaryIO]] = {".gz": gzip.open, ".xz": lzma.open}  # type: ignore[dict-item]
_READERS: dict[str, Callable[[Path, Sources], Iterator[Found]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json_lines,
}
