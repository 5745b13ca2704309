"""The benchmark of cross-view training: differences by hand, and a run on a few sentences."""

import importlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from polyseme.word_vectors.files import write_vectors


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("cross_view")


def finished(row, seed, dev, test):
    scores = {"wnut-17": {"dev": dev, "test": test}}
    return {"row": row, "seed": seed, "settings": "{}", "scores": scores}


def test_differences_are_paired_by_seed(harness):
    supervised = [finished("WNUT-17, supervised", 0, 0.30, 0.20), finished("WNUT-17, supervised", 1, 0.34, 0.20)]
    cross_view = [finished("WNUT-17, cross-view", 0, 0.33, 0.19), finished("WNUT-17, cross-view", 1, 0.33, 0.23)]
    runs = [*supervised, *cross_view, finished("WNUT-17, cross-view", 2, 1.0, 1.0)]  # without a counterpart
    first, *others = harness.format_differences(runs).splitlines()[2:]
    assert first == "| WNUT-17 | +1.0 (1 of 2) | +1.0 (1 of 2) |  |  |"
    assert others[-1] == "| both |  |  |  |  |"
    (summary, _) = harness.summarize([*supervised, *cross_view])
    assert summary["dev"] == {"mean": pytest.approx(32), "std": pytest.approx(2.828, abs=1e-3)}


def test_runs_on_a_few_sentences(harness, tmp_path):
    for folder, names in (
        ("wnut17", ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")),
        ("ud-ewt", [f"en_ewt-ud-{split}.conllu" for split in ("train", "dev", "test")]),
    ):
        (tmp_path / folder).mkdir()
        for name in names:
            lines = ["Bob\tB-person\nran\tO\n\n", "they\tO\nran\tO\n\n"]
            if folder == "ud-ewt":
                words = ("Bob", "PROPN"), ("ran", "VERB")
                lines = ["".join(f"{i}\t{w}\t_\t{t}" + "\t_" * 6 + "\n" for i, (w, t) in enumerate(words, 1)) + "\n"]
            (tmp_path / folder / name).write_text("".join(lines * 12))
    write_vectors(tmp_path / "vectors.bin", ["bob", "ran"], np.eye(2, dtype=np.float32), "binary")
    with lzma.open(tmp_path / "unlabeled.txt.xz", "wt") as file:
        file.write("Bob ran .\nthey sat\n" * 5)
    small = {"steps": {"wnut-17": 2, "ud-pos": 1}, "network": {"lstm_dim": 4}, "optimizer.lr": 0.001}
    run = harness.run_job(harness.Job("both, cross-view", 0, json.dumps(small)), tmp_path)
    assert "error" not in run and run["steps"] == 6 and sorted(run["scores"]) == ["ud-pos", "wnut-17"]
    assert run["unlabeled"] == {"sentences": 10, "words": 25} and run["train_examples"]["ud-pos"] == 2
    alone = harness.run_job(harness.Job("parts of speech, supervised", 0, json.dumps(small)), tmp_path)
    assert "error" not in alone and alone["steps"] == 1 and not alone["unlabeled"]
