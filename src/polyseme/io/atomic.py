"""Atomic writes: a file or folder is written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def sha256(path: Path) -> str:
    """Return the SHA-256 hex digest of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def wrap_os_errors(path: Path) -> Iterator[None]:
    """Convert an `OSError` to a `DataError` that names the file to write."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def atomic_write(path: Path, write_to: Callable[[Path], object]) -> None:
    """Call `write_to(temporary)` and rename the result to `path`; a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.part")
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_to(temporary)
            fsync_path(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_path(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block succeeds and is removed when it fails."""
    temporary, backup = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                fsync_path(file)
            fsync_path(temporary)
            if path.exists():
                shutil.rmtree(backup, ignore_errors=True)
                os.replace(path, backup)
            os.replace(temporary, path)
        except BaseException:
            if backup.exists() and not path.exists():
                os.replace(backup, path)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        shutil.rmtree(backup, ignore_errors=True)
        fsync_path(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    atomic_write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_array(path: Path, arrays: Sequence[np.ndarray], dtype: np.dtype[Any] | type) -> None:
    """Write concatenated arrays to an `.npy` file; unlike `np.save`, report a full disk as that."""
    import numpy as np
    from numpy.lib import format as npy

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
            descr = npy.dtype_to_descr(np.dtype(dtype))
            npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
            for array in arrays:
                file.write(np.ascontiguousarray(array, dtype).data)

    atomic_write(path, write)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, with a copy for each name of a shared tensor; raise `OSError` if the disk is full."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    cpu_tensors: dict[str, Tensor] = {}
    pointers: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous().cpu()
        cpu_tensors[name] = tensor.clone() if tensor.data_ptr() in pointers else tensor
        pointers.add(tensor.data_ptr())
    try:
        save_file(cpu_tensors, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def is_occupied(path: Path) -> bool:
    """Return whether `path` is a file or a folder that is not empty."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def ensure_new_directory(out: Path) -> None:
    """Raise `ConfigError` if a folder at `out` would overwrite something."""
    if is_occupied(out):
        raise ConfigError(f"{out} already exists: choose another folder, or remove it first")


def ensure_new_file(out: Path) -> None:
    """Raise `ConfigError` if `out` exists."""
    if out.exists():
        raise ConfigError(f"{out} already exists: choose another name, or remove it first")
