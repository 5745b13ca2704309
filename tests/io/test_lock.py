"""Locks of folders: one process at a time, released when it ends, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from polyseme.errors import ConfigError, DataError
from polyseme.io import lock
from polyseme.io.atomic import ensure_new_directory, is_temporary
from polyseme.io.lock import find_mount, lock_folder

HOLD = """
import sys
from pathlib import Path
from polyseme.io.lock import lock_folder
with lock_folder(Path(sys.argv[1]), "pretrain"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Start processes that hold the lock of a folder until their standard input is closed."""
    started = []

    def start(folder):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        started.append(process)
        assert process.stdout.readline() == b"locked\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_process_is_told_who_writes_until_the_first_ends(tmp_path, holder):
    out = tmp_path / "new" / "run"
    first = holder(out)
    message = rf"run is being written by process {first.pid} on host \S+ \(pretrain, since [-\d]+ \d\d:\d\d\): wait"
    with pytest.raises(ConfigError, match=message), lock_folder(out):
        pass
    with lock_folder(out.with_name("other")):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    ensure_new_directory(out)
    assert [is_temporary(path) for path in (tmp_path / "new").iterdir()] == [True]
    with lock_folder(out):
        out.mkdir()
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    holder(out).communicate(b"")
    assert [path.name for path in out.parent.iterdir()] == ["run"]


def test_every_command_that_writes_a_folder_takes_its_lock(project, tmp_path, holder, rejects):
    model, out = project / "run-bert/model", tmp_path / "out"
    first = holder(out)
    (tmp_path / "empty").mkdir()
    examples = ("--train", project / "classification-train.tsv", "--dev", project / "classification-dev.tsv")
    for command in (
        ("tokenizer", "train", project / "text.txt", "--vocab-size", 300),
        ("tokenizer", "import", project / "tok-bert"),
        ("prepare", project / "text.txt", "--tokenizer", project / "tok-bert"),
        ("pairs", project / "text.txt", "--tokenizer", project / "tok-bert"),
        ("pretrain", project / "bert.json", "--corpus", project / "corpus-bert"),
        ("pretrain", "ngram-3", "--corpus", project / "corpus-bert"),
        ("finetune", model, "--task", "classification", *examples),
        ("ulmfit", *examples, "--text", project / "text.txt"),
        ("benchmark", "glue", model, "--data", tmp_path / "empty"),
        ("arpa", "import", tmp_path / "empty"),
        ("vectors", "import", tmp_path / "empty"),
        ("demo",),
    ):
        rejects(*command, "--out", out, match=f"out is being written by process {first.pid}")


def test_a_thread_may_lock_a_folder_twice_but_another_may_not(tmp_path):
    errors = []

    def lock_again():
        try:
            with lock_folder(tmp_path / "run"):
                pass
        except ConfigError as error:
            errors.append(str(error))

    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    with lock_folder(tmp_path / "run"), lock_folder(tmp_path / "run" / "inner"):
        with lock_folder(link):
            pass
        thread = threading.Thread(target=lock_again)
        thread.start()
        thread.join()
        assert (tmp_path / ".run.lock").exists()
    assert len(errors) == 1 and "another thread" in errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    lock_again()
    assert len(errors) == 1


def test_a_lock_file_removed_by_its_owner_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """Its owner removes it after we opened it: another process may have locked a new one since."""
    real_open, opened = os.open, []

    def remove_first(path, flags, mode=0o777):
        descriptor = real_open(path, flags, mode)
        opened.append(path)
        if len(opened) == 1:
            path.unlink()
        return descriptor

    monkeypatch.setattr(lock.os, "open", remove_first)
    with lock_folder(tmp_path / "run"):
        assert len(opened) == 2 and (tmp_path / ".run.lock").exists()


def test_errors_leave_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path / "a" / "b" / "run"):
        raise ZeroDivisionError
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write .*run: File exists"), lock_folder(tmp_path / "file" / "run"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_a_read_only_one_is_locked_inside(tmp_path, monkeypatch):
    real_open = os.open

    def deny_outside(path, flags, mode=0o777):
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, mode)

    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(lock.os, "open", deny_outside)
    with lock_folder(tmp_path / "volume"):
        assert (tmp_path / "volume" / ".lock").exists()
        ensure_new_directory(tmp_path / "volume")
    assert not list((tmp_path / "volume").iterdir())
    with pytest.raises(DataError, match="Permission denied"), lock_folder(tmp_path / "missing"):
        pass


def test_a_network_file_system_gets_a_warning(tmp_path, monkeypatch, capsys):
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/sda / ext4 rw 0 0\nserver:/x /my\\040data nfs4 rw 0 0\n/dev/sdb /my\\040data/local xfs rw 0 0\n"
    )
    paths = ("/my data/run", "/my data/local/run", "/my database")
    assert [find_mount(lock.Path(path), table) for path in paths] == [
        ("/my data", "nfs4"), ("/my data/local", "xfs"), ("/", "ext4"),
    ]  # fmt: skip
    monkeypatch.setattr(lock, "find_mount", lambda path: ("/data", "nfs4"))
    for _ in range(2):
        with lock_folder(tmp_path / "run"):
            pass
    assert re.fullmatch(r"/data is on a network file system \(nfs4\): .*\n", capsys.readouterr().err)


def test_a_file_system_without_locks_gets_a_warning(tmp_path, monkeypatch, capsys):
    def fail(descriptor, operation):
        raise OSError(lock.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "lockf", fail)
    with lock_folder(tmp_path / "run"):
        pass
    assert "without locks" in capsys.readouterr().err and not list(tmp_path.iterdir())
