"""Documents, and the lines of a file they are read from: in bounded memory, with an error where a line is bad."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polyseme.errors import DataError
from polyseme.io.compression import CorruptFileError, read_decompressed

MAX_DOCUMENT_CHARS = 4_000_000  # characters; a longer one is cut into parts
MAX_ROW_BYTES = 64 << 20  # bytes of a row of a table or of JSON lines; a longer one is bad
_LINE_CHUNK_BYTES = 1 << 20  # bytes of a long line of plain text that are decoded at once; no block is longer
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    text: str
    source: str
    location: str = ""  # a line of a file, a row, a module


# A reader gives documents, and for what it cannot read an error that is not raised yet.
ReadResult = Document | DataError


def make_printable(text: str) -> str:
    """A name or a quotation without what no terminal shows or no file can hold."""
    return _UNPRINTABLE.sub("\ufffd", text)


def replace_surrogates(text: str) -> str:
    """A text with U+FFFD for each half of a surrogate pair, which is no character."""
    return _SURROGATE.sub("\ufffd", text)


def bad_input(message: str) -> DataError:
    """An error that may quote a file."""
    return DataError(make_printable(message))


def find_split_point(text: str) -> int:
    """Where the first part of a text too long ends: behind a line break, else behind a space, else anywhere."""
    return (
        text.rfind("\n", 0, MAX_DOCUMENT_CHARS) + 1 or text.rfind(" ", 0, MAX_DOCUMENT_CHARS) + 1 or MAX_DOCUMENT_CHARS
    )


def split_long_document(document: ReadResult) -> Iterator[ReadResult]:
    """A document in parts that are not too long; anything else as it is."""
    if isinstance(document, DataError) or len(document.text) <= MAX_DOCUMENT_CHARS:
        yield document
        return
    text, start, part_number = document.text, 0, 1
    while start < len(text):
        remaining = text[start : start + MAX_DOCUMENT_CHARS + 1]
        end = find_split_point(remaining) if len(remaining) > MAX_DOCUMENT_CHARS else len(remaining)
        yield Document(remaining[:end], document.source, f"{document.location} part {part_number}".lstrip())
        start, part_number = start + end, part_number + 1


class DocumentBuilder:
    """A document in the making, from lines or pieces of lines; what gets too long leaves as a part."""

    def __init__(self, source: str):
        self.source = source
        self.clear()

    def clear(self) -> None:
        self.chunks: list[str] = []
        self.num_characters, self.first_line = 0, 0

    def add(self, line_number: int, text: str) -> Iterator[Document]:
        if not self.chunks:
            self.first_line = line_number
        self.chunks.append(text)
        self.num_characters += len(text)
        while self.num_characters > MAX_DOCUMENT_CHARS:
            joined_text = "".join(self.chunks)
            end = find_split_point(joined_text)
            yield self._document(joined_text[:end])
            self.first_line += joined_text.count("\n", 0, end)
            self.chunks, self.num_characters = [joined_text[end:]], self.num_characters - end

    def finish(self) -> Iterator[Document]:
        if self.num_characters:
            yield self._document("".join(self.chunks))
        self.clear()

    def _document(self, text: str) -> Document:
        return Document(text.rstrip("\n"), self.source, f"line {self.first_line}")


def read_line_chunks(path: Path, name: str, split_long_lines: bool = False) -> Iterator[tuple[int, str] | DataError]:
    """Stretches of whole lines of a file in UTF-8, each with the number of its first line; lines end in `\\n`.

    A line that is not UTF-8 or too long is an error, and so is the end of a file that is cut off; what stands
    around it is given nevertheless. With `split_long_lines` no line is too long: it comes in pieces, each a stretch
    of its own, and only the last of them ends in `\\n`.
    """
    line_number, offset, is_empty, is_skipping = 1, 0, True, False
    try:
        for raw, is_continued in _read_byte_chunks(
            path, _LINE_CHUNK_BYTES if split_long_lines else MAX_ROW_BYTES, split_long_lines
        ):
            if not offset and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                yield bad_input(f"{name} line 1: byte 0 is not UTF-8 text, it looks like UTF-16")
                return
            if is_continued and not split_long_lines:
                if not is_skipping:
                    yield bad_input(f"{name} line {line_number}: longer than {MAX_ROW_BYTES >> 20} MB")
                offset, is_empty, is_skipping = offset + len(raw), False, True
                continue
            start = 0
            if is_skipping:  # the rest of a line that is too long
                start = raw.find(b"\n") + 1 or len(raw)
                line_number, is_skipping = line_number + 1, False
            elif not offset and raw.startswith(b"\xef\xbb\xbf"):
                start = 3
            raw, offset = raw[start:], offset + start
            if raw:
                yield from _decode_lines(name, raw, line_number, offset)
                line_number, offset, is_empty = line_number + raw.count(b"\n"), offset + len(raw), False
    except CorruptFileError:
        yield bad_input(f"{name} is cut off or damaged: it cannot be unpacked beyond line {line_number - 1}")
    except DataError as error:
        yield error
    else:
        if is_empty:
            yield bad_input(f"{name} is empty")


def read_lines(path: Path, name: str) -> Iterator[tuple[int, str] | DataError]:
    """Numbered lines without their ends; an error where one cannot be had."""
    for chunk in read_line_chunks(path, name):
        if isinstance(chunk, DataError):
            yield chunk
        else:
            yield from enumerate(chunk[1].removesuffix("\n").split("\n"), chunk[0])


def read_first_byte(path: Path) -> bytes:
    """The first byte of a file that is no white space; empty if there is none or it cannot be read."""
    try:
        for block in read_decompressed(path):
            if block := block.removeprefix(b"\xef\xbb\xbf").lstrip():
                return block[:1]
    except DataError:
        pass
    return b""


def _read_byte_chunks(path: Path, max_line_bytes: int, split_long_lines: bool) -> Iterator[tuple[bytes, bool]]:
    """Whole lines, with False; and of a line longer than `max_line_bytes` the pieces before its end, with True.

    With `split_long_lines` a line that a damaged file breaks off is given too. Where a piece ends does not depend
    on the blocks the file is read in.
    """
    buffers: list[bytes] = []
    size = 0
    try:
        for block in read_decompressed(path):
            end = block.rfind(b"\n") + 1
            buffers.append(block[:end] if end else block)
            size += len(buffers[-1])
            first_line_size = (
                size - len(buffers[-1]) + block.find(b"\n") + 1 if end else size
            )  # of the line begun before
            if end or first_line_size > max_line_bytes:
                raw = b"".join(buffers)
                while first_line_size > max_line_bytes:
                    stop = _find_boundary(raw, max_line_bytes)
                    yield raw[:stop], True
                    raw, first_line_size = raw[stop:], first_line_size - stop
                if end:
                    yield raw, False
                    raw = block[end:]
                buffers, size = [raw], len(raw)
    except DataError:
        if size and split_long_lines:
            yield b"".join(buffers), False
        raise
    if size:
        yield b"".join(buffers), False


def _find_boundary(raw: bytes, end: int) -> int:
    """The last place up to `end` that is neither inside a character nor inside `\\r\\n`."""
    for position in range(end, end - 4, -1):
        if not 0x80 <= raw[position] < 0xC0 and raw[position - 1] != 0x0D:
            return position
    return end


def _decode_lines(name: str, raw: bytes, line_number: int, offset: int) -> Iterator[tuple[int, str] | DataError]:
    """The text of some lines, in one stretch if it can be; `line_number` and `offset` are those of their start."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        yield line_number, text.replace("\r\n", "\n")
        return
    start, decoded_lines = line_number, list[str]()
    for line in io.BytesIO(raw):
        try:
            decoded_lines.append(line.decode())
        except UnicodeDecodeError as error:
            if decoded_lines:
                yield start, "".join(decoded_lines).replace("\r\n", "\n")
            yield bad_input(f"{name} line {line_number}: byte {offset + error.start} is not UTF-8 text")
            start, decoded_lines = line_number + 1, []
        line_number, offset = line_number + 1, offset + len(line)
    if decoded_lines:
        yield start, "".join(decoded_lines).replace("\r\n", "\n")
