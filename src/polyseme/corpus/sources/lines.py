"""Documents, and the lines of a file they are read from: in bounded memory, with an error where a line is bad."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polyseme.errors import UserError
from polyseme.io.files import Damaged, unpacked

LONGEST_DOCUMENT = 4_000_000  # characters; a longer one is cut into parts
LONGEST_ROW = 64 << 20  # bytes of a row of a table or of JSON lines; a longer one is bad
_PIECE = 1 << 20  # bytes of a long line of plain text that are decoded at once; no block is longer
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    text: str
    source: str
    where: str = ""  # a line of a file, a row, a module


# A reader gives documents, and for what it cannot read an error that is not raised yet.
Found = Document | UserError


def legible(text: str) -> str:
    """A name or a quotation without what no terminal shows or no file can hold."""
    return _UNSEEN.sub("\ufffd", text)


def characters(text: str) -> str:
    """A text with U+FFFD for each half of a surrogate pair, which is no character."""
    return _SURROGATE.sub("\ufffd", text)


def bad(message: str) -> UserError:
    """An error that may quote a file."""
    return UserError(legible(message))


def cut(text: str) -> int:
    """Where the first part of a text too long ends: behind a line break, else behind a space, else anywhere."""
    return text.rfind("\n", 0, LONGEST_DOCUMENT) + 1 or text.rfind(" ", 0, LONGEST_DOCUMENT) + 1 or LONGEST_DOCUMENT


def parts(found: Found) -> Iterator[Found]:
    """A document in parts that are not too long; anything else as it is."""
    if isinstance(found, UserError) or len(found.text) <= LONGEST_DOCUMENT:
        yield found
        return
    text, start, number = found.text, 0, 1
    while start < len(text):
        rest = text[start : start + LONGEST_DOCUMENT + 1]
        end = cut(rest) if len(rest) > LONGEST_DOCUMENT else len(rest)
        yield Document(rest[:end], found.source, f"{found.where} part {number}".lstrip())
        start, number = start + end, number + 1


class Gather:
    """A document in the making, from lines or pieces of lines; what gets too long leaves as a part."""

    def __init__(self, name: str):
        self.name = name
        self.clear()

    def clear(self) -> None:
        self.pieces: list[str] = []
        self.size, self.line = 0, 0

    def add(self, number: int, text: str) -> Iterator[Document]:
        if not self.pieces:
            self.line = number
        self.pieces.append(text)
        self.size += len(text)
        while self.size > LONGEST_DOCUMENT:
            whole = "".join(self.pieces)
            end = cut(whole)
            yield self._document(whole[:end])
            self.line += whole.count("\n", 0, end)
            self.pieces, self.size = [whole[end:]], self.size - end

    def end(self) -> Iterator[Document]:
        if self.size:
            yield self._document("".join(self.pieces))
        self.clear()

    def _document(self, text: str) -> Document:
        return Document(text.rstrip("\n"), self.name, f"line {self.line}")


def stretches(path: Path, name: str, cut_lines: bool = False) -> Iterator[tuple[int, str] | UserError]:
    """Stretches of whole lines of a file in UTF-8, each with the number of its first line; lines end in `\\n`.

    A line that is not UTF-8 or too long is an error, and so is the end of a file that is cut off; what stands
    around it is given nevertheless. With `cut_lines` no line is too long: it comes in pieces, each a stretch
    of its own, and only the last of them ends in `\\n`.
    """
    number, offset, empty, dropping = 1, 0, True, False
    try:
        for raw, goes_on in _chunks(path, _PIECE if cut_lines else LONGEST_ROW, cut_lines):
            if not offset and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                yield bad(f"{name} line 1: byte 0 is not UTF-8 text, it looks like UTF-16")
                return
            if goes_on and not cut_lines:
                if not dropping:
                    yield bad(f"{name} line {number}: longer than {LONGEST_ROW >> 20} MB")
                offset, empty, dropping = offset + len(raw), False, True
                continue
            start = 0
            if dropping:  # the rest of a line that is too long
                start = raw.find(b"\n") + 1 or len(raw)
                number, dropping = number + 1, False
            elif not offset and raw.startswith(b"\xef\xbb\xbf"):
                start = 3
            raw, offset = raw[start:], offset + start
            if raw:
                yield from _decoded(name, raw, number, offset)
                number, offset, empty = number + raw.count(b"\n"), offset + len(raw), False
    except Damaged:
        yield bad(f"{name} is cut off or damaged: it cannot be unpacked beyond line {number - 1}")
    except UserError as error:
        yield error
    else:
        if empty:
            yield bad(f"{name} is empty")


def lines(path: Path, name: str) -> Iterator[tuple[int, str] | UserError]:
    """Numbered lines without their ends; an error where one cannot be had."""
    for found in stretches(path, name):
        if isinstance(found, UserError):
            yield found
        else:
            yield from enumerate(found[1].removesuffix("\n").split("\n"), found[0])


def first_byte(path: Path) -> bytes:
    """The first byte of a file that is no white space; empty if there is none or it cannot be read."""
    try:
        for block in unpacked(path):
            if block := block.removeprefix(b"\xef\xbb\xbf").lstrip():
                return block[:1]
    except UserError:
        pass
    return b""


def _chunks(path: Path, longest: int, cut_lines: bool) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, with False; and of a line longer than `longest` the pieces before its end, with True.

    With `cut_lines` a line that a damaged file breaks off is given too. Where a piece ends does not depend
    on the blocks the file is read in.
    """
    held: list[bytes] = []
    size = 0
    try:
        for block in unpacked(path):
            end = block.rfind(b"\n") + 1
            held.append(block[:end] if end else block)
            size += len(held[-1])
            first = size - len(held[-1]) + block.find(b"\n") + 1 if end else size  # of the line begun before
            if end or first > longest:
                raw = b"".join(held)
                while first > longest:
                    stop = _border(raw, longest)
                    yield raw[:stop], True
                    raw, first = raw[stop:], first - stop
                if end:
                    yield raw, False
                    raw = block[end:]
                held, size = [raw], len(raw)
    except UserError:
        if size and cut_lines:
            yield b"".join(held), False
        raise
    if size:
        yield b"".join(held), False


def _border(raw: bytes, end: int) -> int:
    """The last place up to `end` that is neither inside a character nor inside `\\r\\n`."""
    for place in range(end, end - 4, -1):
        if not 0x80 <= raw[place] < 0xC0 and raw[place - 1] != 0x0D:
            return place
    return end


def _decoded(name: str, raw: bytes, number: int, offset: int) -> Iterator[tuple[int, str] | UserError]:
    """The text of some lines, in one stretch if it can be; `number` and `offset` are those of their start."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        yield number, text.replace("\r\n", "\n")
        return
    start, good = number, list[str]()
    for line in io.BytesIO(raw):
        try:
            good.append(line.decode())
        except UnicodeDecodeError as error:
            if good:
                yield start, "".join(good).replace("\r\n", "\n")
            yield bad(f"{name} line {number}: byte {offset + error.start} is not UTF-8 text")
            start, good = number + 1, []
        number, offset = number + 1, offset + len(line)
    if good:
        yield start, "".join(good).replace("\r\n", "\n")
