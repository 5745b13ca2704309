"""ULMFiT end to end at a tiny scale: three stages, two directions, the low-shot curve, invalid input."""

import json
import random
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from polyseme.cli.main import main
from polyseme.errors import PolysemeError
from polyseme.families import FAMILIES
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.inference.prediction import predict
from polyseme.inference.verify import verify
from polyseme.pipelines import ulmfit
from polyseme.recipes import RECIPES
from polyseme.recipes.ulmfit import build_target_recipe, to_backward
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.encoded import RowScores
from polyseme.tasks.regression import RegressionTask
from polyseme.tasks.sequence import TextExample
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.warm_start import init_from_model
from polyseme.weights.folder import load_model, save_model
from tests.support.runs import folder_bytes, freeze_times, run_with_kills

WORDS = ["the", "a", "red", "blue", "cat", "dog", "bird", "house", "tree", "sea", "man", "child", "walks", "runs",
         "sees", "eats", "often", "never", "good", "great", "bad", "awful"]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("ulmfit"), random.Random(0)

    def sentence():
        return " ".join(rng.choices(WORDS, k=rng.randint(4, 9))).capitalize() + "."

    (folder / "general.txt").write_text(" ".join(sentence() for _ in range(250)))
    for name, number in (("train", 40), ("dev", 20)):
        rows = ["text\tlabel"]
        for i in range(number):
            words = rng.choices(WORDS[:18], k=rng.randint(3, 8))
            words.insert(rng.randrange(len(words)), rng.choice(("good", "great") if i % 2 else ("bad", "awful")))
            rows.append(f"{' '.join(words)}\t{'pos' if i % 2 else 'neg'}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def run_command(monkeypatch, files, out, *options):
    inputs = ["--text", files / "general.txt", "--train", files / "train.tsv", "--dev", files / "dev.tsv"]
    short = ["--preset", "tiny", "--budget", "4steps", "--set", "vocab_size=330", "--set", "target_epochs=0.2",
             "--set", "classifier.epochs=2"]  # fmt: skip
    arguments = [*inputs, "--out", out, *short, *options]
    monkeypatch.setattr("sys.argv", ["polyseme", "ulmfit", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code


def test_three_stages_in_both_directions_and_low_shot_curve(files, tmp_path, monkeypatch, capsys):
    out, unfreezing = tmp_path / "run", ("--set", "classifier.unfreeze_every=0.5")
    assert run_command(monkeypatch, files, out, "--direction", "both", *unfreezing, "--seeds", "2") == 0
    stdout = capsys.readouterr().out
    assert [line.split()[0] for line in stdout.splitlines()[1:4]] == ["forward", "backward", "both"]
    results = json.loads((out / "results.json").read_text())
    assert [len(seeds) for seeds in results["seeds"].values()] == [2, 2, 2]
    for direction, head in (("forward", "next"), ("backward", "previous")):
        for stage in ("general", "target"):
            assert set(load_model(out / f"{stage}-{direction}" / "model").model.heads) == {head}
        folder = load_model(out / f"classifier-{direction}" / "model")
        assert (
            folder.model.config.trunk.direction == direction
            and folder.model.config.heads["classify"].pooling == "concat"
        )
    saved_recipe = json.loads((out / "target-forward" / "recipe.json").read_text())
    assert (
        saved_recipe["initialized_from"].endswith("general-forward/model")
        and len(saved_recipe["initialized_from_hash"]) == 64
    )
    assert saved_recipe["recipe"]["optimizer"]["layer_decay"] == pytest.approx(1 / 2.6)

    classifiers = [str(out / f"classifier-{direction}" / "model") for direction in ("forward", "backward")]
    monkeypatch.setattr("sys.argv", ["polyseme", "evaluate", *classifiers, "--ensemble", "--data",
                                     str(files / "dev.tsv"), "--json"])  # fmt: skip
    with pytest.raises(SystemExit):
        main()
    together, folders = json.loads(capsys.readouterr().out), [load_model(path) for path in classifiers]
    dev = ClassificationTask.read(files / "dev.tsv")
    pairs = zip(*(predict(folder, dev) for folder in folders))
    sums = [{label: a.probabilities[label] + b.probabilities[label] for label in a.probabilities} for a, b in pairs]
    assert together["accuracy"] == sum(max(s, key=s.get) == e.label for s, e in zip(sums, dev)) / len(dev)

    # the curve uses the same general models and continues after its finished points
    modified = (out / "general-forward" / "results.json").stat().st_mtime_ns
    assert run_command(monkeypatch, files, out, "--direction", "both", *unfreezing, "--train-sizes", "12") == 0
    stdout = capsys.readouterr().out
    assert [line.split("  ")[0] for line in stdout.splitlines()[1:4]] == list(ulmfit.CURVE_ROWS)
    points = json.loads((out / "curve.json").read_text())
    assert [(d["size"], d["row"]) for d in points] == [(n, row) for n in (12,) for row in ulmfit.CURVE_ROWS]
    assert {d["direction"] for d in points} == {"both"}
    assert (out / "general-forward" / "results.json").stat().st_mtime_ns == modified
    page = (out / "report.html").read_text()
    assert "<svg" in page and "Error by number of examples" in page and "Results" in page
    assert not list(out.glob("few-*"))
    monkeypatch.setattr(ulmfit, "finetune_classifier", lambda *a, **k: pytest.fail("the points are finished"))
    assert run_command(monkeypatch, files, out, "--direction", "both", *unfreezing, "--train-sizes", "12") == 0


def test_invalid_input_gives_one_line(files, tmp_path, monkeypatch, capsys):
    classifier = tmp_path / "classifier"
    tokenizer = Tokenizer.train("bpe", iter([" ".join(WORDS)] * 20), 300)
    spec = FAMILIES["ulmfit"].model_config("tiny", vocab_size=tokenizer.vocab_size)
    save_model(classifier, spec.replace(heads={}).build(seed=0), tokenizer)
    (files / "one.tsv").write_text("text\tlabel\n" + "the cat\tgood\n" * 9)
    for options, message in (
        (["--preset", "huge"], "preset is 'huge', expected one of 'tiny', 'lecture', 'paper'"),
        (["--direction", "up"], "direction is 'up'"),
        (["--train-sizes", "10,many"], "--train-sizes is '10,many': whole numbers"),
        (["--train-sizes", "10,900"], "a training set size is 900, expected 2 to 40"),
        (["--general-models", classifier], "pass one of text"),
        (["--set", "classifier.epoch=3"], "unknown key 'epoch' in FinetuneConfig; did you mean 'epochs'?"),
        (["--set", "classifier.unfreeze_every=-1"], "unfreeze_every is -1.0, expected 0 or more"),
        (["--budget", "long"], "a budget is a time such as"),
        ([], "16 steps end before all 3 groups are unfrozen, at step 24"),
        (["--train", files / "one.tsv"], "the training data has only the label 'good'"),
        (["--dev", files / "one.tsv"], "one.tsv:2: the label 'good' was never seen in training; valid: neg, pos"),
    ):
        assert run_command(monkeypatch, files, tmp_path / "out", *options) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error and not (tmp_path / "out").exists()
    with pytest.raises(PolysemeError, match="is not a ulmfit language model"):
        ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny"), tmp_path, [], None, [classifier])
    save_model(tmp_path / "lm", spec.build(seed=0), tokenizer)
    with pytest.raises(PolysemeError, match="general_models has no backward model"):
        ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny", "both"), tmp_path, [], None, [tmp_path / "lm"])
    pretrained = ulmfit.pretrain_general_lm(ulmfit.UlmfitConfig("tiny"), tmp_path, [], None, [tmp_path / "lm"])
    config = pretrained["forward"].recipe.model_config(tokenizer.vocab_size)
    assert config.trunk == spec.trunk


def test_stratified_sample_has_every_label():
    examples = [TextExample(f"d:{i}", str(i), label="rare" if i == 77 else "abc"[i % 3]) for i in range(100)]
    for seed in range(5):
        sample = ulmfit.stratified_sample(examples, 9, seed)
        assert len(sample) == len({e.text for e in sample}) == 9 and {e.label for e in sample} == {
            "a",
            "b",
            "c",
            "rare",
        }
        assert sample == ulmfit.stratified_sample(examples, 9, seed)
    assert ulmfit.stratified_sample(examples, 9, 0) != ulmfit.stratified_sample(examples, 9, 1)
    with pytest.raises(PolysemeError, match="3 examples cannot contain all 4 labels"):
        ulmfit.stratified_sample(examples, 3, 0)


def test_average_probabilities():
    examples = [TextExample("d:1", "x"), TextExample("d:2", "y")]
    shares = np.log([[[[0.6, 0.4]], [[0.9, 0.1]]], [[[0.1, 0.9]], [[0.3, 0.7]]]])
    task, scores = ClassificationTask(labels=("a", "b")), [[RowScores(row, row) for row in rows] for rows in shares]
    predictions = task.decode([(None, row) for row in task.average(scores, None, None)], examples)
    assert [p.label for p in predictions] == ["b", "a"]
    assert predictions[0].probabilities == pytest.approx({"a": 0.35, "b": 0.65})
    numbers = [[RowScores(np.array([[number]]), np.zeros(1))] for number in (1.0, 4.0)]
    assert RegressionTask().average(numbers, None, None)[0].logits.item() == 2.5


def test_init_from_model(files, tmp_path):
    """Weights come from the folder, dropout from the recipe; another family, size or vocabulary raises."""
    texts = (files / "general.txt").read_text().split(". ")
    tokenizer = Tokenizer.train("bpe", iter(texts), 330)
    corpus = ulmfit.prepare_target_corpus(tmp_path / "corpus", tokenizer, texts)
    sizes = {"num_layers": 2, "dim": 12, "hidden_dim": 16}
    saved = FAMILIES["ulmfit"].model_config(vocab_size=tokenizer.vocab_size, **sizes).build(seed=5)
    save_model(tmp_path / "model", saved, tokenizer)
    recipe = RECIPES["ulmfit-tiny"]().replace(model=sizes | {"dropout": 0.25}, size="")
    initialized = init_from_model(tmp_path / "model", recipe, corpus).model
    state = saved.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in initialized.state_dict().items())
    assert initialized.config.trunk.weight_dropout == 0.125
    for wrong, message in (
        (recipe.replace(model={**sizes, "hidden_dim": 20}), "give the recipe the sizes of the model"),
        (recipe.replace(model={**sizes, "num_layers": 1}), "cells|sizes"),
        (recipe.replace(model={**sizes, "num_layers": 3}), "trunk.stacks.0.1.cells.0.weight_ih is"),
        (to_backward(recipe), "has no heads.previous.bias"),
        (RECIPES["rnn_lm-tiny"](), "is of the family ulmfit, but rnn_lm-tiny is for rnn_lm"),
    ):
        with pytest.raises(PolysemeError, match=message):
            init_from_model(tmp_path / "model", wrong, corpus)
    other = ulmfit.prepare_target_corpus(tmp_path / "other", Tokenizer.train("bpe", iter(texts), 300), texts)
    with pytest.raises(PolysemeError, match="has another vocabulary"):
        init_from_model(tmp_path / "model", recipe, other)


def test_target_recipe_scales_with_the_text():
    recipe = RECIPES["ulmfit-paper"]()
    few, many = build_target_recipe(recipe, 1_000), build_target_recipe(recipe, 10_000_000, epochs=2.0)
    assert few.micro_batch_tokens == 70 and few.budget.steps == int(10 * 1000 / (0.975 * 70))
    assert many.micro_batch_tokens == 64 * 70 and many.budget.steps == int(2e7 / (0.975 * 4480))
    assert (many.schedule.shape, many.schedule.warmup, many.schedule.slanted_ratio) == ("slanted", 0.1, 32)
    many.check()


@pytest.mark.parametrize("direction", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
def test_classifier_of_long_texts_in_chunks(direction, tmp_path):
    """The states of all chunks are pooled, so a decisive word may be anywhere; batching does not change predictions."""
    rng = random.Random(1)
    examples = []
    for i in range(160):
        words = rng.choices(WORDS[:18], k=24)
        words[rng.randrange(24)] = "awful" if i % 2 else "great"
        examples.append(TextExample(f"d:{i}", " ".join(words), label="no" if i % 2 else "yes"))
    tokenizer = Tokenizer.train("bpe", iter([" ".join(WORDS)] * 20), 400)
    sizes = {"num_layers": 2, "dim": 24, "hidden_dim": 32, "dropout": 0.0, "direction": direction}
    spec = FAMILIES["ulmfit"].model_config(vocab_size=tokenizer.vocab_size, **sizes)
    save_model(tmp_path / "model", spec.build(seed=0), tokenizer)
    settings = FinetuneConfig(
        epochs=10, batch_size=16, chunk_size=8, optimizer=OptimizerConfig(lr=0.01, weight_decay=0.0)
    )
    results = finetune(
        tmp_path / "model", TaskData(ClassificationTask(), examples, examples[:60]), tmp_path / "out", settings
    )
    assert results["mean"]["accuracy"] > 0.9
    folder = load_model(tmp_path / "out" / "model")
    together = predict(folder, examples[:8])
    for i in range(8):
        alone = predict(folder, examples[i : i + 1])[0]
        assert alone.probabilities == pytest.approx(together[i].probabilities, abs=1e-5)


def without_pretraining_times(folder):
    """The contents of a folder except the times of its pre-training stages, and the hashes of cards with such times."""
    names = ("log.jsonl", "results.json", "report.html", "polyseme.json", "state.json", "SHA256SUMS")
    contents = {
        name: content
        for name, content in folder_bytes(folder).items()
        if "tensorboard" not in name and not (name.startswith("run/target-") and name.endswith(names))
        if name != "run/SHA256SUMS"
    }
    for name in contents:
        if name.startswith("run/target-") and name.endswith("model/README.md"):
            contents[name], num_times = re.subn(rb"\| device-hours \| \S+ \||\(sha256 \w+\)", b"", contents[name])
            assert num_times == 2
    return contents


@pytest.mark.parametrize("is_curve", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_run_ends_with_the_same_bytes(files, tmp_path, monkeypatch, is_curve):
    freeze_times(monkeypatch)
    config = ulmfit.UlmfitConfig("tiny", "both", 330, "2steps", target_epochs=0.1)
    config = config.replace(classifier=config.classifier.replace(epochs=0.6, unfreeze_every=0.1, batch_size=10))
    pretrained = ulmfit.pretrain_general_lm(config, tmp_path / "general", [str(files / "general.txt")], None, [])
    examples = [ClassificationTask.read(files / f"{name}.tsv") for name in ("train", "dev")]

    def run(folder):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)  # results contain paths
        if is_curve:
            return ulmfit.low_shot_curve(config, Path("run"), pretrained, *examples, [12])
        return ulmfit.run_ulmfit(config, Path("run"), pretrained, *examples, seeds=[0, 1])

    whole = run(tmp_path / "whole")
    assert run_with_kills(partial(run, tmp_path / "killed"), growth=30) > 2
    assert without_pretraining_times(tmp_path / "whole") == without_pretraining_times(tmp_path / "killed")
    assert is_curve or verify(tmp_path / "killed/run").has_hashes
    assert not is_curve or run(tmp_path / "killed") == whole


def test_the_preset_suits_the_machine(tmp_path, monkeypatch, capsys):
    for has_gpu, preset in ((True, "paper"), (False, "tiny")):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        assert ulmfit.UlmfitConfig().preset == preset == ulmfit.choose_preset(tmp_path)
        assert f"the preset is {preset}, because this machine has" in capsys.readouterr().err
    (tmp_path / "ulmfit.json").write_text('{"config": {"preset": "lecture"}}')
    assert ulmfit.choose_preset(tmp_path) == "lecture", "a run that is continued keeps its preset"
    assert capsys.readouterr().err == ""
