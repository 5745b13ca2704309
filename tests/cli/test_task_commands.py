"""The commands around tasks: ask, compare, ensembles, grids, benchmarks, last words."""

import json
import math

import pytest
import torch

import polyseme
from polyseme.datasets.lambada import LambadaFile
from polyseme.errors import PolysemeError
from polyseme.nn.packing import Inputs

CONTEXT = "The old cat sees the grey dog in the river. The young wolf hears the small bird in the forest."


@pytest.fixture(scope="module")
def span(project, run_cli):
    at = CONTEXT.index("grey")
    asked = [{"id": str(i), "question": "What does the cat see?", "answers": [{"text": "grey dog", "answer_start": at}]}
             for i in range(4)]  # fmt: skip
    asked.append({"id": "bad", "question": "Where?", "answers": [{"text": "river", "answer_start": 0}]})
    file = project.path / "squad.json"
    file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": asked}]}]}))
    run_cli("finetune", project.path / "run-bert/model", "--task", "extractive_qa", "--train", file, "--dev", file,
         "--out", project.path / "run-span", "--set", "steps=2")  # fmt: skip
    return file, project.path / "run-span"


def test_ask_evaluate_and_predict(span, run_cli, tmp_path, rejects):
    file, run = span
    results = json.loads((run / "results.json").read_text())
    assert results["train_examples"] == 4 and results["bad_offsets"]["train"] == [1, 1]
    (tmp_path / "context.txt").write_text(CONTEXT * 20)
    found = json.loads(run_cli("ask", run / "model", "What?", "--context", tmp_path / "context.txt", "--json"))
    assert found["text"] == (CONTEXT * 20)[found["start"] : found["end"]] and found["text"]
    assert "characters" in run_cli("ask", run / "model", "What?", "--context", tmp_path / "context.txt")
    measured = json.loads(run_cli("evaluate", run / "model", "--data", file, "--json"))
    assert measured["examples"] == 5 and measured["f1"] == results["mean"]["f1"]
    run_cli("predict", run / "model", "--data", file, "--out", tmp_path / "p.json")
    assert set(json.loads((tmp_path / "p.json").read_text())) == {"0", "1", "2", "3", "bad"}
    rejects("ask", run / "model", "What?", "--context", tmp_path / "none.txt", match="none.txt is missing")


def test_grid_compare_and_ensemble(project, run_cli, tmp_path, rejects):
    base = project.path / "run-bert/model"
    files = [project.path / f"classification-{part}.tsv" for part in ("train", "dev")]
    shared = ["--task", "classification", "--train", files[0], "--dev", files[1], "--set", "steps=2", "--seeds", 2]
    said = run_cli("finetune", base, *shared, "--out", tmp_path / "a", "--grid", "lr=1e-4,1e-3 batch_size=8")
    assert "lr=1e-4_batch_size=8" in said and (tmp_path / "a/model").is_dir() and (tmp_path / "a/grid.json").is_file()
    run_cli("finetune", base, *shared, "--out", tmp_path / "b", "--from-scratch")
    said = run_cli("compare", tmp_path / "a", tmp_path / "b", "--num-resamples", 100, "--out", tmp_path / "p.svg")
    assert "(from scratch)" in said and "two-sided" in said and "<svg" in (tmp_path / "p.svg").read_text()
    told = json.loads(run_cli("compare", tmp_path / "a", tmp_path / "b", "--num-resamples", 100, "--json"))
    assert [run["seeds"] for run in told["runs"]] == [2, 2] and 0 < told["tests"][0]["p"] <= 1
    models = [tmp_path / name / "model" for name in "ab"]
    assert "2 examples" not in run_cli("evaluate", *models, "--data", files[1], "--ensemble")
    one, two, both = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "both"))
    for given, written in ((models[:1], one), (models[1:], two), (models, both)):
        run_cli("predict", *given, "--data", files[1], "--out", written, *(["--ensemble"] if written == both else []))
    shares = [[json.loads(line)["probabilities"] for line in f.read_text().splitlines()] for f in (one, two, both)]
    for a, b, mean in zip(*shares, strict=True):
        assert mean == pytest.approx({label: (a[label] + b[label]) / 2 for label in a})
    rest = ["--task", "classification", "--train", files[0], "--dev", files[1], "--set", "steps=1"]
    run_cli("finetune", "--features", "none", *rest, "--out", tmp_path / "over")
    for args, match in (
        (("evaluate", *models, "--data", files[1]), "several models are an ensemble: set --ensemble"),
        (("evaluate", models[0], "--data", files[1], "--ensemble"), "--ensemble is for several models"),
        (("evaluate", *models, tmp_path / "a", "--data", files[1], "--ensemble"), "a/model is given twice"),
        (("evaluate", models[0], project.path / "run-tagging/model", "--data", files[1], "--ensemble"), "another task"),
        (("predict", *models, "--data", files[1], "--out", both), "several models are an ensemble: set --ensemble"),
        (
            ("evaluate", models[0], tmp_path / "over/model", "--data", files[1], "--ensemble"),
            "is trained over features",
        ),
        (("compare", tmp_path), "is not a finished run|p.svg|results.json"),
        (("compare", tmp_path / "a", "--out", tmp_path / "p.xls"), "plotted as .png"),
        (("finetune", base, *shared, "--out", tmp_path / "c", "--grid", "lr"), "is not name=value"),
        (("benchmark", "glue", base, "--data", tmp_path, "--out", tmp_path / "d"), "holds none of the data sets"),
    ):
        if args[:2] != ("compare", tmp_path):
            rejects(*args, match=match)


def test_last_words(project, run_cli, tmp_path, rejects):
    model = polyseme.load(project.path / "run-gpt2/model")
    texts = [("The old cat sees the", "dog"), ("The wolf hears the bird in the", "forest")]
    found = model.score_last_words(texts)
    for (context, word), one in zip(texts, found):
        whole, part = model.score([f"{context} {word}", context])
        assert one.score.log_prob == pytest.approx(whole.log_prob - part.log_prob, abs=1e-4)
        assert one.score.num_tokens == whole.num_tokens - part.num_tokens and one.num_truncated == 0
    ids = model.tokenizer.encode(texts[0][0])
    with torch.no_grad():
        tokens = torch.tensor([*model.bos_ids, *ids])
        best = model.tokenizer.decode([int(_next(model, tokens))]).strip()
    if best and " " not in best:
        (said,) = model.score_last_words([(texts[0][0], best)])
        assert said.is_correct or said.score.num_tokens > 1
    (long,) = model.score_last_words([("The old cat. " * 30, "dog")])
    assert long.num_truncated > 0
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"context": a, "continuation": b}) + "\n" for a, b in texts))
    (tmp_path / "l.txt").write_text("".join(f"{a} {b}\n" for a, b in texts))
    for name in ("l.txt", "l.jsonl"):
        assert [(each.context, each.word) for each in LambadaFile.open(tmp_path / name)] == texts
    told = json.loads(run_cli("score", project.path / "run-gpt2/model", "--last-words", tmp_path / "l.jsonl", "--json"))
    assert told["texts"] == 2 and told["accuracy"] == sum(one.is_correct for one in found) / 2
    mean = sum(one.score.log_prob for one in found) / 2
    assert told["perplexity"] == pytest.approx(math.exp(-mean), rel=1e-4)
    (tmp_path / "bad.txt").write_text("word\n")
    with pytest.raises(PolysemeError, match=r"bad\.txt:1: not a passage of several words"):
        list(LambadaFile.open(tmp_path / "bad.txt"))
    rejects(
        "score",
        project.path / "run-tagging/model",
        "--last-words",
        tmp_path / "l.txt",
        match="cannot predict last words",
    )


def _next(model, tokens):
    from polyseme.nn.packing import PackedLayout

    layout = PackedLayout.from_lengths([len(tokens)])
    last = model.model.trunk(Inputs(tokens.to(model.device), layout)).hidden
    return model.model.predict("next", last, layout, torch.tensor([len(tokens) - 1])).argmax()
