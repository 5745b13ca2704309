"""Atomic writes: what is written is synced before it is renamed, and the folder after; a failure changes nothing."""

import os
import posix
from pathlib import Path

import numpy as np
import pytest

from polyseme.corpus.build import blocks
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.errors import ConfigError, DataError
from polyseme.io import atomic
from polyseme.text.tokenizer import Tokenizer
from tests.support.text import documents


@pytest.fixture
def events(monkeypatch):
    """Record calls of `os.fsync`, which `conftest.py` disables for other tests, and `os.replace`, in order."""
    calls = []
    real_replace = os.replace

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("fsync", path.name, path.stat().st_size if path.is_file() else None))
        posix.fsync(descriptor)

    def replace(source, target):
        calls.append(("replace", Path(source).name, Path(target).name))
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
