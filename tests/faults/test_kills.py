"""A command that is killed at any file operation, or at any time, and repeated ends with the same files."""

import random
import time
from pathlib import Path

import pytest

from tests.faults.harness import KILLED, NO_FAULT, Fault, contents, differences, run_with_fault
from tests.faults.writers import WRITERS, Inputs, Writer, prepare_folder

QUICK = [writer for writer in WRITERS if writer.is_quick]
POINTS = 8  # for each command, in the long version


def start(writer: Writer, inputs: Inputs, folder: Path) -> Path:
    """Create a folder with what has to be there before the command, and return the output to write in it."""
    folder.mkdir()
    out = folder / f"out{writer.suffix}"
    prepare_folder(writer, inputs, out)
    return out


def repeat(writer: Writer, inputs: Inputs, out: Path, fault: Fault = NO_FAULT) -> int:
    """Run the command again, as its user would: with `--resume` if it has that option and there is something left."""
    command = writer.args(inputs, out)
    result, _ = run_with_fault([*command, *writer.resume], out.parent, fault)
    if writer.resume and "nothing to resume" in result.err:
        result, _ = run_with_fault(command, out.parent, fault)
    is_finished = result.status == 2 and "already exists" in result.err  # the kill came after the last file
    assert result.status in (0, KILLED) or is_finished, result.err
    return result.status


def complete(writer: Writer, inputs: Inputs, folder: Path) -> tuple[dict[str, object], int]:
    """Run a command without a fault; return the contents of its folder and the number of its file operations."""
    out = start(writer, inputs, folder)
    result, num_operations = run_with_fault(writer.args(inputs, out), folder)
    assert result.status == 0, result.err
    return contents(folder), num_operations


def check_kills(writer: Writer, inputs: Inputs, tmp_path: Path, num_points: int) -> None:
    expected, num_operations = complete(writer, inputs, tmp_path / "whole")
    rng = random.Random(writer.name)
    for at in sorted(rng.sample(range(1, num_operations + 1), min(num_points, num_operations))):
        out = start(writer, inputs, tmp_path / str(at))
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, Fault("kill", at))
        assert result.status == KILLED, f"operation {at} of {num_operations}: {result.err}"
        if repeat(writer, inputs, out, Fault("kill", rng.randint(1, num_operations))) == KILLED:
            repeat(writer, inputs, out)
        assert not differences(contents(out.parent), expected), f"killed at operation {at} of {num_operations}"


@pytest.mark.parametrize("writer", QUICK, ids=lambda writer: writer.name)
def test_killed_at_a_file_operation(writer, inputs, tmp_path):
    check_kills(writer, inputs, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_killed_at_many_file_operations(writer, inputs, tmp_path):
    check_kills(writer, inputs, tmp_path, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_killed_at_any_time(writer, inputs, tmp_path):
    """SIGKILL from outside, three times; the last call is not killed."""
    began = time.monotonic()
    expected, _ = complete(writer, inputs, tmp_path / "whole")
    duration = time.monotonic() - began
    rng = random.Random(writer.name)
    out = start(writer, inputs, tmp_path / "killed")
    run_with_fault(writer.args(inputs, out), out.parent, seconds=rng.uniform(0.1, 0.9) * duration)
    for _ in range(2):
        run_with_fault(
            [*writer.args(inputs, out), *writer.resume], out.parent, seconds=rng.uniform(0.1, 0.9) * duration
        )
    repeat(writer, inputs, out)
    assert not differences(contents(out.parent), expected)
