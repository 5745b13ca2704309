"""The benchmark against `transformers`: both sides read the same input, and finished runs are not repeated."""

import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from polyseme.tasks import TASKS
from polyseme.tasks.extractive_qa import ExtractiveQATask, QuestionExample
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample
from polyseme.weights.folder import load_model
from tests.support.text import ANIMALS, VERBS, sentence

transformers = pytest.importorskip("transformers")


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("finetune_cpu"), importlib.import_module("finetune_peer")


def examples(kind, n=24):
    draw, found = random.Random(0), []
    for i in range(n):
        text = " ".join(sentence(draw) for _ in range(draw.randint(1, 7)))
        if kind == "tagging":
            words = tuple(text.split())
            found.append(
                TaggingExample(f"e{i}", words=words, tags=tuple("B-X" if w in ANIMALS else "O" for w in words))
            )
        elif kind == "span":
            word = draw.choice([w for w in text.split() if w in ANIMALS])
            answers = ((word, text.index(word)),)
            found.append(QuestionExample(f"e{i}", text, f"who {draw.choice(VERBS)}?", answers=answers, id=str(i)))
        else:
            found.append(TextExample(f"e{i}", text, sentence(draw), label=str(i % 3)))
    return found


@pytest.mark.parametrize("kind", ["pair_classification", "regression", "tagging"])
def test_both_sides_encode_the_same(harness, tiny_folders, kind):
    peer, data = harness[1], examples(kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders["bert"])
    task, settings = TASKS[kind].from_examples(data), peer.Settings(max_len=32)
    numbers = {label: i for i, label in enumerate(task.output_labels)}
    encode = peer._words if kind == "tagging" else peer._texts
    theirs = encode(tokenizer, data, kind, numbers, settings, True)
    mine = task.encode(data, load_model(tiny_folders["bert"]).tokenizer, 32, truncate=True)
    assert any(one.is_truncated for one in mine) and not all(one.is_truncated for one in mine)
    for a, b in zip(mine, theirs, strict=True):
        assert a.ids.tolist() == b["input_ids"] and a.segments.tolist() == b["token_type_ids"]
        if kind == "tagging":
            labels = np.full(len(a.ids), peer.IGNORED)
            labels[a.positions] = a.target
            assert labels.tolist() == b["labels"]
        else:
            assert a.target == b["labels"]


def test_both_sides_have_the_same_targets(harness, tiny_folders):
    """Windows may differ, but each target covers the characters of the answer, or the window has no answer."""
    peer, data = harness[1], examples("span")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folders["bert"])
    settings = peer.Settings(max_len=32, overlap=10)
    rows = peer._windows(tokenizer, data, "span", {}, settings, True)
    found = set()
    for row in rows:
        if row["start_positions"]:
            first, last = row["_offsets"][row["start_positions"]], row["_offsets"][row["end_positions"]]
            assert data[row["_of"]].context[first[0] : last[1]] == data[row["_of"]].answers[0][0]
            found.add(row["_of"])
    assert found == set(range(len(data))) and len(rows) > len(data)
    ours = list(
        ExtractiveQATask.from_examples(data, doc_stride=22).encode(data, load_model(tiny_folders["bert"]).tokenizer, 32)
    )
    assert len(ours) >= len(rows) and {e.example_index for e in ours if e.target[0] != e.null_position} == found
    # a perfect model's scores are read as the answers
    scores = []
    for row in rows:
        one = np.zeros((len(row["input_ids"]), 2))
        if row["start_positions"]:
            one[row["start_positions"], 0] = one[row["end_positions"], 1] = 9
        scores.append(one)
    assert peer._best_texts(rows, scores, data, 30) == [e.answers[0][0] for e in data]


@pytest.mark.parametrize(("way", "more"), [("Trainer", []), ("plain PyTorch loop", ["--by-length"])])
def test_finished_runs_are_not_repeated(harness, tiny_folders, glue, tmp_path, monkeypatch, capsys, way, more):
    if way == "Trainer":
        pytest.importorskip("accelerate")
    monkeypatch.setattr(harness[0], "peer_name", lambda: way)
    monkeypatch.setattr(harness[1], "peer_name", lambda: way)
    out = tmp_path / "found.json"
    given = [glue, "--out", out, "--tasks", "sts-b", "--epochs", "1", "--model", tiny_folders["bert"], "--limit", "8"]
    monkeypatch.setattr(sys, "argv", ["finetune_cpu", *map(str, given), "--seeds", "1", *more])
    harness[0].main()
    said = capsys.readouterr().out
    assert (
        f"compared with transformers ({way}{', grouped by length' if more else ''})" in said
        and "sts-b, seed 0, polyseme: " in said
    )
    assert said.splitlines()[-1].startswith("| sts-b (spearman) | 1 | ")
    runs = json.loads(out.read_text())["runs"]
    assert [run["side"] for run in runs] == list(harness[0].SIDES)
    assert all(run["examples"] == 8 and run["train_s"] > 0 for run in runs)
    harness[0].main()
    assert "seed 0" not in capsys.readouterr().out and json.loads(out.read_text())["runs"] == runs


def test_length_batches_contain_every_row_once(harness):
    draw = random.Random(0)
    rows = [{"input_ids": [0] * draw.randint(1, 60)} for _ in range(333)]
    batches = harness[1]._ByLength(rows, 4, 0)
    first, second = list(batches), list(batches)
    assert len(first) == len(batches) == 84 and first != second
    for epoch in (first, second):
        assert sorted(i for batch in epoch for i in batch) == list(range(333))
    spread = [max(lengths) - min(lengths) for b in first if (lengths := [len(rows[i]["input_ids"]) for i in b])]
    assert sum(spread) / len(spread) < 5


def test_table_of_both_sides(harness):
    def ran(side, seed, score, seconds):
        return {"task": "cola", "side": side, "seed": seed, "score": score, "train_s": seconds, "examples": 100}

    runs = [ran("polyseme", 0, 0.5, 1), ran("polyseme", 1, 0.3, 3), ran("polyseme", 2, 0.9, 9)]
    runs += [ran("transformers", 0, 0.4, 10), ran("transformers", 1, 0.4, 6)]
    (row,) = harness[0].summary(runs)
    assert row["seeds"] == 2 and row["ratio"] == pytest.approx(4) and row["difference"] == pytest.approx(0)
    assert row["error"] == pytest.approx(10.0)
    assert "| cola (matthews) | 2 | 40.0 ± 14.1 | 40.0 ± 0.0 |" in harness[0].markdown([row])
