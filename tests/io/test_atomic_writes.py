"""Atomic writes: what is written is synced before it is renamed, and the folder after; a failure changes nothing."""

import os
import posix
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.corpus.build import blocks
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import ConfigError, DataError
from polyseme.io import atomic
from polyseme.text.tokenizer import Tokenizer
from tests.support.text import documents


@pytest.fixture
def events(monkeypatch):
    """Record calls of `os.fsync`, which `conftest.py` disables for other tests, and `os.replace`, in order.

    The parts of temporary names that differ from call to call are left out.
    """
    calls = []
    real_replace = os.replace

    def plain_name(path):
        return re.sub(r"\.[0-9a-f]{8}-\d+-[0-9a-f]{8}\.(part|old)$", r".\1", Path(path).name)

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("fsync", plain_name(path), path.stat().st_size if path.is_file() else None))
        posix.fsync(descriptor)

    def replace(source, target):
        calls.append(("replace", plain_name(source), plain_name(target)))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return calls


def test_file_is_synced_before_and_folder_after_the_rename(tmp_path, events):
    atomic.write_text(tmp_path / "folder" / "a.txt", "hello")
    assert events == [("fsync", ".a.txt.part", 5), ("replace", ".a.txt.part", "a.txt"), ("fsync", "folder", None)]
    assert (tmp_path / "folder" / "a.txt").read_text() == "hello"
    events.clear()
    atomic.write_array(tmp_path / "a.npy", [np.arange(3), np.arange(2)], np.uint16)
    assert [event[:2] for event in events] == [
        ("fsync", ".a.npy.part"), ("replace", ".a.npy.part"), ("fsync", tmp_path.name),
    ]  # fmt: skip
    assert events[0][2] == (tmp_path / "a.npy").stat().st_size  # it was complete when it was synced
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_everything_in_a_folder_is_synced_before_the_rename(tmp_path, events, is_replaced):
    out = tmp_path / "out"
    if is_replaced:
        out.mkdir()
        (out / "old.txt").write_text("old")
    with atomic.atomic_directory(out) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("abc")
        (folder / "b.txt").write_text("de")
    renames = [("replace", "out", ".out.old")] * is_replaced + [("replace", ".out.part", "out")]
    assert sorted(events[:3], key=str) == [("fsync", "a.txt", 3), ("fsync", "b.txt", 2), ("fsync", "inner", None)]
    assert events[3:] == [("fsync", ".out.part", None), *renames, ("fsync", tmp_path.name, None)]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "b.txt", "inner", "out"]


def test_a_failed_sync_leaves_the_old_file_and_folder(tmp_path, monkeypatch):
    atomic.write_text(tmp_path / "a.txt", "old")
    with atomic.atomic_directory(tmp_path / "out") as folder:
        (folder / "b.txt").write_text("old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match=r"cannot write .*a\.txt: No space left on device"):
        atomic.write_text(tmp_path / "a.txt", "new")
    with pytest.raises(DataError, match="No space left on device"), atomic.atomic_directory(tmp_path / "out") as folder:
        (folder / "b.txt").write_text("new")
    contents = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert contents == {"a.txt": "old", "b.txt": "old"} and not list(tmp_path.glob(".*"))


def test_the_manifest_of_a_corpus_is_renamed_after_everything_it_lists_is_synced(tmp_path, events, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_CHARS", 1000)
    (tmp_path / "text.txt").write_text("\n".join(documents(20)))
    tokenizer = Tokenizer.train("bpe", iter(documents(20)), 300)
    config = PrepareConfig(split="line", num_workers=1, shard_characters=1000)
    manifest = prepare([tmp_path / "text.txt"], tokenizer, tmp_path / "corpus", config)
    assert len(manifest["shards"]) > 2
    end = events.index(("replace", ".manifest.json.part", "manifest.json"))
    for name, facts in ((name, facts) for shard in manifest["shards"] for name, facts in shard["files"].items()):
        at = events.index(("replace", f".{name}.part", name))
        assert events[at - 1] == ("fsync", f".{name}.part", facts["bytes"]) and at < end
        assert events[at + 1] == ("fsync", "corpus", None)
    assert events[end + 1] == ("fsync", "corpus", None)


def test_existing_output_is_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    atomic.ensure_new_directory(tmp_path / "empty")
    atomic.ensure_new_file(tmp_path / "new")
    for check in (atomic.ensure_new_directory, atomic.ensure_new_file):
        with pytest.raises(ConfigError, match="file already exists"):
            check(tmp_path / "file")


# ---------------------------------------------------------------------------------------------- killed processes

HALT = """
import os, sys
from pathlib import Path
from polyseme.io import atomic

name, number = sys.argv[2], int(sys.argv[3])  # the process ends at this call of this function of `os`
real, calls = getattr(os, name), []
def halt(*args, **options):
    calls.append(args)
    if len(calls) == number:
        os._exit(9)
    return real(*args, **options)
setattr(os, name, halt)
with atomic.atomic_directory(Path(sys.argv[1])) as folder:
    (folder / "a.txt").write_text("new")
    atomic.write_text(folder / "b.txt", "new")
"""


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name, number", [
    ("mkdir", 1), ("replace", 1), ("fsync", 3), ("replace", 2), ("replace", 3), ("rmdir", 1), ("fsync", 6),
    ("fsync", 99),
])  # fmt: skip
def test_a_folder_survives_a_kill_at_any_call(tmp_path, name, number):
    """The next process that opens it, or writes to it, has the old or the new folder, and removes what is left."""
    out = tmp_path / "out"
    old, new = {"a.txt": "old", "b.txt": "old"}, {"a.txt": "new", "b.txt": "new"}
    out.mkdir()
    for file, text in old.items():
        (out / file).write_text(text)
    ended = subprocess.run([sys.executable, "-S", "-c", HALT, out, name, str(number)], timeout=60, env=os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path)
    })  # fmt: skip
    assert ended.returncode == (0 if number == 99 else 9)
    atomic.restore_directory(out)
    assert contents(out) in (old, new)
    with atomic.atomic_directory(out) as folder:
        (folder / "c.txt").write_text("newest")
    assert contents(tmp_path) == {"out/c.txt": "newest"} and not list(tmp_path.glob(".*"))


def leftover(folder, host="", pid=None, age=0.0):
    """Write a temporary as a process leaves it; by default one of this machine that has ended."""
    if pid is None:
        with subprocess.Popen(["true"]) as process:
            pid = process.pid
    path = folder / f".a.txt.{host or atomic._host_tag()}-{pid}-0123abcd.part"
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_temporaries_of_dead_processes_are_removed(tmp_path):
    running, other_machine = leftover(tmp_path, pid=os.getppid()), leftover(tmp_path, "0123abcd")
    dead, long_ago = leftover(tmp_path), leftover(tmp_path, "4567abcd", age=2 * 24 * 3600)
    assert not atomic.is_occupied(tmp_path) and all(map(atomic.is_temporary, (running, other_machine, dead, long_ago)))
    atomic.write_text(tmp_path / "b.txt", "b")
    assert running.exists() and other_machine.exists() and not dead.exists() and not long_ago.exists()
    assert atomic.is_occupied(tmp_path) and not atomic.is_temporary(tmp_path / "b.txt")


def test_two_writers_of_a_file_share_no_temporary(tmp_path):
    def write(temporary):
        atomic.write_text(tmp_path / "a.txt", "inner")
        temporary.write_text("outer")

    atomic.atomic_write(tmp_path / "a.txt", write)
    assert contents(tmp_path) == {"a.txt": "outer"}


def test_weights_have_the_permissions_of_other_files(tmp_path):
    atomic.write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    (tmp_path / "b").touch()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.safetensors", "b")]
    assert modes[0] == modes[1]
