"""A disk that is full from any write on: an error of one line, no partial output, and the command can be repeated."""

import random
import re
from pathlib import Path

import pytest

from tests.faults.harness import Fault, contents, differences, run_with_fault
from tests.faults.test_kills import complete, repeat, start
from tests.faults.writers import WRITERS, Inputs, Writer
from tests.support.commands import CommandResult

QUICK = [writer for writer in WRITERS if writer.is_quick or writer.name in ("tokenizer train", "predict", "embed")]
POINTS = 6  # for each command, in the long version


def check_message(result: CommandResult) -> None:
    """Check that a command failed with one line that names the reason."""
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert result.status == 2 and "Traceback" not in result.err and len(errors) == 1, result.err
    assert re.search("cannot write|too large|space", errors[0], re.I), result.err


def check_recovery(writer: Writer, inputs: Inputs, out: Path, expected: dict[str, object]) -> None:
    """Check that there are no temporary files, and that the command completes once there is space."""
    hidden = [name for name in contents(out.parent) if re.search(r"\.part$|\.old$", name)]
    assert not hidden or writer.resume, hidden
    repeat(writer, inputs, out)
    assert not differences(contents(out.parent), expected)


def check_full_disk(writer: Writer, inputs: Inputs, tmp_path: Path, num_points: int) -> None:
    expected, num_operations = complete(writer, inputs, tmp_path / "whole")
    rng = random.Random(writer.name)
    for at in sorted(rng.sample(range(1, num_operations + 1), min(num_points, num_operations))):
        out = start(writer, inputs, tmp_path / str(at))
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, Fault("full", at))
        if result.status != 0:  # 0: only renames and removals came after this operation
            check_message(result)
        check_recovery(writer, inputs, out, expected)


def check_file_sizes(writer: Writer, inputs: Inputs, tmp_path: Path, num_points: int) -> None:
    """No file may become larger than one of those that the command writes, less a byte."""
    expected, _ = complete(writer, inputs, tmp_path / "whole")
    sizes = sorted(
        {p.stat().st_size - 1 for p in (tmp_path / "whole").rglob("*") if p.is_file() and p.stat().st_size > 1}
    )
    for limit in random.Random(writer.name).sample(sizes, min(num_points, len(sizes))):
        out = start(writer, inputs, tmp_path / f"limit-{limit}")
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, max_file_bytes=limit)
        check_message(result)
        check_recovery(writer, inputs, out, expected)


@pytest.mark.parametrize("writer", QUICK, ids=lambda writer: writer.name)
def test_full_from_an_operation_on(writer, inputs, tmp_path):
    check_full_disk(writer, inputs, tmp_path, 1)


@pytest.mark.parametrize("writer", QUICK, ids=lambda writer: writer.name)
def test_file_that_is_cut_off(writer, inputs, tmp_path):
    check_file_sizes(writer, inputs, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_full_at_many_operations(writer, inputs, tmp_path):
    check_full_disk(writer, inputs, tmp_path, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_many_files_that_are_cut_off(writer, inputs, tmp_path):
    check_file_sizes(writer, inputs, tmp_path, POINTS)
