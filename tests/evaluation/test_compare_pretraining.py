"""Comparisons of pre-training runs: figures that do not depend on the tokenizer, curves, and runs of one kind."""

import json
import math

import numpy as np
import pytest

import polyseme
from polyseme.corpus.inspect.characters import characters_per_token
from polyseme.corpus.store import Corpus
from polyseme.text.tokenizer import Tokenizer


def test_table_and_curves(project, tmp_path, run_cli):
    runs = [project.path / f"run-{name}" for name in ("bert", "gpt2")]
    comparison = polyseme.compare(runs, out=tmp_path / "both")
    assert [run.name for run in comparison.runs] == ["run-bert", "run-gpt2"]
    for run, path in zip(comparison.runs, runs):
        results = json.loads((path / "results.json").read_text())
        expected = run.loss / results["characters_per_token"] / math.log(2)
        assert run.bits_per_character == pytest.approx(expected) and run.num_tokens == results["tokens"]
        curve = run.valid_curve
        assert curve.steps[-1] == run.num_steps and curve.loss[-1] == pytest.approx(run.loss)
        costs = curve.tokens[-1], curve.flops[-1], curve.minutes[-1]
        assert costs == pytest.approx((run.num_tokens, run.flops, run.minutes))
        assert all(np.diff(run.train_curve.tokens) > 0) and len(run.train_curve.loss) == len(run.train_curve.steps)
    written = json.loads((tmp_path / "both/compare.json").read_text())
    assert [run["name"] for run in written["runs"]] == ["run-bert", "run-gpt2"]
    table = run_cli("compare", *runs).splitlines()
    assert table[0].split()[:5] == ["run", "recipe", "loss", "perplexity", "bits/char"] and "masked tokens" in table[3]


def test_kinds_do_not_mix(project, tmp_path, rejects):
    pretraining, finetuning = project.path / "run-bert", project.path / "run-classification"
    rejects("compare", pretraining, finetuning, match="run-bert is a pre-training run and .*run-classification is not")
    rejects("compare", pretraining, pretraining, match="run-bert is given twice")
    rejects("compare", pretraining, "--out", tmp_path / "p.svg", match="a plot is of fine-tuning runs")
    rejects("compare", pretraining, "--out", tmp_path / "p.txt", match="is written to a folder, or plotted as")
    # the model of a run stands for the run
    assert polyseme.compare([pretraining / "model"]).runs[0].path == pretraining


@pytest.mark.parametrize(
    ("kind", "vocab_size", "tolerance"), [("wordpiece", 160, 0.03), ("bpe", 320, 1e-9), ("unigram", 90, 0.01)]
)
def test_characters_per_token(tmp_path, kind, vocab_size, tolerance):
    texts = [f"The {i} quick brown foxes, tired of running, jump over {'naïve ' * (i % 3)}dogs." for i in range(40)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer.train(kind, iter(texts), vocab_size)
    polyseme.prepare(tmp_path / "text.jsonl", tokenizer, tmp_path / "corpus", dedup="none", num_workers=1)
    corpus = Corpus.open(tmp_path / "corpus")
    chosen = [3, 4, 11]
    subset = corpus.select(np.array(chosen))
    expected = sum(len(texts[i]) for i in chosen) / subset.num_tokens
    assert characters_per_token(corpus, subset, tokenizer) == pytest.approx(expected, rel=tolerance)
