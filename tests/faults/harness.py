"""Run commands in child processes that die, or find the disk full, at a chosen file operation."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from tests.support.commands import CommandResult, cli

# A server that has imported everything and never ran a backward pass forks the children, so that each starts at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.preload"])
TIMEOUT_SECONDS = 240
KILLED = 128 + signal.SIGKILL
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
_NEEDS_SPACE = ("open", "os.mkdir")
# Measured times, and hashes of files that contain them.
_PAGES = ("report.html", "compression.html")  # which show times
_MEASURED = {
    *("seconds", "tokens_per_second", "device_hours", "examples_per_second", "ms_per_text", "minutes", "spent"),
    *("sha256", "hash", "hashes", "created", "train_seconds", "predict_seconds", "files", "date", "wall_seconds"),
}


@dataclass(frozen=True)
class Fault:
    """What happens at the file operation number `at` inside `folder`: a kill, or from there on a full disk."""

    kind: Literal["none", "kill", "full"] = "none"
    at: int = 0


NO_FAULT = Fault()


def run_with_fault(
    args: Sequence[object], folder: Path, fault: Fault = NO_FAULT, seconds: float = 0, max_file_bytes: int = 0
) -> tuple[CommandResult, int]:
    """Run a command in a child; return its result (status 137 if it was killed) and its number of file operations.

    With `seconds` the child gets SIGKILL after that time, with `max_file_bytes` no file may become larger.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_run, args=(list(map(str, args)), str(folder), fault, max_file_bytes, sender))
    child.start()
    sender.close()
    answer = None
    with contextlib.suppress(EOFError):
        if receiver.poll(seconds or TIMEOUT_SECONDS):
            answer = receiver.recv()
    if answer is None:
        child.kill()
    child.join()
    if answer is not None:
        return answer
    assert seconds or fault.kind == "kill", f"{args} did not end, or died with status {child.exitcode}"
    return CommandResult(KILLED, "", ""), fault.at


def _run(args: list[str], folder: str, fault: Fault, max_file_bytes: int, sender: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    num_operations = 0

    def count(event: str, values: tuple[Any, ...]) -> None:
        nonlocal num_operations
        if event not in _OPERATIONS or not str(values[0]).startswith(folder):
            return
        if event == "open" and not _is_write(values[1], values[2]):
            return
        num_operations += 1
        if fault.kind == "kill" and num_operations == fault.at:
            os._exit(KILLED)
        if fault.kind == "full" and num_operations >= fault.at and event in _NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(values[0]))

    if max_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    sys.addaudithook(count)
    result = cli(*args)
    sender.send((result, num_operations))


def _is_write(mode: str | None, flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (mode is not None and any(c in mode for c in "wax+"))


def contents(path: Path) -> dict[str, object]:
    """Return the contents of a file or of all files below a folder, hidden ones too, without measured times."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    files = [p for p in sorted(path.rglob("*")) if p.is_file()]
    return {
        str(file.relative_to(path)): None if file.name in _PAGES else _content(file)
        for file in files
        if "tensorboard" not in file.parts  # whose files have the time in their names
    }


def _content(file: Path) -> object:
    if file.suffix == ".json":
        return _without_times(json.loads(file.read_text()))
    if file.name == "README.md":  # without the lines of times, and the hash of the text
        return [line for line in file.read_text().splitlines() if not re.search("hours|milliseconds|sha256", line)]
    if file.name == "report.md":  # of a study, without its seconds
        return re.sub("## Cost.*?(?=\n## )", "", file.read_text(), flags=re.DOTALL)
    if file.name == "SHA256SUMS":
        return [line.split("  ")[1] for line in file.read_text().splitlines()]  # names; hashes depend on times
    if file.name == "log.jsonl":
        return [_without_times(json.loads(line)) for line in file.read_text().splitlines()]
    return file.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        if str(value.get("measure")).startswith(("ms ", "megabytes")):  # a row of a table; files have times in them
            return None
        measured = {*_MEASURED, "size"} if isinstance(value.get("size"), float) else _MEASURED  # megabytes, not a name
        return {k: _without_times(v) for k, v in value.items() if k not in measured}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def differences(first: dict[str, object], second: dict[str, object]) -> list[str]:
    """Return the names of files that are missing in one of two contents, or differ."""
    return [name for name in sorted({*first, *second}) if first.get(name, ...) != second.get(name, ...)]
