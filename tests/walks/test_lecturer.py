"""A lecturer: models of several generations on the same text, compared on equal terms, and pages to show."""

import json
import math

import pytest

import polyseme
from tests.support.project import tiny_recipe
from tests.support.text import documents


@pytest.fixture(scope="module")
def course(tmp_path_factory, run_cli):
    """An n-gram model, a GPT and a masked model on the same text."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "text.txt").write_text("\n\n".join(documents(60)) + "\n")
    for kind in ("bpe", "wordpiece"):
        run_cli("tokenizer", "train", folder / "text.txt", "--kind", kind, "--vocab-size", 300, "--out", folder / kind)
        corpus = folder / f"{kind}-corpus"
        run_cli("prepare", folder / "text.txt", "--split", "blank", "--tokenizer", folder / kind, "--out", corpus)
    for family in ("gpt2", "bert"):
        (folder / f"{family}.json").write_text(json.dumps(tiny_recipe(family)))
    for name, recipe, kind in (
        ("gpt2", folder / "gpt2.json", "bpe"),
        ("gpt2-wordpiece", folder / "gpt2.json", "wordpiece"),
        ("bert", folder / "bert.json", "wordpiece"),
        ("ngram", "ngram-3", "bpe"),
    ):
        run_cli("pretrain", recipe, "--corpus", folder / f"{kind}-corpus", "--out", folder / name)
    return folder


def test_runs_are_compared_by_bits_per_character(course, run_cli, tmp_path):
    """Perplexities over different tokens are not comparable; bits per character are."""
    table = run_cli("compare", course / "gpt2", course / "gpt2-wordpiece", "--out", tmp_path / "comparison")
    assert "bits/char" in table and "gpt2-wordpiece" in table
    comparison = polyseme.compare([course / "gpt2", course / "gpt2-wordpiece"])
    assert [run.name for run in comparison.runs] == ["gpt2", "gpt2-wordpiece"]
    assert all(0 < run.bits_per_character < 10 for run in comparison.runs)
    page = next((tmp_path / "comparison").glob("*.html")).read_text()
    assert "<svg" in page and "gpt2-wordpiece" in page


def test_one_text_in_every_model(course):
    for name in ("gpt2", "bert", "ngram"):
        score = polyseme.load(course / name).score("The old cat sees the young dog in the river.")
        assert math.isfinite(score.bits_per_character) and score.num_tokens > 0


def test_pages(course, run_cli, tmp_path):
    """Each page stands alone: no external address, readable on a phone, dark mode."""
    run_cli("describe", course / "bpe-corpus", "--out", tmp_path / "corpus.html")
    for page in (tmp_path / "corpus.html", course / "gpt2/report.html", course / "bert/report.html"):
        html = page.read_text()
        assert "prefers-color-scheme:dark" in html and "width=device-width" in html
        assert "src=" not in html and "@import" not in html and "<link" not in html
    assert "What the model writes" in (course / "gpt2/report.html").read_text()


def test_a_finished_run_is_extended(course, run_cli):
    run_cli("pretrain", "--resume", "--out", course / "gpt2", "--budget", "9steps")
    assert json.loads((course / "gpt2/results.json").read_text())["steps"] == 9


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--set", "objective=CausalML"], "CausalLM"),
        (["--set", "objective.rate=0"], "rate"),
        (["--budget", "5steps", "--set", "budget.minutes=1"], "budget"),
    ],
)
def test_settings_that_cannot_be_meant(arguments, match, course, rejects, tmp_path):
    corpus = course / "wordpiece-corpus"
    rejects("pretrain", course / "bert.json", "--corpus", corpus, "--out", tmp_path / "r", *arguments, match=match)


def test_a_diverged_run_says_so(course, cli, tmp_path):
    run, corpus = tmp_path / "run", course / "bpe-corpus"
    completed = cli("pretrain", course / "gpt2.json", "--corpus", corpus, "--out", run, "--set", "optimizer.lr=50")
    results = json.loads((run / "results.json").read_text())
    assert results["warnings"] and completed.status == 0
    assert results["warnings"][0][:30] in completed.out + completed.err
    assert results["warnings"][0][:30] in (run / "report.html").read_text()
