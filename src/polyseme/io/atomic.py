"""Atomic writes: a file or folder is written completely or not at all.

Temporaries are hidden, and named after their target and the process that writes them: `.NAME.HOST-PID-RANDOM.part`, or
`.old` for a folder that is being replaced. What a killed process leaves is removed by the next one that writes there.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyseme.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_TEMPORARY_NAME = re.compile(r"\.(.+)\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.(part|old)", re.DOTALL)
_LOCK_NAME = re.compile(r"\.(.+\.)?lock", re.DOTALL)
_MAX_AGE = 24 * 3600  # seconds after which a temporary of another machine is abandoned
_cleaned_folders: set[Path] = set()  # by this process, once each


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
    temporary = _temporary_path(path, "part")
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent not in _cleaned_folders:
            _cleaned_folders.add(path.parent)
            remove_leftovers(path.parent)
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
    """Yield a temporary folder that replaces `path` when the block succeeds and is removed when it fails.

    A crash leaves the old folder or the new one; the old one possibly under another name (see `restore_directory`).
    """
    temporary, backup = _temporary_path(path, "part"), _temporary_path(path, "old")
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                fsync_path(file)
            fsync_path(temporary)
            if path.exists():
                os.replace(path, backup)
            os.replace(temporary, path)
        except BaseException:
            if backup.exists() and not path.exists():
                os.replace(backup, path)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if backup.exists():
            remove_directory(backup)
        fsync_path(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a folder, which is first renamed so that nobody finds it half removed."""
    temporary = _temporary_path(path, "part")
    with wrap_os_errors(path):
        os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def restore_directory(path: Path) -> None:
    """Restore a folder that a killed process was replacing, if it left none; call this before reading one."""
    if not path.exists() and path.parent.is_dir():
        remove_leftovers(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove temporaries of dead processes from a folder, and restore the folders that they were replacing."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(".")]
    except OSError:  # it may be writable but not readable
        return
    for name in names:
        if not (match := _TEMPORARY_NAME.fullmatch(name)):
            continue
        path, target = folder / name, folder / match[1]
        with suppress(OSError):  # another process may do the same
            if not _is_abandoned(path, match[2], int(match[3])):
                continue
            if match[4] == "old" and not target.exists():
                os.rename(path, target)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def is_temporary(path: Path) -> bool:
    """Return whether a file or folder is a temporary or a lock, and no part of what the folder holds."""
    return any(pattern.fullmatch(path.name) for pattern in (_TEMPORARY_NAME, _LOCK_NAME))


def target_name(path: Path) -> str:
    """Return the name of a file or folder; of a temporary one the name that it will get."""
    name = path.absolute().name
    match = _TEMPORARY_NAME.fullmatch(name)
    return match[1] if match else name


def _temporary_path(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{_host_tag()}-{os.getpid()}-{os.urandom(4).hex()}.{kind}")


@functools.cache
def _host_tag() -> str:
    """Return a short name of the machine, or of the container with process ids of its own."""
    namespace = Path("/proc/self/ns/pid")
    text = f"{socket.gethostname()} {os.readlink(namespace) if namespace.exists() else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _is_abandoned(path: Path, host: str, pid: int) -> bool:
    if host != _host_tag():
        return time.time() - path.stat().st_mtime > _MAX_AGE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user
        return False
    return False


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
    path.touch()
    mode = path.stat().st_mode  # that of other files, which `save_file` ignores
    try:
        save_file(cpu_tensors, path, {"format": "pt"})
        path.chmod(mode)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def is_occupied(path: Path) -> bool:
    """Return whether `path` is a file or a folder that is not empty, apart from temporaries and locks."""
    return path.is_file() or (path.is_dir() and not all(is_temporary(child) for child in path.iterdir()))


def ensure_new_directory(out: Path) -> None:
    """Raise `ConfigError` if a folder at `out` would overwrite something."""
    if is_occupied(out):
        raise ConfigError(f"{out} already exists: choose another folder, or remove it first")


def ensure_new_file(out: Path) -> None:
    """Raise `ConfigError` if `out` exists."""
    if out.exists():
        raise ConfigError(f"{out} already exists: choose another name, or remove it first")
