"""Locks on output folders, so that two processes never write into one folder.

The lock of `X` is a POSIX record lock on the file `.X.lock` beside it, where renaming `X` does not lose it. The system
releases the lock when the process ends, however it ends; a lock file that a killed process left behind locks nothing.
"""

import errno
import fcntl
import functools
import inspect
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from polyseme.errors import ConfigError, DataError

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

LOCK_FILE = ".lock"  # inside a folder whose parent is read-only, such as a mounted volume
NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "afs", "gpfs", "beegfs", "orangefs", "9p", "ncpfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs"),
}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


class _LockedError(Exception):
    """Another process or thread holds the lock; the message says which."""


@dataclass
class _HeldLock:
    """A lock of this process; a thread may take it several times."""

    thread: int
    pid: int  # another one in a process that was forked since
    descriptor: int
    file: Path
    depth: int = 1


_held_locks: dict[Path, _HeldLock] = {}  # by folder
_mutex = threading.Lock()
_warned_mounts: set[str] = set()


@contextmanager
def lock_folder(folder: Path, command: str = "") -> Iterator[None]:
    """Hold the lock of a folder, which need not exist yet; raise `ConfigError` at once if another process holds it.

    A thread may lock a folder that it has locked already. `command` says what is running, for the other process.
    """
    resolved = folder.resolve()
    missing_parents = [parent for parent in resolved.parents if not parent.exists()]
    try:
        _acquire(resolved, command or Path(sys.argv[0]).stem)
    except OSError as error:
        _remove_empty(missing_parents)
        raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
    except _LockedError as error:
        raise ConfigError(f"{folder} is being written by {error}") from None
    try:
        yield
    finally:
        _release(resolved)
        _remove_empty(missing_parents)


def locks_folder(command: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for functions that write to a folder `out`: they hold its lock while they run."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            with lock_folder(Path(arguments.arguments["out"]), command):
                return function(*args, **kwargs)

        return locked

    return decorate


def _acquire(folder: Path, command: str) -> None:
    with _mutex:
        held_lock = _held_locks.get(folder)
        if held_lock is None or held_lock.pid != os.getpid():
            descriptor, file = _lock_file(folder)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
            with suppress(OSError):  # a full disk; the lock holds all the same
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(owner | {"since": time.strftime("%F %H:%M")}).encode(), 0)
            _held_locks[folder] = _HeldLock(threading.get_ident(), os.getpid(), descriptor, file)
        elif held_lock.thread == threading.get_ident():
            held_lock.depth += 1
        else:
            raise _LockedError("another thread of this process: wait for it")


def _release(folder: Path) -> None:
    with _mutex:
        held_lock = _held_locks[folder]
        held_lock.depth -= 1
        if not held_lock.depth and held_lock.pid == os.getpid():
            del _held_locks[folder]
            with suppress(OSError):
                held_lock.file.unlink()  # before the lock is released: nobody locks a file that is about to vanish
            os.close(held_lock.descriptor)


def _lock_file(folder: Path) -> tuple[int, Path]:
    """Return the descriptor and the path of the lock file of a folder, locked."""
    while True:
        file, descriptor = _open_lock_file(folder)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                owner = _read_owner(descriptor)
                os.close(descriptor)
                raise _LockedError(f"{owner}: wait for it, or stop it") from None
            logger.warning("%s is on a file system without locks: let no other process write there", folder)
            return descriptor, file
        opened = os.fstat(descriptor)
        with suppress(FileNotFoundError):
            current = file.stat()
            if (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino):
                _warn_if_network(file)
                return descriptor, file
        os.close(descriptor)  # its owner has removed it since we opened it


def _open_lock_file(folder: Path) -> tuple[Path, int]:
    file = folder.with_name(f".{folder.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file, os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in _READ_ONLY or file.exists() or not folder.is_dir():
            raise
    return folder / LOCK_FILE, os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)


def _read_owner(descriptor: int) -> str:
    """Return the process that a lock file names."""
    for _ in range(10):
        try:
            owner: Any = json.loads(os.pread(descriptor, 1000, 0))
            return f"process {owner['pid']} on host {owner['host']} ({owner['command']}, since {owner['since']})"
        except (ValueError, KeyError, TypeError, OSError):
            time.sleep(0.02)  # it may be about to write it
    return "another process"


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that were created for the lock file and hold nothing else."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _warn_if_network(path: Path) -> None:
    mount_point, file_system = find_mount(path)
    if file_system in NETWORK_FILE_SYSTEMS and mount_point not in _warned_mounts:
        _warned_mounts.add(mount_point)
        logger.warning(
            "%s is on a network file system (%s): only if its server supports locks is a folder safe from "
            "processes on other machines",
            mount_point, file_system,
        )  # fmt: skip


def find_mount(path: Path, mount_table: Path = Path("/proc/self/mounts")) -> tuple[str, str]:
    """Return the mount point and the type of the file system of an absolute path; empty if they are unknown."""
    mount_point = file_system = ""
    with suppress(OSError):
        for line in mount_table.read_text(errors="replace").splitlines():
            _, point, kind, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            if path.is_relative_to(point) and len(point) >= len(mount_point):  # later mounts hide earlier ones
                mount_point, file_system = point, kind
    return mount_point, file_system
