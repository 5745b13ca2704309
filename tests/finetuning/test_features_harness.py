"""The benchmark of frozen features: its rows, its summary, and a run on a few sentences."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.nn.layer_selection import FEATURE_SELECTIONS
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model
from polyseme.word_vectors.files import write_vectors


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("features")


def test_rows_follow_the_papers(harness):
    rows = harness.rows_of(["forward", "backward"])
    assert len({(row.table, row.name) for row in rows}) == len(rows)
    named = {row.name: row for row in rows if row.table == "lineage"}
    assert named["+ TagLM"].models == ("forward", "backward") and named["+ TagLM"].network["join_at"] == "between"
    assert {row.network.get("num_layers") for row in named.values()} == {2}
    assert [row.name for row in rows if row.table == "layers"] == ["fine-tuned", *FEATURE_SELECTIONS]
    assert [row.network.get("join_at") for row in rows if row.table == "elmo"][-2:] == ["output", "both"]
    assert harness.rows_of(["taglm"])[1].models == ("taglm",)


def test_mean_over_seeds_on_two_splits(harness):
    def ran(row, seed, dev, test, **more):
        job = harness.Job("lineage", row, "wnut-17", seed, 1.0)
        return {**dataclasses.asdict(job), "primary_metric": "f1", "mean": {"f1": dev}, "test": test, **more}

    done = [ran("+ ELMo", 0, 0.5, 0.3), ran("+ ELMo", 1, 0.3, 0.3), {**ran("+ Flair", 0, 1, 1), "error": "x"}]
    (found,) = harness.summary(done)
    assert found["dev"]["mean"] == pytest.approx(40) and found["test"] == {"mean": pytest.approx(30), "std": 0.0}
    rows = [row for row in harness.rows_of([]) if row.table == "lineage"]
    shown = harness.markdown([found], rows, ["wnut-17"]).splitlines()
    assert shown[0] == "| lineage | wnut-17, dev | wnut-17, test |"
    assert shown[4:] == ["| + ELMo | 40.00 ± 14.14 (n=2) | 30.00 ± 0.00 (n=2) |", "| + Flair |  |  |"]


def test_runs_on_a_few_sentences(harness, tmp_path):
    data = tmp_path / "wnut17"
    data.mkdir()
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (data / name).write_text("Bob\tB-person\nran\tO\n\nAnn\tB-person\nsat\tO\n\nthey\tO\n" * 4)
    (data / "my.test.set").write_text("Ann\tB-person\n\nran\tO\nUFO\tB-product\n")
    models = tmp_path / "models"
    tokenizer = Tokenizer.train("characters", iter(["Bob ran", "Ann sat they"] * 9), 60)
    spec = FAMILIES["flair"].model_config(dim=8, char_dim=4, vocab_size=tokenizer.vocab_size)
    save_model(models / "flair" / "model", spec.build(0), tokenizer)
    write_vectors(models / "words.txt", ["Bob", "ran"], np.eye(2, dtype=np.float32))
    found = harness.find_models(models)
    words = harness.find_words(models, found)
    assert found == {"flair": str(models / "flair" / "model")} and words == str(models / "words.txt")
    place = harness.Place(str(tmp_path), str(tmp_path / "cache"), tuple(found.items()), words)
    assert harness.read("flair", place, ["wnut-17"], ["last"], 5)["words"] == 12 + 12 + 1
    rows = {row.name: row for row in harness.rows_of(found) if row.table == "lineage"}
    for name in ("word vectors alone", "+ Flair"):
        one = harness.run(harness.Job("lineage", name, "wnut-17", 0, 1.0, 5), rows[name], place)
        assert one["primary_metric"] == "f1" and {"f1", "accuracy"} <= set(one["mean"]) and 0 <= one["test"] <= 1, one
    whole = harness.run(harness.Job("lineage", "+ Flair", "wnut-17", 0, 1.0), rows["+ Flair"], place)
    assert "was never seen in training" in whole["error"]
    with pytest.raises(PolysemeError, match="there is no folder"):
        harness.find_models(tmp_path / "nowhere")
