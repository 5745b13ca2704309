"""Output files that are written window by window, and that a later run can resume.

Until it is complete, an output consists of hidden parts beside it, `.NAME.….part`, and of `.NAME.resume.json`, which
records the settings of the run and how much of each part is valid. An output of a single window needs no such record.
"""

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from polyseme.errors import ConfigError, DataError
from polyseme.io.atomic import fsync_path, wrap_os_errors
from polyseme.io.json import read_json, write_json

logger = logging.getLogger(__name__)
_BLOCK_SIZE = 1 << 20


def part_path(target: Path, name: str = "rows") -> Path:
    """Return the path of a part of an output file."""
    return target.with_name(f".{target.name}.{name}.part")


class PartialOutput:
    """The parts of an output until it is complete; use it as a context manager.

    `append` adds a window to each part, and `checkpoint` makes all windows so far survive a kill or a power failure.
    `finish` calls `install`, which turns the parts into the output. If the run is killed then, a resumed run calls it
    again, when some parts may already be renamed. `settings` returns what the content depends on; a run is resumed only
    with the same settings. `summary` holds small JSON values that are saved with the windows.
    """

    def __init__(
        self,
        out: Path,
        parts: Sequence[Path],
        install: Callable[[], None],
        settings: Callable[[], Mapping[str, Any]],
        resume: bool = False,
    ):
        self.out, self.parts, self.install, self._settings = out, tuple(parts), install, settings
        self.state_path = out.with_name(f".{out.name}.resume.json")
        self.num_windows = self.num_rows = 0
        self.summary: dict[str, Any] = {}
        self.is_resumable = self._is_complete = False
        self._sizes, self._checksums = [0] * len(self.parts), [0] * len(self.parts)
        self._files: list[BinaryIO] = []
        self._fingerprint: Any = None
        if resume:
            self._resume()
        elif self.state_path.exists():
            num_rows = self._read_state()["num_rows"]
            problem = f"{out} was interrupted, and its first {num_rows:,} rows are saved"
            raise ConfigError(f"{problem}: resume the run, or remove {self.state_path} to start over")

    def append(self, chunks: Sequence[bytes], num_rows: int) -> None:
        """Add a window of rows: its bytes for each part."""
        with self._write_errors():
            self._write(chunks)
        self.num_windows, self.num_rows = self.num_windows + 1, self.num_rows + num_rows

    def checkpoint(self) -> None:
        """Sync all windows so far, and record that they are valid."""
        with self._write_errors():
            self._sync()
            self._write_state()
        self.is_resumable = True

    def finish(self, footers: Sequence[bytes]) -> None:
        """Add the end of each part, and turn the parts into the output."""
        with self._write_errors():
            if not self._is_complete:
                self._write(footers)
                self._sync()
                self._is_complete = True
                if self.is_resumable:
                    self._write_state()
            self._close()
            self.install()
            for path in (*self.parts, self.state_path):
                path.unlink(missing_ok=True)
            fsync_path(self.out.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        has_files = bool(self._files)
        with suppress(OSError):
            self._close()
        if error is None or not (has_files or self._is_complete):
            return
        if not self.is_resumable:
            for path in (*self.parts, self.state_path):
                path.unlink(missing_ok=True)
        elif isinstance(error, KeyboardInterrupt):
            logger.warning(f"{self.out}: {self.num_rows:,} rows are saved and can be resumed")

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Raise a `DataError` if the disk is full, with how to go on from the last checkpoint."""
        try:
            with wrap_os_errors(self.out):
                yield
        except DataError as error:
            if not self.is_resumable:
                raise
            raise DataError(f"{error}; what is complete is saved: free space, then resume the run") from error

    def _open(self) -> None:
        """Open the parts, which no other process may write, and cut off what follows the last checkpoint."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        for path in self.parts:
            self._files.append(open(path, "r+b" if path.exists() else "w+b"))  # noqa: SIM115
        try:
            fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise ConfigError(f"another process is writing {self.out}") from None
        for path, file, size, checksum in zip(self.parts, self._files, self._sizes, self._checksums):
            if _checksum(file, size) != checksum:
                raise DataError(f"{path} is damaged: remove {self.state_path} to start over")
            file.truncate(size)
            file.seek(size)

    def _write(self, chunks: Sequence[bytes]) -> None:
        if not self._files:
            self._open()
        for i, (file, chunk) in enumerate(zip(self._files, chunks, strict=True)):
            file.write(chunk)
            self._sizes[i] += len(chunk)
            self._checksums[i] = zlib.crc32(chunk, self._checksums[i])

    def _sync(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def _close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()

    def _write_state(self) -> None:
        if self._fingerprint is None:
            self._fingerprint = json.loads(json.dumps(self._settings()))
        names = ("num_windows", "num_rows", "summary")
        parts = {"sizes": self._sizes, "checksums": self._checksums, "is_complete": self._is_complete}
        state = {"settings": self._fingerprint, **{name: getattr(self, name) for name in names}, **parts}
        write_json(self.state_path, state)

    def _read_state(self) -> dict[str, Any]:
        state = read_json(self.state_path)
        types = {"settings": dict, "num_windows": int, "num_rows": int, "summary": dict, "sizes": list,
                 "checksums": list, "is_complete": bool}  # fmt: skip
        if not isinstance(state, dict) or any(type(state.get(name)) is not kind for name, kind in types.items()):
            raise DataError(f"{self.state_path} is damaged: remove it to start over")
        return state

    def _resume(self) -> None:
        """Continue after the last checkpoint of a run with the same settings."""
        if not self.state_path.exists():
            exists = ", which is complete" if self.out.exists() else ""
            raise ConfigError(f"there is nothing to resume of {self.out}{exists}: leave out `resume`")
        state = self._read_state()
        self._fingerprint = json.loads(json.dumps(self._settings()))
        for name in (*self._fingerprint, *state["settings"]):
            now, then = self._fingerprint.get(name), state["settings"].get(name)
            if now != then:
                shown = (
                    f"`{name}` is {now!r} and was {then!r}" if name not in ("input", "model") else f"the {name} differs"
                )
                raise ConfigError(f"cannot resume {self.out}: {shown}; remove {self.state_path} to start over")
        if not len(state["sizes"]) == len(state["checksums"]) == len(self.parts):
            raise DataError(f"{self.state_path} is damaged: remove it to start over")
        self._sizes, self._checksums = state["sizes"], state["checksums"]
        self.num_windows, self.num_rows, self.summary = state["num_windows"], state["num_rows"], state["summary"]
        self.is_resumable, self._is_complete = True, state["is_complete"]
        if not self._is_complete:  # then parts may have become the output already
            with self._write_errors():
                self._open()


def install_parts(targets: Mapping[Path, Path]) -> None:
    """Rename each part to its target; a part that was renamed before is no error."""
    for part, target in targets.items():
        if part.exists():
            os.replace(part, target)


def _checksum(file: BinaryIO, size: int) -> int:
    """Return the CRC-32 of the first bytes of a file; -1 if it has fewer."""
    checksum = 0
    while size:
        block = file.read(min(size, _BLOCK_SIZE))
        if not block:
            return -1
        checksum, size = zlib.crc32(block, checksum), size - len(block)
    return checksum
