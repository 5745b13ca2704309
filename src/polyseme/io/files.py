"""Writing so that nothing is lost: every file or folder appears whole or not at all. Reading what is packed."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from polyseme.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PACKED = (".gz", ".xz", ".zst", ".bz2")
_BLOCK = 1 << 20
_UNPACK: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": partial(lzma.LZMAFile, format=lzma.FORMAT_XZ),
    ".bz2": bz2.BZ2File,
}


def arrow(what: str) -> Any:
    """The package pyarrow, which `what` is read with."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{what} are read with pyarrow, which is not installed: pip install pyarrow") from None
    return pyarrow


class Damaged(UserError):
    """A packed file that cannot be unpacked to its end."""


def unpacked(path: Path) -> Iterator[bytes]:
    """What a file holds, plain or packed as its ending says, in blocks of at most a megabyte.

    All that can be unpacked is given before the `Damaged` that ends a file cut off.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".zst":
            yield from _from_zst(path)
            return
        with open(path, "rb") as file:
            stream = _UNPACK.get(ending, lambda plain: plain)(file)
            while block := stream.read1(_BLOCK):
                yield block
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except EOFError:
        raise Damaged(f"{path} is truncated: its compressed data stops before its end") from None
    except (OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of what unpacks
            raise UserError(f"cannot read {path}: {error.strerror or error}") from None
        raise Damaged(f"{path} is not a whole {ending} file: {error}") from None


def _from_zst(path: Path) -> Iterator[bytes]:
    given = 0
    try:
        for block in _zst_blocks(path, 0, 1 << 16):
            given += len(block)
            yield block
    except OSError:
        # What was unpacked in the read that failed is lost: come back to its start, and on by single bytes.
        yield from _zst_blocks(path, given, 1)


def _zst_blocks(path: Path, skip: int, size: int) -> Iterator[bytes]:
    pa = arrow("files that end in .zst")
    with open(path, "rb") as file, pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
        while skip and (block := stream.read(min(skip, _BLOCK))):
            skip -= len(block)
        while block := stream.read(size):
            yield block


def sha256(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Ask the disk to keep what was written to a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """An error of the disk as one line that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` and rename the result to `path`, so that a crash leaves the old file or the new."""
    temporary = path.with_name(f".{path.name}.part")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file that other tools open; its library's own error for a full disk becomes the usual one.

    Names that share one tensor get a copy each, as that format has it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    written: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous().cpu()
        written[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    try:
        save_file(written, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_array(path: Path, pieces: Sequence[np.ndarray], dtype: np.dtype[Any] | type) -> None:
    """Arrays one behind the other in an `.npy` file; unlike `np.save`, a full disk is named as what it is."""
    import numpy as np
    from numpy.lib import format as npy

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shape = (sum(map(len, pieces)), *pieces[0].shape[1:])
            descr = npy.dtype_to_descr(np.dtype(dtype))
            npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
            for piece in pieces:
                file.write(np.ascontiguousarray(piece, dtype).data)

    write_whole(path, write)


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file, or a `UserError` naming the line at fault."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path} is not valid JSON{where}") from None


def taken(path: Path) -> bool:
    """Whether a folder written there would take the place of something: a file, or a folder that is not empty."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def new_folder(out: Path) -> None:
    """Refuse to write a folder over what is there."""
    if taken(out):
        raise UserError(f"{out} is already there: choose another --out, or remove it first")


def new_file(out: Path) -> None:
    """Refuse to write a file over what is there, whatever that is."""
    if out.exists():
        raise UserError(f"{out} is already there: choose another --out, or remove it first")


def parse_json(text: str | bytes, where: str) -> Any:
    """Parsed JSON, or a `UserError` that says where it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: malformed JSON: {error}") from None


def json_object(text: str, where: str) -> dict[str, Any]:
    """The same of what has to be an object."""
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise UserError(f"{where}: expected a JSON object, found {text[:40]!r}")
    return found


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and is removed when it does not.

    A folder already at `path` is replaced only at that moment.
    """
    temporary, old = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                os.replace(path, old)
            os.replace(temporary, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
        sync(path.parent)
