"""Reading of plain and compressed files in blocks."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from polyseme.errors import DataError, require_package
from polyseme.io.limits import MAX_EXPANSION, MIN_CHECKED_BYTES

COMPRESSED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
_BLOCK_SIZE = 1 << 20
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": partial(lzma.LZMAFile, format=lzma.FORMAT_XZ),
    ".bz2": bz2.BZ2File,
}


def strip_compression(path: Path) -> Path:
    """Return a path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path


def data_suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of its compression."""
    return strip_compression(path).suffix.lower()


class CorruptFileError(DataError):
    """A compressed file that is damaged or truncated."""


def read_decompressed(path: Path, allow_large: bool = False) -> Iterator[bytes]:
    """Yield the decompressed content in blocks of at most a megabyte; `CorruptFileError` comes after all valid data.

    A file that expands more than `MAX_EXPANSION` times is an error unless `allow_large`.
    """
    is_compressed, num_bytes = path.suffix.lower() in COMPRESSED_SUFFIXES, 0
    for block in _read_blocks(path):
        num_bytes += len(block)
        if is_compressed and not allow_large:
            check_expansion(str(path), path, num_bytes)
        yield block


def check_expansion(name: str, path: Path, num_bytes: int) -> None:
    """Raise `DataError` if `num_bytes` bytes of content are too many for the size of a file (a decompression bomb)."""
    if num_bytes > MIN_CHECKED_BYTES and num_bytes > MAX_EXPANSION * (size := path.stat().st_size):
        problem = (
            f"{name} expands more than {MAX_EXPANSION:,} times, from {size:,} bytes to over {num_bytes >> 20:,} MB"
        )
        raise DataError(f"{problem}: if it is not a decompression bomb, decompress it first or set `allow_large`")


def _read_blocks(path: Path) -> Iterator[bytes]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".zst":
            yield from _decompress_zst(path)
            return
        with open(path, "rb") as file:
            stream = _DECOMPRESSORS.get(suffix, lambda plain: plain)(file)
            while block := stream.read1(_BLOCK_SIZE):
                yield block
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except EOFError:
        raise CorruptFileError(f"{path} is truncated: the compressed data ends early") from None
    except (OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # from the disk, not from decompression
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        raise CorruptFileError(f"{path} is not a valid {suffix} file: {error}") from None


def read_first_byte(path: Path) -> bytes:
    """Return the first byte of a file that is not white space, or b"" if there is none or it cannot be read."""
    try:
        for block in read_decompressed(path):
            if block := block.removeprefix(b"\xef\xbb\xbf").lstrip():
                return block[:1]
    except DataError:
        pass
    return b""


def _decompress_zst(path: Path) -> Iterator[bytes]:
    num_bytes = 0
    try:
        for block in _read_zst_blocks(path, 0, 1 << 16):
            num_bytes += len(block)
            yield block
    except OSError:
        # The read that failed loses what it decompressed: go back to its start and read single bytes.
        yield from _read_zst_blocks(path, num_bytes, 1)


def _read_zst_blocks(path: Path, skip: int, size: int) -> Iterator[bytes]:
    pa = require_package("pyarrow", "reading files that end in .zst")
    with open(path, "rb") as file, pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
        while skip and (block := stream.read(min(skip, _BLOCK_SIZE))):
            skip -= len(block)
        while block := stream.read(size):
            yield block
