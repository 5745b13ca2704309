"""ULMFiT end to end on a tiny scale: three stages, both directions averaged, the low-shot curve, bad input."""

import json
import random

import numpy as np
import pytest
import torch

from polyseme.cli.main import main
from polyseme.errors import PolysemeError
from polyseme.evaluation.ensemble import average_probabilities
from polyseme.evaluation.predict import predict
from polyseme.families import FAMILIES
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.pipelines import ulmfit
from polyseme.recipes import RECIPES
from polyseme.recipes.ulmfit import build_target_recipe, to_backward
from polyseme.tasks.examples import Example, read_examples
from polyseme.tasks.task import Task
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.warm_start import init_from_model
from polyseme.weights.folder import load_model, save_model

WORDS = ["the", "a", "red", "blue", "cat", "dog", "bird", "house", "tree", "sea", "man", "child", "walks", "runs",
         "sees", "eats", "often", "never", "good", "great", "bad", "awful"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("ulmfit"), random.Random(0)

    def sentence():
        return " ".join(draw.choices(WORDS, k=draw.randint(4, 9))).capitalize() + "."

    (folder / "general.txt").write_text(" ".join(sentence() for _ in range(250)))
    for name, number in (("train", 40), ("dev", 20)):
        rows = ["text\tlabel"]
        for i in range(number):
            words = draw.choices(WORDS[:18], k=draw.randint(3, 8))
            words.insert(draw.randrange(len(words)), draw.choice(("good", "great") if i % 2 else ("bad", "awful")))
            rows.append(f"{' '.join(words)}\t{'pos' if i % 2 else 'neg'}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def call(monkeypatch, files, out, *more):
    usual = ["--text", files / "general.txt", "--train", files / "train.tsv", "--dev", files / "dev.tsv"]
    short = ["--preset", "tiny", "--budget", "4steps", "--set", "vocab_size=330", "--set", "target_epochs=0.2",
             "--set", "classifier.epochs=4"]  # fmt: skip
    given = [*usual, "--out", out, *short, *more]
    monkeypatch.setattr("sys.argv", ["polyseme", "ulmfit", *map(str, given)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


def test_three_stages_both_ways_and_the_curve(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    assert call(monkeypatch, files, out, "--direction", "both", "--seeds", "2") == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == ["forward", "backward", "both"]
    results = json.loads((out / "results.json").read_text())
    assert [len(found) for found in results["seeds"].values()] == [2, 2, 2]
    for direction, head in (("forward", "next"), ("backward", "previous")):
        for stage in ("general", "target"):
            assert set(load_model(out / f"{stage}-{direction}" / "model").model.heads) == {head}
        folder = load_model(out / f"classifier-{direction}" / "model")
        assert (
            folder.model.config.trunk.direction == direction
            and folder.model.config.heads["classify"].pooling == "concat"
        )
    begun = json.loads((out / "target-forward" / "recipe.json").read_text())
    assert begun["initialized_from"].endswith("general-forward/model") and len(begun["initialized_from_hash"]) == 64
    assert begun["recipe"]["optimizer"]["layer_decay"] == pytest.approx(1 / 2.6)

    both = [str(out / f"classifier-{direction}" / "model") for direction in ("forward", "backward")]
    monkeypatch.setattr("sys.argv", ["polyseme", "evaluate", *both, "--ensemble", "--data",
                                     str(files / "dev.tsv"), "--json"])  # fmt: skip
    with pytest.raises(SystemExit):
        main()
    together, folders = json.loads(capsys.readouterr().out), [load_model(path) for path in both]
    dev = read_examples(files / "dev.tsv", "classification")
    said = zip(*(predict(folder, dev) for folder in folders))
    sums = [{label: a.probabilities[label] + b.probabilities[label] for label in a.probabilities} for a, b in said]
    assert together["accuracy"] == sum(max(s, key=s.get) == e.label for s, e in zip(sums, dev)) / len(dev)

    # the curve goes on from the same general models, and from what was drawn of it before
    kept = (out / "general-forward" / "results.json").stat().st_mtime_ns
    assert call(monkeypatch, files, out, "--direction", "both", "--train-sizes", "12") == 0
    shown = capsys.readouterr().out
    assert [line.split("  ")[0] for line in shown.splitlines()[1:4]] == list(ulmfit.CURVE_ROWS)
    done = json.loads((out / "curve.json").read_text())
    assert [(d["size"], d["row"]) for d in done] == [(n, row) for n in (12,) for row in ulmfit.CURVE_ROWS]
    assert {d["direction"] for d in done} == {"both"}
    assert (out / "general-forward" / "results.json").stat().st_mtime_ns == kept
    page = (out / "report.html").read_text()
    assert "<svg" in page and "Error by number of examples" in page and "Results" in page
    assert not list(out.glob("few-*"))
    monkeypatch.setattr(ulmfit, "finetune_classifier", lambda *a, **k: pytest.fail("it is done"))
    assert call(monkeypatch, files, out, "--direction", "both", "--train-sizes", "12") == 0


def test_bad_input_is_one_line(files, tmp_path, monkeypatch, capsys):
    classifier = tmp_path / "classifier"
    tokenizer = Tokenizer.train("bpe", iter([" ".join(WORDS)] * 20), 300)
    spec = FAMILIES["ulmfit"].model_config("tiny", vocab_size=tokenizer.vocab_size)
    save_model(classifier, spec.replace(heads={}).build(seed=0), tokenizer)
    for more, said in (
        (["--preset", "huge"], "preset is 'huge', expected one of 'tiny', 'lecture', 'paper'"),
        (["--direction", "up"], "direction is 'up'"),
        (["--train-sizes", "10,many"], "--train-sizes is '10,many': whole numbers"),
        (["--train-sizes", "10,900"], "train sizes are from 2 to the 40 examples there are, not 900"),
        (["--general-models", classifier], "give one of text"),
        (["--set", "classifier.epoch=3"], "unknown key 'epoch' in FinetuneConfig; did you mean 'epochs'?"),
        (["--set", "classifier.unfreeze_every=-1"], "unfreeze_every is -1.0, expected 0 or more"),
        (["--budget", "long"], "a budget is a time such as"),
    ):
        assert call(monkeypatch, files, tmp_path / "out", *more) == 2
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error and not (tmp_path / "out").exists()
    with pytest.raises(PolysemeError, match="is no language model of ulmfit"):
        ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny"), tmp_path, [], None, [classifier])
    save_model(tmp_path / "lm", spec.build(seed=0), tokenizer)
    with pytest.raises(PolysemeError, match="none of general_models reads backward"):
        ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny", "both"), tmp_path, [], None, [tmp_path / "lm"])
    begun = ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny"), tmp_path, [], None, [tmp_path / "lm"])
    made = begun.recipes["forward"].model_config(tokenizer.vocab_size)
    assert made.trunk == spec.trunk


def test_few_examples_have_every_label():
    examples = [Example(f"d:{i}", str(i), label="rare" if i == 77 else "abc"[i % 3]) for i in range(100)]
    for seed in range(5):
        drawn = ulmfit.stratified_sample(examples, 9, seed)
        assert len(drawn) == len({e.text for e in drawn}) == 9 and {e.label for e in drawn} == {"a", "b", "c", "rare"}
        assert drawn == ulmfit.stratified_sample(examples, 9, seed)
    assert ulmfit.stratified_sample(examples, 9, 0) != ulmfit.stratified_sample(examples, 9, 1)
    with pytest.raises(PolysemeError, match="3 examples cannot have all of the 4 labels"):
        ulmfit.stratified_sample(examples, 3, 0)


def test_the_mean_of_several_models():
    examples = [Example("d:1", "x"), Example("d:2", "y")]
    first, second = ([np.array([row]) for row in rows] for rows in (([0.6, 0.4], [0.9, 0.1]), ([0.1, 0.9], [0.3, 0.7])))
    found = average_probabilities(Task("classification", ("a", "b")), [first, second], examples)
    assert [p.label for p in found] == ["b", "a"]
    assert found[0].probabilities == pytest.approx({"a": 0.35, "b": 0.65})
    (number,) = average_probabilities(Task("regression", ()), [[np.array([[1.0]])], [np.array([[4.0]])]], examples[:1])
    assert number.number == 2.5


def test_a_run_that_begins_from_a_folder(files, tmp_path):
    """Weights as they are, dropout as the recipe says; another family, size or vocabulary is an error."""
    texts = (files / "general.txt").read_text().split(". ")
    tokenizer = Tokenizer.train("bpe", iter(texts), 330)
    corpus = ulmfit.prepare_target_corpus(tmp_path / "corpus", tokenizer, texts)
    sizes = {"num_layers": 2, "dim": 12, "hidden_dim": 16}
    saved = FAMILIES["ulmfit"].model_config(vocab_size=tokenizer.vocab_size, **sizes).build(seed=5)
    save_model(tmp_path / "model", saved, tokenizer)
    recipe = RECIPES["ulmfit-tiny"]().replace(model=sizes | {"dropout": 0.25}, size="")
    begun = init_from_model(tmp_path / "model", recipe, corpus).model
    state = saved.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in begun.state_dict().items())
    assert begun.config.trunk.weight_dropout == 0.125
    for wrong, said in (
        (recipe.replace(model={**sizes, "hidden_dim": 20}), "give the recipe the sizes of the model"),
        (recipe.replace(model={**sizes, "num_layers": 1}), "cells|sizes"),
        (recipe.replace(model={**sizes, "num_layers": 3}), "trunk.stacks.0.1.cells.0.weight_ih is"),
        (to_backward(recipe), "has no heads.previous.bias"),
        (RECIPES["rnn_lm-tiny"](), "is of the family ulmfit, but rnn_lm-tiny is for rnn_lm"),
    ):
        with pytest.raises(PolysemeError, match=said):
            init_from_model(tmp_path / "model", wrong, corpus)
    other = ulmfit.prepare_target_corpus(tmp_path / "other", Tokenizer.train("bpe", iter(texts), 300), texts)
    with pytest.raises(PolysemeError, match="has another vocabulary"):
        init_from_model(tmp_path / "model", recipe, other)


def test_the_second_stage_is_short_where_text_is():
    recipe = RECIPES["ulmfit-paper"]()
    few, many = build_target_recipe(recipe, 1_000), build_target_recipe(recipe, 10_000_000, epochs=2.0)
    assert few.micro_batch_tokens == 70 and few.budget.steps == int(10 * 1000 / (0.975 * 70))
    assert many.micro_batch_tokens == 64 * 70 and many.budget.steps == int(2e7 / (0.975 * 4480))
    assert (many.schedule.shape, many.schedule.warmup, many.schedule.slanted_ratio) == ("slanted", 0.1, 32)
    many.check()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_classifier_of_long_texts_in_chunks(direction, tmp_path):
    """What tells them apart stands anywhere: states of all chunks are pooled. At work chunks change nothing."""
    draw = random.Random(1)
    examples = []
    for i in range(160):
        words = draw.choices(WORDS[:18], k=24)
        words[draw.randrange(24)] = "awful" if i % 2 else "great"
        examples.append(Example(f"d:{i}", " ".join(words), label="no" if i % 2 else "yes"))
    tokenizer = Tokenizer.train("bpe", iter([" ".join(WORDS)] * 20), 400)
    sizes = {"num_layers": 2, "dim": 24, "hidden_dim": 32, "dropout": 0.0, "direction": direction}
    spec = FAMILIES["ulmfit"].model_config(vocab_size=tokenizer.vocab_size, **sizes)
    save_model(tmp_path / "model", spec.build(seed=0), tokenizer)
    settings = FinetuneConfig(
        epochs=10, batch_size=16, chunk_size=8, optimizer=OptimizerConfig(lr=0.01, weight_decay=0.0)
    )
    results = finetune(tmp_path / "model", "classification", examples, examples[:60], tmp_path / "out", settings)
    assert results["mean"]["accuracy"] > 0.9
    folder = load_model(tmp_path / "out" / "model")
    together = predict(folder, examples[:8])
    for i in range(8):
        alone = predict(folder, examples[i : i + 1])[0]
        assert alone.probabilities == pytest.approx(together[i].probabilities, abs=1e-5)
