"""Preparation with several workers, on a cluster, killed by signals, and in append mode gives the same bytes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from polyseme.corpus.build import blocks
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.store import Corpus, verify_corpus
from polyseme.errors import PolysemeError
from polyseme.progress import Progress
from polyseme.text.tokenizer import Tokenizer

TEXTS = [text for _, text in sorted(topics.items())][:60]
OPTIONS: dict[str, Any] = {"clean": "nfc,control,boilerplate=40,min_chars=200", "shard_characters": 60_000}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def replace_words(text: str, rng: random.Random) -> str:
    """Replace one word in 200."""
    words = text.split(" ")
    for _ in range(max(1, len(words) // 200)):
        words[rng.randrange(len(words))] = "otherwise"
    return " ".join(words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources with exact and near duplicates, short texts and a footer in every document; and their corpus."""
    folder = tmp_path_factory.mktemp("scale")
    rng = random.Random(0)
    texts = [*TEXTS, *(replace_words(text, rng) for text in TEXTS[:20]), *TEXTS[20:30], "Too short.", ""]
    rng.shuffle(texts)
    pages = [text + "\nAll rights reserved by nobody.\n" for text in texts]
    for name, part in (("a", pages[:50]), ("b", pages[50:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    Tokenizer.train("wordpiece", iter(TEXTS), 700).save(folder / "tokenizer")
    make(folder, folder / "whole")
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_CHARS", 9_000)
        yield


def make(folder: Path, out: Path, names: str = "ab", **options: Any) -> dict[str, Any]:
    paths = [f"{folder / name}.jsonl::weight={1 + i}" for i, name in enumerate(names)]
    config = PrepareConfig(**(OPTIONS | ({} if "dask_address" in options else {"num_workers": 1}) | options))
    return prepare(paths, Tokenizer.load(folder / "tokenizer"), out, config)


def test_removed_documents_are_reported(folder: Path) -> None:
    verify_corpus(folder / "whole")
    removed = Corpus.open(folder / "whole").manifest["removed"]
    assert 8 <= removed["duplicates"]["exact"] <= 12 and 8 <= removed["duplicates"]["near"] <= 20
    assert removed["duplicates"]["characters"] > 30_000
    example = removed["duplicates"]["examples"][0]
    assert "line" in example["location"] and "line" in example["duplicate_of"] and example["text"]
    cleaning = removed["cleaning"]
    assert cleaning["boilerplate"]["changed"] > 90 and cleaning["min_chars"]["removed"] >= 1
    assert "short" in json.dumps(cleaning["min_chars"]["examples"])


@pytest.mark.parametrize("num_workers", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_output_does_not_depend_on_number_of_workers(folder: Path, tmp_path: Path, num_workers: int) -> None:
    make(folder, tmp_path / "out", num_workers=num_workers)
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_dask_cluster(folder: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )
    with cluster:
        make(folder, tmp_path / "out", dask_address=cluster.scheduler_address)
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_missing_cluster_gives_a_one_line_error(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(PolysemeError, match="cannot connect to a dask scheduler at"):
        make(folder, tmp_path / "out", dask_address="127.0.0.1:1")
    with pytest.raises(PolysemeError, match="expected HOST:PORT"):
        make(folder, tmp_path / "out", dask_address="nonsense")
    assert not (tmp_path / "out").exists()


KILLING_SCRIPT = """
import os, random, shutil, signal, sys, time
from pathlib import Path
from polyseme.corpus.build import blocks
from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.text.tokenizer import Tokenizer
blocks.BLOCK_CHARS = 9_000
folder, out, options, times = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3]), int(sys.argv[4])

def attempt():
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        paths = [f"{folder / name}.jsonl::weight={1 + i}" for i, name in enumerate("ab")]
        prepare(paths, Tokenizer.load(folder / "tokenizer"), out, PrepareConfig(num_workers=2, **options))
        os._exit(0)
    return pid

start = time.monotonic()
assert os.waitpid(attempt(), 0)[1] == 0
whole = time.monotonic() - start
shutil.rmtree(out)
draw, kills = random.Random(3), 0
while kills < times:
    pid = attempt()
    time.sleep(draw.uniform(0, whole))
    os.kill(pid, signal.SIGKILL)
    if os.waitpid(pid, 0)[1]:
        kills += 1
    elif kills < times - 1:
        shutil.rmtree(out)
assert os.waitpid(attempt(), 0)[1] == 0
print(kills)
"""


@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_repeatedly_killed_run_gives_the_same_bytes(times: int, folder: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, resumed each time."""
    command = [sys.executable, "-c", KILLING_SCRIPT, str(folder), str(tmp_path / "out"), repr(OPTIONS), str(times)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert process.returncode == 0 and process.stdout == f"{times}\n", process.stderr
    assert tree(tmp_path / "out") == tree(folder / "whole")


def test_append(folder: Path, tmp_path: Path) -> None:
    """Appended documents are compared with existing ones; a killed append leaves the old corpus intact."""
    out, cleaning = tmp_path / "out", {"clean": "nfc,min_chars=200"}
    whole = make(folder, tmp_path / "whole", **cleaning)
    old = make(folder, out, "a", **cleaning)
    before = tree(out)

    def interrupt_tokenization(bar: Progress, _: float) -> None:
        if bar.title == "tokenize":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Progress, "advance", interrupt_tokenization)
        make(folder, out, "b", append=True, **cleaning)
    verify_corpus(out)
    assert Corpus.open(out).manifest == old
    new = make(folder, out, "b", append=True, **cleaning)
    verify_corpus(out)
    assert set(before) <= set(tree(out)) and len(new["sources"]) == len(new["source_files"]) == 2
    changed = {name for name, content in before.items() if tree(out)[name] != content}
    assert changed == {"manifest.json", "README.md"}
    assert new["removed"]["duplicates"]["exact"] == whole["removed"]["duplicates"]["exact"]
    # Signatures have another key, so documents near the threshold may be decided differently.
    num_near = [manifest["removed"]["duplicates"]["near"] for manifest in (new, whole)]
    assert num_near == pytest.approx([num_near[1]] * 2, abs=2) and min(num_near) > 10
    assert new["counts"]["documents"] - whole["counts"]["documents"] == num_near[1] - num_near[0]
    assert make(folder, out, "b", append=True, **cleaning) == new  # already in the corpus
    with pytest.raises(PolysemeError, match=r"a.jsonl is already in"):
        (folder / "c.jsonl").write_text(json.dumps({"text": "Something else entirely. " * 20}))
        make(folder, out, "ac", append=True, **cleaning)
    with pytest.raises(PolysemeError, match=r"dedup_threshold 0\.8, not 0\.9"):
        make(folder, out, "c", append=True, dedup_threshold=0.9, **cleaning)
    with pytest.raises(PolysemeError, match="holds no finished corpus"):
        make(folder, tmp_path / "none", "c", append=True, **cleaning)


def test_resample_by_weight(folder: Path) -> None:
    """Documents of weight 2 occur twice, and never in both the training and the held-out part."""
    corpus = Corpus.open(folder / "whole")
    first, second = (source["counts"]["documents"] for source in corpus.manifest["sources"])
    assert corpus.resample_by_weight().num_documents == first + 2 * second and first + second == corpus.num_documents
    training, heldout = corpus.split(0.1)
    assert heldout is not None

    def texts(part: Corpus) -> list[bytes]:
        borders = part.sentence_offsets[part.document_offsets]
        return [part.gather_tokens(a, n).tobytes() for a, n in zip(borders[:-1, None], np.diff(borders)[:, None])]

    resampled_texts = texts(training.resample_by_weight())
    assert not set(resampled_texts) & set(texts(heldout)) and sorted(set(resampled_texts)) == sorted(texts(training))
    assert {resampled_texts.count(text) for text in resampled_texts} == {1, 2}
    corpus.manifest["sources"][0]["weight"] = 0.5
    assert corpus.resample_by_weight().num_documents == round(first / 2) + 2 * second


def test_flipped_byte_is_reported(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "out", "a")
    for path in sorted((tmp_path / "out").glob("shard-*.npy")):
        content = path.read_bytes()
        at = random.Random(path.name).randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        with pytest.raises(PolysemeError, match=f"{path.name} is damaged"):
            verify_corpus(tmp_path / "out")
        path.write_bytes(content)
    verify_corpus(tmp_path / "out")
