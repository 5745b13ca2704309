"""The corpus folder during preparation: locking, leftovers of killed runs, resuming and appending."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from polyseme.corpus.build import blocks, stages
from polyseme.corpus.build import prepare as prepare_module
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:12]
TOKENIZER = Tokenizer.train("wordpiece", iter(TEXTS), 500)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for number, name in enumerate("abc"):
        paths[name] = tmp_path / f"{name}.jsonl"
        rows = [json.dumps({"text": text, "more": text[::-1]}) for text in TEXTS[4 * number : 4 * number + 4]]
        paths[name].write_text("\n".join(rows))
    return paths


def make(source: Path | str, out: Path, **options: Any) -> dict[str, Any]:
    return prepare([source], TOKENIZER, out, PrepareConfig(**({"num_workers": 1, "shard_characters": 9000} | options)))


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Killed(BaseException):
    pass


def raise_killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_concurrent_preparation_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    with prepare_module.exclusive_workdir(tmp_path / "out") as work, ThreadPoolExecutor() as pool:
        (work / "shard-00000.json").write_text("{}")
        with pytest.raises(PolysemeError, match="out is being written by another thread"):
            pool.submit(make, files["a"], tmp_path / "out").result()
        assert (work / "shard-00000.json").exists()
    assert not (tmp_path / ".out.lock").exists()


def test_kill_before_plan_is_written(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(prepare_module, "remove_unlisted", raise_killed)  # a real kill runs no cleanup
        patch.setattr(prepare_module, "write_json", raise_killed)
        make(files["a"], tmp_path / "out")
    assert (tmp_path / "out/tokenizer").exists()
    make(files["a"], tmp_path / "out")
    verify_corpus(tmp_path / "out")


@pytest.mark.parametrize("leftovers", ["all", "no plan"])
def test_kill_during_cleanup(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftovers: str
) -> None:
    """Leftovers of a finished run are not taken for those of the next one."""
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(prepare_module, "remove_unlisted", raise_killed)
        make(files["a"], tmp_path / "out")
    if leftovers == "no plan":
        (tmp_path / "out/.work/plan.json").unlink()
    make(files["b"], tmp_path / "out", append=True)
    make(files["a"], tmp_path / "whole")
    make(files["b"], tmp_path / "whole", append=True)
    verify_corpus(tmp_path / "out")
    assert Corpus.open(tmp_path / "out").manifest == Corpus.open(tmp_path / "whole").manifest
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_folder_is_restored_when_no_text_is_left(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in ("mine", "new"):
        with pytest.raises(PolysemeError, match="no text is left"):
            make(files["a"], tmp_path / out, clean="min_chars=1000000")
    assert not tree(tmp_path / "mine") and not (tmp_path / "new").exists()


def test_error_after_first_file_leaves_nothing(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = stages.write_array, []

    def write_or_fail(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise PolysemeError("cannot write: no space")
        real(*args)

    with monkeypatch.context() as patch, pytest.raises(PolysemeError, match="no space"):
        patch.setattr(stages, "write_array", write_or_fail)
        make(files["a"], tmp_path / "out", dedup="none")
    assert not (tmp_path / "out").exists()


def test_changed_source_is_detected(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stages.find_duplicates

    def change(*args: Any, **kwargs: Any) -> Any:
        files["a"].write_text(json.dumps({"text": "Another text."}))
        return real(*args, **kwargs)

    monkeypatch.setattr(stages, "find_duplicates", change)
    with pytest.raises(PolysemeError, match=r"a\.jsonl changed while it was read"):
        make(files["a"], tmp_path / "out")


def test_sources_already_in_the_corpus(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(files["a"], out)
    make(f"{files['b']}::weight=2", out, append=True)
    whole = make(files["a"], out)  # running the first command of a script again
    assert make(files["a"], out, append=True) == make(f"{files['b']}::weight=2", out, append=True) == whole
    with pytest.raises(PolysemeError, match=r"b\.jsonl is already in .*, with weight 2\.0, not 1\.0"):
        make(files["b"], out, append=True)
    assert len(make(f"{files['a']}::text=more", out, append=True)["sources"]) == 3  # another column is another source
    with pytest.raises(PolysemeError, match="other sources"):
        make(files["c"], out)


def test_fewer_more_or_changed_sources_are_an_error(files: dict[str, Path], tmp_path: Path) -> None:
    def prepare_all(*names: str) -> dict[str, Any]:
        config = PrepareConfig(clean="none", dedup="exact", num_workers=1)
        return prepare([files[name] for name in names], TOKENIZER, tmp_path / "out", config)

    manifest = prepare_all("a", "b")
    for names, difference in (
        ("a", r"not among the sources now: .*b\.jsonl"),
        ("abc", r"not in the corpus: .*c\.jsonl"),
        ("ac", r"not among the sources now: .*b\.jsonl; not in the corpus: .*c\.jsonl"),
        ("ba", "the same files in another order"),
    ):
        with pytest.raises(PolysemeError, match=rf"holds a corpus with other sources \({difference}"):
            prepare_all(*names)
    assert prepare_all("a", "b") == manifest
    files["b"].write_text(json.dumps({"text": "Another text."}))
    with pytest.raises(PolysemeError, match=r"changed since: .*b\.jsonl\): choose another folder"):
        prepare_all("a", "b")


def test_unfinished_append_must_be_finished_before_another(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make(files["a"], out)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(stages.Preparation, "write_shards", raise_killed)
        make(files["b"], out, append=True)
    with pytest.raises(PolysemeError, match=r"finish that one first, or remove .*\.work to discard it"):
        make(files["c"], out, append=True)
    assert len(make(files["b"], out, append=True)["sources"]) == 2
    verify_corpus(out)


def test_corpus_inside_its_own_source_folder(files: dict[str, Path], tmp_path: Path) -> None:
    manifest = make(tmp_path, tmp_path / "corpus")
    assert make(tmp_path, tmp_path / "corpus") == manifest and len(manifest["source_files"]) == 3
    other = make(tmp_path, tmp_path / "other")  # does not read the first corpus as text
    assert other["source_files"] == manifest["source_files"]


def test_unfinished_corpus_inside_its_source_folder_can_be_resumed(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer is no source, however the folders are written."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(stages.Preparation, "write_shards", raise_killed)
        with pytest.raises(Killed):
            make(".", tmp_path / "out")
    assert (tmp_path / "out/tokenizer").is_dir()
    assert len(make(".", tmp_path / "other")["source_files"]) == 3
    assert len(make(".", tmp_path / "out")["source_files"]) == 3


def test_options_without_effect_are_rejected() -> None:
    for dedup in ("exact", "none"):
        with pytest.raises(PolysemeError, match=f"`dedup_threshold` is 0.7, which has no effect when .* '{dedup}'"):
            PrepareConfig(dedup=dedup, dedup_threshold=0.7)
    with pytest.raises(PolysemeError, match="`num_workers` has no effect with `dask_address`"):
        PrepareConfig(num_workers=2, dask_address="localhost:8786")


def test_number_of_documents_limits_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_DOCUMENTS", 10)
    monkeypatch.setattr(blocks, "MAX_SHARD_DOCUMENTS", 25)
    (tmp_path / "lines.txt").write_text("\n".join(f"Line number {i} of many." for i in range(100)))
    assert len(make(tmp_path / "lines.txt", tmp_path / "out", split="line", dedup="none")["shards"]) == 4


def test_named_pipe_is_refused_with_advice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolysemeError, match="pipe it into standard input and read -"):
        make(tmp_path / "pipe", tmp_path / "out")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_skipped_files_and_unsupported_languages_are_reported(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("py3langid")
    (tmp_path / "picture.bin").write_bytes(b"x")
    make(tmp_path, tmp_path / "out", clean="language", lang="eng")
    errors = capsys.readouterr().err
    assert "skipped 1 files that are empty or of unknown format" in errors and "picture.bin" in errors
    assert "the language step does not support eng" in errors
