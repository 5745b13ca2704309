"""Output in windows: what an interrupted run leaves, what a later run makes of it, and what it refuses."""

import json
from functools import partial
from pathlib import Path

import pytest

from polyseme.errors import ConfigError, DataError
from polyseme.io.partial import PartialOutput, install_parts, part_path

ROWS = [b"one\n", b"two\n", b"three\n"]


def open_output(out, resume=False, **settings):
    targets = {part_path(out): out}
    return PartialOutput(out, list(targets), partial(install_parts, targets), lambda: settings, resume)


def write(output, rows=ROWS, stop_after=None):
    """Write the windows that are missing; an interruption comes after the checkpoint of window `stop_after`."""
    with output:
        for i in range(output.num_windows, len(rows)):
            output.summary["sum"] = output.summary.get("sum", 0) + i
            output.append([rows[i]], 2)
            output.checkpoint()
            if i == stop_after:
                raise KeyboardInterrupt
        output.finish([b"end\n"])


def interrupt(out, stop_after=1, **settings):
    with pytest.raises(KeyboardInterrupt):
        write(open_output(out, **settings), stop_after=stop_after)


@pytest.mark.parametrize("stop_after", range(3))
def test_a_resumed_output_has_the_same_bytes(tmp_path, stop_after):
    out = tmp_path / "a.txt"
    interrupt(out, stop_after)
    assert not out.exists()
    with open(part_path(out), "ab") as part:
        part.write(b"half of a wind")  # as a kill leaves it
    output = open_output(out, resume=True)
    assert (output.num_windows, output.num_rows) == (stop_after + 1, 2 * (stop_after + 1))
    write(output)
    assert out.read_bytes() == b"one\ntwo\nthree\nend\n" and output.summary == {"sum": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_leftover_is_reported(tmp_path):
    out = tmp_path / "a.txt"
    interrupt(out)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        ConfigError, match=r"first 4 rows are saved: resume the run, or remove .*\.a\.txt\.resume\.json"
    ):
        open_output(out)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_other_settings_cannot_resume(tmp_path):
    out = tmp_path / "a.txt"
    interrupt(out, input="12", layers=[1, 2], truncate=False)
    same = {"input": "12", "layers": (1, 2), "truncate": False}
    for change, match in (
        ({"truncate": True}, "`truncate` is True and was False"),
        ({"input": "13"}, "the input differs"),
        ({"new": 1}, "`new` is 1 and was None"),
    ):
        with pytest.raises(ConfigError, match=match):
            open_output(out, resume=True, **(same | change))
    write(open_output(out, resume=True, **same))


def test_nothing_to_resume(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing to resume of .*a.txt: leave out `resume`"):
        open_output(tmp_path / "a.txt", resume=True)
    write(open_output(tmp_path / "a.txt"))
    with pytest.raises(ConfigError, match=r"nothing to resume of .*a.txt, which is complete"):
        open_output(tmp_path / "a.txt", resume=True)


def test_damaged_parts_are_errors(tmp_path):
    out = tmp_path / "a.txt"
    interrupt(out)
    part, state = part_path(out), tmp_path / ".a.txt.resume.json"
    content = part.read_bytes()
    for damaged in (content[:-1], content[:-1] + b"!", b""):
        part.write_bytes(damaged)
        with pytest.raises(DataError, match=r"rows\.part is damaged: remove .*resume\.json to start over"):
            open_output(out, resume=True)
    part.write_bytes(content)
    original = json.loads(state.read_text())
    for changes in ({"num_rows": "4"}, {"sizes": []}, {"settings": None}):
        state.write_text(json.dumps(original | changes))
        with pytest.raises(DataError, match=r"resume.json is damaged: remove it to start over"):
            open_output(out, resume=True)
    state.write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        open_output(out, resume=True)


def test_a_kill_while_the_parts_are_renamed(tmp_path, monkeypatch):
    out, second = tmp_path / "a.txt", tmp_path / "b.txt"
    targets = {part_path(second): second, part_path(out): out}

    def open_two(resume):
        return PartialOutput(out, list(targets), lambda: install_parts(targets), dict, resume)

    def run(output):
        with output:
            for _ in range(output.num_windows, 2):
                output.append([b"b", b"a"], 1)
                output.checkpoint()
            output.finish([b"B", b"A"])

    with monkeypatch.context() as patch:
        patch.setitem(targets, part_path(out), tmp_path / "missing" / "a.txt")
        with pytest.raises(DataError, match="resume the run"):
            run(open_two(False))
    assert second.read_bytes() == b"bbB" and not out.exists()
    run(open_two(True))
    assert (out.read_bytes(), second.read_bytes()) == (b"aaA", b"bbB")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_kill_while_the_parts_are_removed(tmp_path, monkeypatch):
    out = tmp_path / "a.txt"
    parts = [part_path(out, name) for name in ("x", "y")]

    def install():
        if all(part.exists() for part in parts):
            out.write_bytes(b"".join(part.read_bytes() for part in parts))

    def run(resume):
        with PartialOutput(out, parts, install, dict, resume) as output:
            for _ in range(output.num_windows, 2):
                output.append([b"x", b"y"], 1)
                output.checkpoint()
            output.finish([b"", b""])

    def kill(path, missing_ok=False):
        unlink(path, missing_ok)
        raise KeyboardInterrupt

    unlink = Path.unlink
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", kill)
        run(resume=False)
    assert out.read_bytes() == b"xxyy" and len(list(tmp_path.iterdir())) == 3
    run(resume=True)
    assert out.read_bytes() == b"xxyy" and list(tmp_path.iterdir()) == [out]


def test_a_single_window_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "a.txt") as output:
        output.append([b"one"], 1)
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_full_disk_can_be_resumed(tmp_path, monkeypatch):
    out = tmp_path / "a.txt"

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"No space left.*free space, then resume the run"), open_output(out) as output:
        output.append([ROWS[0]], 2)
        output.checkpoint()
        output.append([ROWS[1]], 2)
        monkeypatch.setattr("os.fsync", fail)
        output.checkpoint()
    monkeypatch.undo()
    write(open_output(out, resume=True))
    assert out.read_bytes() == b"one\ntwo\nthree\nend\n"


def test_two_processes_do_not_write_one_output(tmp_path):
    with open_output(tmp_path / "a.txt") as first:
        first.append([b"one"], 1)
        with pytest.raises(ConfigError, match="another process is writing"), open_output(tmp_path / "a.txt") as second:
            second.append([b"two"], 1)
        first.finish([b""])
    assert (tmp_path / "a.txt").read_bytes() == b"one"
