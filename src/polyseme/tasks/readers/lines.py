"""The lines of text files in any encoding, in bounded memory."""

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from polyseme.errors import ConfigError, DataError
from polyseme.io.compression import read_decompressed
from polyseme.io.lines import detect_wide_encoding, wide_encoding_error


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file without their ends; an empty file is an error."""
    return list(iter_lines(path, encoding))


def iter_lines(path: Path, encoding: str = "utf-8", keep_blank: bool = False) -> Iterator[str]:
    """Yield the lines of a text file without their ends, in bounded memory; an empty file is an error.

    Blank lines at the end are dropped. With `keep_blank` they are lines like any other, and a file may be empty.
    """
    is_empty, pieces = True, list[str]()  # the last line so far, and blank lines that may be at the end
    for block in _decode_blocks(path, encoding):
        pieces.append(block)
        if "\n" in block and not block.isspace():
            text = "".join(pieces)
            end = text.rfind("\n", 0, len(text) - 1 if keep_blank else len(text.rstrip("\r\n")))
            if end >= 0:
                is_empty = False
                yield from _split_lines(text[:end])
            pieces = [text[end + 1 :]]
    text = "".join(pieces)
    if not keep_blank and is_empty and not text.strip():
        raise DataError(f"{path} is empty")
    yield from _split_lines(text.removesuffix("\n") if keep_blank else text.rstrip("\r\n"))


def _split_lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


def _decode_blocks(path: Path, encoding: str) -> Iterator[str]:
    """Yield the decoded content of a file in blocks; an error names the line and byte that are not text."""
    encoding = encoding or "utf-8"
    try:
        "a".encode(encoding)  # fails for codecs like base64, which are of no text
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        decoder = codecs.getincrementaldecoder("utf-8-sig" if is_utf8 else encoding)()
    except (LookupError, ValueError):
        raise ConfigError(f"there is no encoding {encoding!r}") from None
    num_bytes = num_lines = 0
    for block in chain(read_decompressed(path), [None]):
        if is_utf8 and not num_bytes and block and (wide_encoding := detect_wide_encoding(block)):
            raise wide_encoding_error(f"{path}:1", wide_encoding)
        num_bytes += len(block or b"")
        try:
            text = decoder.decode(block or b"", final=block is None)
        except UnicodeDecodeError as error:
            line = num_lines + error.object.count(b"\n", 0, error.start) + 1
            position = num_bytes - len(error.object) + error.start
            raise DataError(f"{path}:{line}: not {encoding} text (byte {position} of the file)") from None
        num_lines += text.count("\n")
        yield text
