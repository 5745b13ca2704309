"""Preparation: the corpus stores what was read, a killed run resumes to the same bytes, damage is reported."""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from polyseme.corpus.build import blocks, stages
from polyseme.corpus.build import prepare as prepare_module
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.store import Corpus, token_dtype, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.io import atomic
from polyseme.progress import Progress
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:40]
SHARD = 40_000


class Killed(BaseException):
    pass


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(request.param, iter(TEXTS), 700, lowercase=request.param == "wordpiece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A source with unusual documents, the tokenizer, and the corpus prepared without interruption."""
    folder = tmp_path_factory.mktemp("corpus")
    odd = ["", " \n", "\x00\x01", "A title\n\x00\nThen a text. \n"]
    rows = [json.dumps({"text": text}) for text in [*TEXTS[:5], *odd, *TEXTS[5:]]]
    (folder / "text.jsonl").write_text("\n".join(rows) + "\n")
    tokenizer.save(folder / "tokenizer")
    run(folder, tokenizer, folder / "whole")
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_CHARS", 7_000)
        yield


def run(folder: Path, tokenizer: Tokenizer, out: Path, **options: Any) -> dict[str, Any]:
    plain = {"clean": "none", "dedup": "exact", "num_workers": 1, "shard_characters": SHARD}
    return prepare([folder / "text.jsonl"], tokenizer, out, PrepareConfig(**(plain | options)))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_corpus_stores_what_was_read(folder: Path, tokenizer: Tokenizer) -> None:
    verify_corpus(folder / "whole")
    corpus = Corpus.open(folder / "whole")
    documents = [json.loads(line)["text"] for line in (folder / "text.jsonl").read_text().splitlines()]
    sentences = [split_sentences(text) for text in documents if text.strip()]
    encoded = tokenizer.encode_corpus([sentence for part in sentences for sentence in part])
    ends = np.cumsum(encoded.lengths)[:-1]
    ids_and_starts = zip(np.split(encoded.ids, ends), np.split(encoded.word_starts, ends), strict=True)
    runs = [[next(ids_and_starts) for _ in part] for part in sentences]
    runs = [nonempty_runs for part in runs if (nonempty_runs := [run for run in part if len(run[0])])]
    expected = [run for part in runs for run in part]
    assert corpus.num_documents == len(runs) and corpus.num_sentences == len(expected)
    assert len(corpus.manifest["shards"]) > 3 and corpus.manifest["removed"]["num_blank"] == 2
    assert np.diff(corpus.document_offsets).tolist() == [len(part) for part in runs]
    assert np.diff(corpus.sentence_offsets).tolist() == [len(ids) for ids, _ in expected]
    starts, lengths = corpus.sentence_offsets[:-1], np.diff(corpus.sentence_offsets)
    assert corpus.gather_tokens(starts, lengths).tolist() == [i for ids, _ in expected for i in ids.tolist()]
    assert corpus.gather_word_starts(starts, lengths).tolist() == [
        w for _, word_starts in expected for w in word_starts.tolist()
    ]
    assert corpus.num_tokens == corpus.manifest["counts"]["tokens"] == lengths.sum()
    assert corpus.tokenizer_hash == tokenizer.hash == Tokenizer.load(corpus.path / "tokenizer").hash
    assert corpus.vocab_size == tokenizer.vocab_size
    assert corpus.gather_tokens(starts[:0], lengths[:0]).tolist() == []


def test_encoding_sentences_equals_encoding_documents(folder: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus.open(folder / "whole")
    starts = corpus.sentence_offsets[corpus.document_offsets]
    token_ids = corpus.gather_tokens(starts[:1], np.diff(starts[:2]))
    assert token_ids.tolist() == tokenizer.encode_corpus([TEXTS[0]]).ids.tolist()


def test_gather_equals_slicing(folder: Path) -> None:
    corpus = Corpus.open(folder / "whole")
    shards = [np.load(path) for path in sorted(corpus.path.glob("*.tokens.npy"))]
    words = [np.unpackbits(np.load(p), bitorder="little") for p in sorted(corpus.path.glob("*.words.npy"))]
    tokens = np.concatenate(shards)
    bits = np.concatenate([part[: len(shard)] for part, shard in zip(words, shards)])
    rng = np.random.default_rng(0)
    borders = corpus.sentence_offsets[corpus.document_offsets]
    for count in (1, 3, 200):
        document = rng.integers(0, corpus.num_documents, count)
        starts = rng.integers(borders[document], borders[document + 1])
        lengths = rng.integers(0, borders[document + 1] - starts + 1)
        slices = [slice(a, a + n) for a, n in zip(starts, lengths)]
        assert corpus.gather_tokens(starts, lengths).tolist() == np.concatenate([tokens[s] for s in slices]).tolist()
        assert corpus.gather_word_starts(starts, lengths).tolist() == np.concatenate([bits[s] for s in slices]).tolist()


def test_split_partitions_the_documents(folder: Path) -> None:
    corpus = Corpus.open(folder / "whole")
    nonempty_runs, heldout = corpus.split(0.2)
    assert heldout is not None and heldout.num_documents == round(corpus.num_documents * 0.2)
    assert nonempty_runs.num_documents + heldout.num_documents == corpus.num_documents
    assert nonempty_runs.num_tokens + heldout.num_tokens == corpus.num_tokens

    def texts(part: Corpus) -> list[bytes]:
        borders = part.sentence_offsets[part.document_offsets]
        return [part.gather_tokens(a, n).tobytes() for a, n in zip(borders[:-1, None], np.diff(borders)[:, None])]

    assert sorted(texts(nonempty_runs) + texts(heldout)) == sorted(texts(corpus))
    selected = nonempty_runs.select(np.array([3, 1]))
    assert texts(selected) == [texts(nonempty_runs)[3], texts(nonempty_runs)[1]]
    assert corpus.split(0)[1] is None and corpus.select(np.array([0])).split(0.5)[1] is None


def fail_after(times: int, real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    calls_left = [times]

    def call(*args: Any, **named: Any) -> Any:
        calls_left[0] -= 1
        if calls_left[0] < 0:
            raise error
        return real(*args, **named)

    return call


@pytest.mark.parametrize("function", ["encode_corpus", "write_array", "write_json", "replace"])
def test_killed_and_resumed_gives_the_same_bytes(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    rng, kills = random.Random(function), 0
    max_calls = {"encode_corpus": 9, "write_array": 20, "write_json": 9, "replace": 40}[function]
    owners: dict[str, list[Any]] = {"encode_corpus": [Tokenizer], "replace": [atomic.os], "write_array": [stages]}
    while kills < 3:  # at random points
        with monkeypatch.context() as patch:
            owner_list = owners.get(function, [stages, prepare_module])
            failing = fail_after(rng.randrange(max_calls), getattr(owner_list[0], function), Killed())
            for owner in owner_list:
                patch.setattr(owner, function, failing)
            try:
                run(folder, tokenizer, tmp_path / "out")
                shutil.rmtree(tmp_path / "out")
            except Killed:
                kills += 1
                if (tmp_path / "out" / prepare_module.WORK_DIR).exists():
                    with pytest.raises(PolysemeError, match="the preparation has not finished"):
                        Corpus.open(tmp_path / "out")
    run(folder, tokenizer, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_finished_shards_are_not_rewritten(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(stages, "_starts_from_lengths", fail_after(4, stages._starts_from_lengths, Killed()))
        run(folder, tokenizer, tmp_path / "out")
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("shard-*.npy")}
    seen: list[float] = []
    for name in ("add_completed", "advance"):
        monkeypatch.setattr(Progress, name, lambda bar, n: seen.append(n) if bar.title == "tokenize" else None)
    run(folder, tokenizer, tmp_path / "out")
    assert len(written) == 12 and all(p.stat().st_mtime_ns == at for p, at in written.items())
    assert seen[0] >= 2 * SHARD and sum(seen) == sum(map(len, [*TEXTS, "\x00\x01", "A title\n\x00\nThen a text. \n"]))
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_finished_corpus_is_not_changed(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(folder / "whole")
    assert run(folder, tokenizer, folder / "whole") == Corpus.open(folder / "whole").manifest
    assert "already prepared" in capsys.readouterr().err
    other = Tokenizer.train(tokenizer.kind, iter(TEXTS), 500, lowercase=False)  # type: ignore[arg-type]
    with pytest.raises(PolysemeError, match="holds a corpus with another tokenizer"):
        run(folder, other, folder / "whole")
    with pytest.raises(PolysemeError, match="holds a corpus with lang 'en', not 'de'"):
        run(folder, tokenizer, folder / "whole", lang="de")
    (tmp_path / "other.txt").write_text("Another text.")
    config = PrepareConfig(clean="none", dedup="exact", shard_characters=SHARD)
    with pytest.raises(PolysemeError, match="other sources"):
        prepare([tmp_path / "other.txt"], tokenizer, folder / "whole", config)
    with pytest.raises(PolysemeError, match="is not empty and holds no corpus"):
        run(folder, tokenizer, tmp_path)
    assert tree(folder / "whole") == before


def test_full_disk_gives_a_one_line_error_and_can_be_resumed(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        monkeypatch.context() as patch,
        pytest.raises(PolysemeError, match=r"cannot write .*No space left on device"),
    ):
        patch.setattr(atomic, "fsync_path", fail_after(24, atomic.fsync_path, full))
        run(folder, tokenizer, tmp_path / "out")
    assert list((tmp_path / "out" / prepare_module.WORK_DIR).glob("*-00000.json"))
    assert not list((tmp_path / "out").rglob("*.part"))
    run(folder, tokenizer, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_bad_rows_stop_the_run_or_are_reported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [json.dumps({"text": text}) for text in TEXTS[:4]]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "{", rows[0]]))
    config = PrepareConfig(dedup="none", shard_characters=1000)
    with pytest.raises(PolysemeError, match="line 5: malformed JSON"):
        prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", config)
    manifest = prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", config.replace(skip_bad=True))
    assert manifest["counts"]["documents"] == 5 and manifest["removed"]["num_bad"] == 1
    assert "line 5" in manifest["removed"]["bad_row_messages"][0]
    verify_corpus(tmp_path / "out")


def test_no_text_leaves_nothing_behind(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n \n")
    with pytest.raises(PolysemeError, match="there is no text in"):
        prepare([tmp_path / "blank.txt"], tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_reported(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(folder, tokenizer, out)
    verify_corpus(out)
    for path in [*sorted(out.glob("shard-00001.*.npy")), out / "tokenizer" / "tokenizer.json"]:
        whole = path.read_bytes()
        at = len(whole) - 3
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(PolysemeError, match=f"{path.name} is damaged"):
            verify_corpus(out)
        path.write_bytes(whole[:-1])
        with pytest.raises(PolysemeError, match=f"{path.name} has {len(whole) - 1} bytes"):
            Corpus.open(out)
        path.unlink()
        with pytest.raises(PolysemeError, match=f"{path.name} is missing"):
            Corpus.open(out)
        path.write_bytes(whole)
    verify_corpus(out)
    text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(text.replace('"documents": 4', '"documents": 5', 1))
    with pytest.raises(PolysemeError, match=r"manifest.json is damaged"):
        Corpus.open(out)
    with pytest.raises(PolysemeError, match="does not exist"):
        Corpus.open(tmp_path / "nowhere")
    with pytest.raises(PolysemeError, match=r"it has no manifest.json"):
        Corpus.open(tmp_path)


def test_large_vocabularies_use_four_bytes(tmp_path: Path) -> None:
    assert np.dtype(token_dtype(1 << 16)).itemsize == 2
    assert np.dtype(token_dtype((1 << 16) + 1)).itemsize == 4


def test_the_content_hash_does_not_depend_on_places(tmp_path: Path) -> None:
    """A study continues with a corpus that was prepared from the same text elsewhere."""
    corpora = []
    for place, text in (("a", "One text. Two texts."), ("b", "One text. Two texts."), ("c", "Two texts. One text.")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "text.txt").write_text(text)
        tokenizer = Tokenizer.train("wordpiece", iter(["One text. Two texts."] * 3), 60)
        prepare([tmp_path / place / "text.txt"], tokenizer, tmp_path / place / "corpus")
        corpora.append(Corpus.open(tmp_path / place / "corpus"))
    same, moved, other = corpora
    assert same.content_hash == moved.content_hash != other.content_hash
    assert same.manifest_hash != moved.manifest_hash, "which names the sources"
