"""Reading of the lines of plain and compressed text files in bounded memory, with an error for each bad line."""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from polyseme.errors import DataError
from polyseme.io.binary_files import describe_binary
from polyseme.io.compression import CorruptFileError, read_decompressed
from polyseme.io.limits import MAX_ROW_BYTES

T = TypeVar("T")

_LINE_CHUNK_BYTES = 1 << 20  # part of a long line of plain text that is decoded at once
_SAMPLE_BYTES = 1 << 12  # in which the encoding is detected
_BYTE_ORDER_MARKS = {  # in this order: the mark of UTF-32LE begins with that of UTF-16LE
    b"\xff\xfe\x00\x00": "UTF-32LE", b"\x00\x00\xfe\xff": "UTF-32BE", b"\xff\xfe": "UTF-16LE", b"\xfe\xff": "UTF-16BE",
}  # fmt: skip
_NUL_PLACES = {  # of the four bytes of one or two characters below U+0100
    "UTF-16LE": (0, 1, 0, 1), "UTF-16BE": (1, 0, 1, 0), "UTF-32LE": (0, 1, 1, 1), "UTF-32BE": (1, 1, 1, 0),
}  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def make_printable(text: str) -> str:
    """Replace characters that a terminal cannot show or a file cannot store by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def replace_surrogates(text: str) -> str:
    """Replace every lone surrogate, which no encoding can represent, by U+FFFD. The length does not change."""
    try:
        text.encode()  # faster than the regular expression
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def bad_input(message: str) -> DataError:
    """Return an error whose message may quote a file."""
    return DataError(make_printable(message))


def detect_wide_encoding(raw: bytes) -> str:
    """Return the encoding of text in UTF-16 or UTF-32, by its byte-order mark or its NUL bytes; empty for other text.

    Where most characters are below U+0100, the NUL bytes are at every other place, or at three of four.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            return encoding
    sample = raw[: len(raw) // 4 * 4][:_SAMPLE_BYTES]
    if sample.count(0) < len(sample) / 4 or not sample:
        return ""
    is_nul = [4 * sample[start::4].count(0) > len(sample) / 2 for start in range(4)]  # most of the bytes
    is_text = [4 * sample[start::4].count(0) < len(sample) / 10 for start in range(4)]
    for encoding, places in _NUL_PLACES.items():
        if all(is_nul[i] if place else is_text[i] for i, place in enumerate(places)):
            return encoding
    return ""


def wide_encoding_error(location: str, encoding: str) -> DataError:
    """Return the error for text in UTF-16 or UTF-32."""
    problem = f"{location}: byte 0 is not UTF-8 text, it looks like {encoding}"
    return bad_input(f"{problem}: convert it with iconv -f {encoding} -t UTF-8")


def read_line_chunks(
    path: Path, name: str, split_long_lines: bool = False, allow_large: bool = False
) -> Iterator[tuple[int, str] | DataError]:
    """Yield chunks of whole lines of a UTF-8 file, each with the number of its first line. Lines end in `\\n`.

    Yields an error for a line that is too long or not UTF-8, and at the end of a truncated compressed file; the lines
    around it are still read. With `split_long_lines` no line is too long: a long line is yielded in several chunks, and
    only the last one ends in `\\n`. For `allow_large` see `read_decompressed`.
    """
    line_number, offset, is_empty, is_skipping = 1, 0, True, False
    max_line_bytes = _LINE_CHUNK_BYTES if split_long_lines else MAX_ROW_BYTES
    try:
        for raw, is_continued in _read_byte_chunks(path, max_line_bytes, split_long_lines, allow_large):
            if not offset and (encoding := detect_wide_encoding(raw)):
                yield wide_encoding_error(f"{name} line 1", encoding)
                return
            if not offset and (problem := describe_binary(raw, path, name)):
                yield bad_input(problem)
                return
            if is_continued and not split_long_lines:
                if not is_skipping:
                    yield bad_input(f"{name} line {line_number}: longer than {MAX_ROW_BYTES >> 20} MB")
                offset, is_empty, is_skipping = offset + len(raw), False, True
                continue
            start = 0
            if is_skipping:  # the rest of a line that was too long
                start = raw.find(b"\n") + 1 or len(raw)
                line_number, is_skipping = line_number + 1, False
            elif not offset and raw.startswith(b"\xef\xbb\xbf"):
                start = 3
            raw, offset = raw[start:], offset + start
            if raw:
                yield from _decode_lines(name, raw, line_number, offset)
                line_number, offset, is_empty = line_number + raw.count(b"\n"), offset + len(raw), False
    except CorruptFileError:
        yield bad_input(f"{name} is truncated or damaged: cannot decompress it beyond line {line_number - 1}")
    except DataError as error:
        yield error
    else:
        if is_empty:
            yield bad_input(f"{name} is empty")


def read_lines(path: Path, name: str, allow_large: bool = False) -> Iterator[tuple[int, str] | DataError]:
    """Yield numbered lines without line ends, and an error for each line that cannot be read."""
    for chunk in read_line_chunks(path, name, allow_large=allow_large):
        if isinstance(chunk, DataError):
            yield chunk
        else:
            yield from enumerate(chunk[1].removesuffix("\n").split("\n"), chunk[0])


def raise_errors(values: Iterable[T | DataError]) -> Iterator[T]:
    """Yield the values of a reader, and raise the first error among them."""
    for value in values:
        if isinstance(value, DataError):
            raise value
        yield value


def read_small_file(path: Path, name: str) -> bytes:
    """Return the decompressed content of a file; raise `DataError` if it is damaged or too long."""
    content = bytearray()
    try:
        for block in read_decompressed(path):
            content += block
            if len(content) > MAX_ROW_BYTES:
                raise bad_input(f"{name} is longer than {MAX_ROW_BYTES >> 20} MB")
    except CorruptFileError:
        raise bad_input(f"{name} is truncated or damaged: cannot decompress it") from None
    return bytes(content)


def _read_byte_chunks(
    path: Path, max_line_bytes: int, split_long_lines: bool, allow_large: bool
) -> Iterator[tuple[bytes, bool]]:
    """Yield (bytes, is_continued): whole lines with False, and the pieces of a longer line before its last with True.

    A line is split if it is longer than `max_line_bytes`; where does not depend on the blocks the file is read in. With
    `split_long_lines` the last, incomplete line of a damaged file is yielded too.
    """
    buffers: list[bytes] = []
    size = 0
    try:
        for block in read_decompressed(path, allow_large):
            end = block.rfind(b"\n") + 1
            buffers.append(block[:end] if end else block)
            size += len(buffers[-1])
            # Size of the first line in the buffers, which earlier blocks may have begun
            first_line_size = size - len(buffers[-1]) + block.find(b"\n") + 1 if end else size
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
    """Return the last position up to `end` that is neither inside a character nor inside `\\r\\n`."""
    for position in range(end, end - 4, -1):
        if not 0x80 <= raw[position] < 0xC0 and raw[position - 1] != 0x0D:
            return position
    return end


def _decode_lines(name: str, raw: bytes, line_number: int, offset: int) -> Iterator[tuple[int, str] | DataError]:
    """Decode lines, in one chunk if all are valid. `line_number` and `offset` are the position of the first."""
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
