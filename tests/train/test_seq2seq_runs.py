"""Recurrent translation by its commands: a toy language, every kind of attention, resuming, explanations, features."""

import importlib
import json
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import polyseme
from polyseme.explain.attention import explain_attention
from polyseme.recipes import get_training_recipe
from polyseme.train import pretrain as module
from polyseme.train.recipe import BudgetConfig
from tests.support.commands import run_cli
from tests.support.text import ADJECTIVES, ANIMALS, PLACES, VERBS

WORDS = {word: f"{word[::-1]}o" for word in (*ANIMALS, *VERBS, *ADJECTIVES, *PLACES)}
KINDS = {
    "none": ["model.attention=none"],
    "multiplicative": ["objective.scheduled_sampling=0.2", "objective.scheduled_sampling_epochs=4"],
    "additive": ["model.attention=additive", "model.context_order=inside_recurrence", "model.cell=gru"],
}
SHORT = ["model.dim=48", "model.dropout=0.0", "max_len=48", "batch_tokens=768", "micro_batch_tokens=768",
         "budget.steps=60", "optimizer.lr=1e-2", "schedule.warmup=20", "eval_every=200", "save_every=20",
         "num_averaged=2", "valid_fraction=0.02"]  # fmt: skip


def rows(number, seed):
    draw = random.Random(seed)
    for _ in range(number):
        words = [draw.choice(ADJECTIVES), draw.choice(ANIMALS), draw.choice(VERBS), draw.choice(PLACES)]
        words = words[: draw.randint(2, 4)]
        yield " ".join(words), " ".join(WORDS[w] for w in words)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seq2seq")
    for name, number, seed in (("train", 1500, 1), ("test", 30, 2)):
        both = list(rows(number, seed))
        for i, side in enumerate(("en", "xx")):
            (folder / f"{name}.{side}").write_text("".join(pair[i] + "\n" for pair in both))
    sides = folder / "train.en", folder / "train.xx"
    run_cli("tokenizer", "train", *sides, "--kind", "bpe", "--vocab-size", 380, "--out", folder / "joint")
    run_cli("pairs", *sides, "--tokenizer", folder / "joint", "--out", folder / "pairs")
    return folder


def train(kind, folder):
    """Train a model of a kind, once; return its run folder."""
    if not (folder / kind).exists():
        given = [part for change in (*SHORT, *KINDS[kind]) for part in ("--set", change)]
        run_cli("pretrain", "seq2seq-tiny", "--corpus", folder / "pairs", "--out", folder / kind, *given)
    return folder / kind


@pytest.mark.parametrize("kind", ["none", "multiplicative", pytest.param("additive", marks=pytest.mark.slow)])
def test_it_learns_the_language_and_shows_where_it_looked(kind, made, tmp_path):
    model = train(kind, made) / "model"
    said = run_cli("translate", model, "--data", made / "test.en", "--reference", made / "test.xx", "--out",
                tmp_path / "out.txt", "--json")  # fmt: skip
    assert json.loads(said)["bleu"] > (30 if kind == "none" else 60)
    run_cli("explain", model, "--text", "old cat sees river", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    if kind == "none":
        assert "this model has no attention" in page and "layer 1" not in page
        with pytest.raises(polyseme.ConfigError, match=r"`layer` has no effect: .* has no attention"):
            explain_attention([polyseme.load(model, device="cpu")], ["old cat"], layer=1)
        return
    shares = [float(x) for x in re.findall(r"<title>[^<]*: ([\d.]+)</title>", page)]
    assert "cross-attention (target to source), layer 1, head 1" in page and max(shares) > (
        0.3 if kind == "additive" else 0.4
    )
    writer = polyseme.load(model, device="cpu")._text_generator
    from polyseme.explain.translation import align

    found = align(writer, writer.encode_source("old cat"), [7, 8])
    assert found.weights.shape == (1, 1, 3, len(found.source_pieces))
    assert found.weights.sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["multiplicative", pytest.param("additive", marks=pytest.mark.slow)])
def test_resumed_it_ends_with_the_same_weights(kind, made, tmp_path, monkeypatch):
    """The first run uses scheduled sampling."""
    recipe = get_training_recipe(str(train(kind, made) / "recipe.json"))
    recipe = recipe.replace(budget=BudgetConfig(steps=16), save_every=4, model=recipe.model | {"dropout": 0.2})
    recipe = recipe.replace(objective=recipe.objective.replace(scheduled_sampling_epochs=0))
    module.pretrain(recipe, made / "pairs", tmp_path / "whole")
    save = module.save_checkpoint

    def crash(folder, checkpoint, keep):
        save(folder, checkpoint, keep)
        if checkpoint.step == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", crash)
        with pytest.raises(KeyboardInterrupt):
            module.pretrain(recipe, made / "pairs", tmp_path / "cut")
    module.pretrain(recipe, made / "pairs", tmp_path / "cut", resume=True)
    a, b = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "cut"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_what_it_cannot_be(made, rejects, tmp_path):
    def run(*changes, match):
        given = [part for change in changes for part in ("--set", change)]
        rejects("pretrain", "seq2seq-tiny", "--corpus", made / "pairs", "--out", tmp_path / "r", *given, match=match)

    run("model.attention=hard", match=["model.attention is 'hard'", "'cosine'"])
    run("model.context_order=before", match="'inside_recurrence', 'after_recurrence'")
    run("model.dim=33", match="dim is 33")
    run("compile=true", match=["compile is true", "seq2seq does not support", "set it to false"])
    run("objective.scheduled_sampling=2", match="scheduled_sampling is 2")


@pytest.mark.slow
def test_the_benchmark_keeps_what_is_done(made, tmp_path, monkeypatch, capsys):
    """The benchmark runs models in separate processes and does not repeat what it has measured."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    benchmark = importlib.import_module("translation")
    out = tmp_path / "out"
    given = ["translation.py", "--corpus", made / "pairs", "--test", made / "test.en", made / "test.xx", "--out", out]
    given += ["--models", "dot-inside", "seq2seq-tiny", "--seeds", 2, "--beams", 2]
    given += [part for change in ("model.dim=16", *SHORT[2:], "budget.steps=2") for part in ("--set", change)]
    asked = []

    def process(command, stdout, stderr, env):
        """Run the command in this process."""
        asked.append(command[-2:])
        monkeypatch.setattr(sys, "argv", command[1:])
        benchmark.main()
        monkeypatch.setattr(sys, "argv", [*map(str, given)])
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(benchmark.subprocess, "Popen", process)
    monkeypatch.setattr(benchmark, "header", str)  # which asks git
    monkeypatch.setattr(sys, "argv", [*map(str, given)])
    benchmark.main()
    assert asked == [[model, seed] for seed in "01" for model in ("dot-inside", "seq2seq-tiny")]
    said, found = capsys.readouterr().out, json.loads((out / "results.json").read_text())
    assert len(found) == 4 and {one["seed"] for one in found} == {0, 1} and "| dot-inside | 0.0 | 2 |" in said
    assert (
        json.loads((out / "dot-inside/seed-1/recipe.json").read_text())["recipe"]["model"]["context_order"]
        == "inside_recurrence"
    )
    (out / "seq2seq-tiny/seed-1/result.json").unlink()
    benchmark.main()
    assert asked[4:] == [["seq2seq-tiny", "1"]] and len(json.loads((out / "results.json").read_text())) == 4
