"""A corpus folder while it is being made: one run at a time, no leftovers taken for more than they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from polyseme.corpus.build import blocks
from polyseme.corpus.build import prepare as module
from polyseme.corpus.build import state as begun
from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:12]
TOKENIZER = Tokenizer.train("wordpiece", iter(TEXTS), 500)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for number, name in enumerate("abc"):
        found[name] = tmp_path / f"{name}.jsonl"
        rows = [json.dumps({"text": text, "more": text[::-1]}) for text in TEXTS[4 * number : 4 * number + 4]]
        found[name].write_text("\n".join(rows))
    return found


def make(source: Path | str, out: Path, **options: Any) -> dict[str, Any]:
    return prepare([source], TOKENIZER, out, **({"num_workers": 1, "shard_characters": 9000} | options))


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Killed(BaseException):
    pass


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_two_at_once(files: dict[str, Path], tmp_path: Path) -> None:
    with begun.exclusive_workdir(tmp_path / "out") as work:
        (work / "shard-00000.json").write_text("{}")
        with pytest.raises(PolysemeError, match="another prepare is at work in"):
            make(files["a"], tmp_path / "out")
        assert (work / "shard-00000.json").exists()


def test_a_kill_before_the_plan_is_written(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(begun, "rollback", killed)  # a real kill runs no clean-up
        patch.setattr(begun, "write_json", killed)
        make(files["a"], tmp_path / "out")
    assert (tmp_path / "out/tokenizer").exists()
    make(files["a"], tmp_path / "out")
    verify_corpus(tmp_path / "out")


@pytest.mark.parametrize("left", ["all", "no plan"])
def test_a_kill_while_tidying_up(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """What a finished run left is not taken for the next one's."""
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "remove_temporary", killed)
        make(files["a"], tmp_path / "out")
    if left == "no plan":
        (tmp_path / "out/.work/plan.json").unlink()
    make(files["b"], tmp_path / "out", append=True)
    make(files["a"], tmp_path / "whole")
    make(files["b"], tmp_path / "whole", append=True)
    assert Corpus.open(tmp_path / "out", verify_hashes=True).manifest == Corpus.open(tmp_path / "whole").manifest
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_nothing_is_left_of_a_run_that_leaves_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in ("mine", "new"):
        with pytest.raises(PolysemeError, match="nothing is left of this text"):
            make(files["a"], tmp_path / out, clean="min_chars=1000000")
    assert not tree(tmp_path / "mine") and not (tmp_path / "new").exists()


def test_an_error_after_the_first_file_leaves_nothing(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = module.write_array, []

    def full(*given: Any) -> None:
        calls.append(given)
        if len(calls) > 1:
            raise PolysemeError("cannot write: no space")
        real(*given)

    with monkeypatch.context() as patch, pytest.raises(PolysemeError, match="no space"):
        patch.setattr(module, "write_array", full)
        make(files["a"], tmp_path / "out", dedup="none")
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_is_noticed(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.find_duplicates

    def change(*given: Any, **named: Any) -> Any:
        files["a"].write_text(json.dumps({"text": "Another text."}))
        return real(*given, **named)

    monkeypatch.setattr(module, "find_duplicates", change)
    with pytest.raises(PolysemeError, match=r"a\.jsonl has changed while it was read"):
        make(files["a"], tmp_path / "out")


def test_what_is_in_a_corpus_already(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(files["a"], out)
    make(f"{files['b']}::weight=2", out, append=True)
    whole = make(files["a"], out)  # the first line of a script, run again
    assert make(files["a"], out, append=True) == make(f"{files['b']}::weight=2", out, append=True) == whole
    with pytest.raises(PolysemeError, match=r"b\.jsonl is in .* already, with weight 2\.0, not 1\.0"):
        make(files["b"], out, append=True)
    assert len(make(f"{files['a']}::key=more", out, append=True)["sources"]) == 3  # another column is another text
    with pytest.raises(PolysemeError, match="other sources"):
        make(files["c"], out)


def test_an_unfinished_append_and_another_one(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make(files["a"], out)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module._PreparationRun, "write_shards", killed)
        make(files["b"], out, append=True)
    with pytest.raises(PolysemeError, match=r"run that again to finish it, or remove .*\.work to drop it"):
        make(files["c"], out, append=True)
    assert len(make(files["b"], out, append=True)["sources"]) == 2
    verify_corpus(out)


def test_the_corpus_inside_its_own_source(files: dict[str, Path], tmp_path: Path) -> None:
    made = make(tmp_path, tmp_path / "corpus")
    assert make(tmp_path, tmp_path / "corpus") == made and len(made["source_files"]) == 3
    assert (
        make(tmp_path, tmp_path / "other")["source_files"] == made["source_files"]
    )  # nor is the first one read as text


def test_many_short_documents_close_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_DOCUMENTS", 10)
    monkeypatch.setattr(blocks, "MAX_SHARD_DOCUMENTS", 25)
    (tmp_path / "lines.txt").write_text("\n".join(f"Line number {i} of many." for i in range(100)))
    assert len(make(tmp_path / "lines.txt", tmp_path / "out", split="line", dedup="none")["shards"]) == 4


def test_a_pipe_by_name_is_refused_with_the_way_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolysemeError, match="pipe it in and read -"):
        make(tmp_path / "pipe", tmp_path / "out")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_what_one_may_not_expect_is_said(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("py3langid")
    (tmp_path / "picture.bin").write_bytes(b"x")
    make(tmp_path, tmp_path / "out", clean="language", lang="eng")
    said = capsys.readouterr().err
    assert "1 files of other kinds were passed over" in said and "picture.bin" in said
    assert "the language step cannot judge eng" in said
