"""Commands that are killed, or find the disk full, at any file operation or time and repeated write the same files.

The long version (`-m slow`) covers every command that writes. Training runs that are killed, or find the disk full,
are also in `tests/train/test_resume.py` and `tests/finetuning/test_resume_finetuning.py`.
"""

import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.harness import KILLED, NO_FAULT, Fault, contents, differences, run_with_fault
from tests.faults.writers import WRITERS, Inputs, Writer, prepare_folder
from tests.support.commands import CommandResult

NUM_KILLS, NUM_FULL, NUM_SIZES = 4, 3, 2  # of each command, in the long version
EXHAUSTIVE = ("tokenizer train", "prepare", "finetune", "predict")  # here the disk is full at every operation
EVERY_WRITER = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
BY_NAME = {writer.name: writer for writer in WRITERS}


def quick(*names: str) -> pytest.MarkDecorator:
    """Select the commands of the short version."""
    return pytest.mark.parametrize("writer", [BY_NAME[name] for name in names], ids=lambda writer: writer.name)


def start(writer: Writer, inputs: Inputs, folder: Path) -> Path:
    """Create a folder with what has to be there before the command, and return the output to write in it."""
    folder.mkdir()
    out = folder / f"out{writer.suffix}"
    prepare_folder(writer, inputs, out)
    return out


def restart(writer: Writer, inputs: Inputs) -> Path:
    """Start in a folder that is always the same, because some outputs contain its path."""
    folder = inputs.folder.parent / "case"
    shutil.rmtree(folder, ignore_errors=True)
    return start(writer, inputs, folder)


def repeat(writer: Writer, inputs: Inputs, out: Path, fault: Fault = NO_FAULT) -> int:
    """Run the command again, as its user would: with `--resume` if it has that option and there is something left."""
    command = writer.args(inputs, out)
    result, _ = run_with_fault([*command, *writer.resume], out.parent, fault)
    if writer.resume and re.search("nothing to resume|already exists", result.err):
        result, _ = run_with_fault(command, out.parent, fault)
    is_finished = result.status == 2 and re.search("already (exists|holds)", result.err)  # after the last file
    assert result.status in (0, KILLED) or is_finished, result.err
    return result.status


def verify(out: Path) -> None:
    """Check the hashes of a folder."""
    if out.is_dir():
        result, _ = run_with_fault(["verify", out], out.parent)
        assert result.status == 0, result.err


@pytest.fixture(scope="session")
def complete(inputs):
    """Run a command once without a fault; return the contents of its folder and the number of its file operations."""
    known = {}

    def run(writer: Writer) -> tuple[dict[str, object], int, list[int]]:
        if writer.name not in known:
            out = restart(writer, inputs)
            result, num_operations = run_with_fault(writer.args(inputs, out), out.parent)
            assert result.status == 0, result.err
            verify(out)
            sizes = sorted({p.stat().st_size for p in out.parent.rglob("*") if p.is_file() and p.stat().st_size > 1})
            known[writer.name] = contents(out.parent), num_operations, sizes
        return known[writer.name]

    return run


def check_kills(writer: Writer, inputs: Inputs, complete, num_points: int) -> None:
    """Kill a command at some of its file operations, and once more when it is repeated."""
    expected, num_operations, _ = complete(writer)
    rng = random.Random(writer.name)
    for at in sorted(rng.sample(range(1, num_operations + 1), min(num_points, num_operations))):
        out = restart(writer, inputs)
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, Fault("kill", at))
        assert result.status == KILLED, f"operation {at} of {num_operations}: {result.err}"
        if repeat(writer, inputs, out, Fault("kill", rng.randint(1, num_operations))) == KILLED:
            repeat(writer, inputs, out)
        assert not differences(contents(out.parent), expected), f"killed at operation {at} of {num_operations}"
        verify(out)


@quick("prepare")
def test_killed_at_a_file_operation(writer, inputs, complete):
    check_kills(writer, inputs, complete, 1)


@pytest.mark.slow
@EVERY_WRITER
def test_killed_at_many_file_operations(writer, inputs, complete):
    check_kills(writer, inputs, complete, NUM_KILLS)


@pytest.mark.slow
@EVERY_WRITER
def test_killed_at_any_time(writer, inputs, complete):
    """SIGKILL from outside, three times; the last call is not killed."""
    expected, _, _ = complete(writer)
    out = restart(writer, inputs)
    start_time = time.monotonic()
    run_with_fault(writer.args(inputs, out), out.parent)
    seconds = time.monotonic() - start_time
    rng = random.Random(writer.name)
    out = restart(writer, inputs)
    for resume in ((), writer.resume, writer.resume):
        run_with_fault([*writer.args(inputs, out), *resume], out.parent, seconds=rng.uniform(0.1, 0.9) * seconds)
    repeat(writer, inputs, out)
    assert not differences(contents(out.parent), expected)
    verify(out)


def check_message(result: CommandResult) -> None:
    """Check that a command failed with one line that names the reason."""
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert result.status == 2 and "Traceback" not in result.err and len(errors) == 1, result.err
    assert re.search("cannot write|too large|space", errors[0], re.I), result.err


def check_recovery(writer: Writer, inputs: Inputs, out: Path, expected: dict[str, object]) -> None:
    """Check that there are no temporary files, and that the command completes once there is space."""
    kept = "out/cache/rows.lock"  # of a study
    hidden = [name for name in contents(out.parent) if re.search(r"\.(part|old|lock)$", name) and name != kept]
    assert not hidden or writer.resume, hidden
    repeat(writer, inputs, out)
    assert not differences(contents(out.parent), expected)
    verify(out)


def check_full_disk(writer: Writer, inputs: Inputs, complete, num_points: int) -> None:
    """Let the disk be full from some of the file operations on."""
    expected, num_operations, _ = complete(writer)
    for at in sorted(random.Random(writer.name).sample(range(1, num_operations + 1), min(num_points, num_operations))):
        out = restart(writer, inputs)
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, Fault("full", at))
        if result.status != 0:  # 0: only renames and removals came after this operation
            check_message(result)
        check_recovery(writer, inputs, out, expected)


def check_file_sizes(writer: Writer, inputs: Inputs, complete, num_points: int) -> None:
    """No file may become larger than one of those that the command writes, less a byte."""
    expected, _, sizes = complete(writer)
    for size in random.Random(writer.name).sample(sizes, min(num_points, len(sizes))):
        out = restart(writer, inputs)
        result, _ = run_with_fault(writer.args(inputs, out), out.parent, max_file_bytes=size - 1)
        check_message(result)
        check_recovery(writer, inputs, out, expected)


@quick("predict")
def test_disk_full_from_an_operation_on(writer, inputs, complete):
    check_full_disk(writer, inputs, complete, 1)


@quick("embed")
def test_file_that_is_cut_off(writer, inputs, complete):
    check_file_sizes(writer, inputs, complete, 1)


@pytest.mark.slow
@EVERY_WRITER
def test_disk_full_from_many_operations_on(writer, inputs, complete):
    check_full_disk(writer, inputs, complete, 10_000 if writer.name in EXHAUSTIVE else NUM_FULL)


@pytest.mark.slow
@EVERY_WRITER
def test_many_files_that_are_cut_off(writer, inputs, complete):
    check_file_sizes(writer, inputs, complete, NUM_SIZES)


def test_threads_do_not_print_after_an_error(project, tmp_path):
    """In a process of its own, because threads that outlive the failed command must not print either."""
    command = [sys.executable, "-m", "polyseme", "pretrain", project / "bert.json", "--corpus",
               project / "corpus-bert", "--out", tmp_path / "run"]  # fmt: skip
    limited = f"ulimit -f 60; exec {shlex.join(map(str, command))}"  # in blocks of 1,024 bytes
    process = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=120)
    check_message(CommandResult(process.returncode, process.stdout, process.stderr))
    assert len(process.stderr.splitlines()) == 1
    assert not list((tmp_path / "run").rglob("step-*")) and not (tmp_path / "run/model").exists()
