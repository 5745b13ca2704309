"""Warnings about runs that diverged, predicted nothing, or had the wrong tokenizer."""

import math
import re
from types import SimpleNamespace

import pytest

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.families import FAMILIES
from polyseme.recipes import get_recipe
from polyseme.train.monitoring.diagnostics import RunDiagnostics, describe_tokenizer_mismatch, measure_unigram_loss
from polyseme.train.recipe import BudgetConfig

UNIFORM = math.log(1000)


def diagnostics(name="bert-tiny", **changes):
    recipe = get_recipe(name).replace(**changes)
    sizes = {} if recipe.objective.is_sparse else {recipe.objective.terms[0]: 1000}
    return RunDiagnostics(recipe, sizes, unigram_loss=5.5 if sizes else math.inf)


@pytest.mark.parametrize(
    "loss,message",
    [
        (50.0, r"held-out masked loss is 50 nats, worse than a uniform guess \(6\.908\): the run diverged; lower"),
        (math.nan, "held-out masked loss is nan: the run diverged"),
        (math.inf, "held-out masked loss is inf: the run diverged"),
        (7.0, r"held-out masked loss is 7 nats, no better than token frequencies alone \(5\.5\): train longer"),
        (0.0, "held-out masked loss is 0 nats: nothing was predicted"),
        (1e-9, "nothing was predicted"),
        (4.0, ""),
    ],
)
def test_losses_that_mean_nothing(loss, message, capsys):
    warnings = diagnostics().finish({"masked": loss, "pair": 0.7, "perplexity": 1.0}, {})
    lines = capsys.readouterr().err.splitlines()
    assert lines == warnings and len(warnings) == bool(message)
    if message:
        assert re.search(message, warnings[0])


def test_a_loss_that_rises(capsys):
    run = diagnostics()
    for step, loss in enumerate((5.0, 4.0, 4.2, 5.2), 1):
        run.record(step, {"masked": loss})
    assert capsys.readouterr().err.startswith("step 4: the held-out masked loss is 5.2 nats, far above its best value")
    warnings = run.finish({"masked": 5.2}, {})
    assert "(4 at step 2): the run diverged or overfits" in warnings[0]
    assert capsys.readouterr().err == "", "a problem is logged once"
    assert run.finish({"masked": 4.3}, {}) == [], "a run that recovers is fine"


def test_without_held_out_text_training_losses_count():
    assert "the training masked loss is 0 nats" in diagnostics().finish({}, {"masked": 0.0})[0]
    assert diagnostics().finish({}, {}) == []


def test_losses_of_sparse_objectives_have_no_uniform_baseline():
    term = get_recipe("word2vec-tiny").objective.terms[0]
    assert diagnostics("word2vec-tiny").finish({term: 9.0}, {}) == []
    assert "diverged" in diagnostics("word2vec-tiny").finish({term: math.nan}, {})[0]


def test_short_runs():
    run = diagnostics(budget=BudgetConfig(minutes=0.5))
    run.check_length(3)
    assert run.notes[0].startswith("only 3 steps fit into the budget of 30s: use a longer budget, a smaller model")
    run = diagnostics("bert-small")
    run.check_length(500)
    assert run.notes[0].startswith("the warm-up of 1,000 steps is as long as the run of 500")
    run = diagnostics()
    run.check_length(500)
    assert run.finish({"masked": 4.0}, {}) == []


def test_the_unigram_loss_is_the_entropy_of_token_frequencies(project, monkeypatch):
    corpus = Corpus.open(project / "corpus-bert")
    loss = measure_unigram_loss(corpus)
    assert 3 < loss < math.log(320)
    monkeypatch.setattr("polyseme.train.monitoring.diagnostics.MAX_BASELINE_TOKENS", corpus.num_tokens // 3)
    assert measure_unigram_loss(corpus) == pytest.approx(loss, abs=0.3)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_knows_its_tokenizer(family):
    expected = FAMILIES[family].tokenizer
    assert describe_tokenizer_mismatch(FAMILIES[family], SimpleNamespace(kind=expected)) == ""
    other = "unigram" if expected != "unigram" else "wordpiece"
    if expected in ("characters", "events"):
        with pytest.raises(ConfigError, match=f"{family} reads {expected}, but the tokenizer of the corpus is {other}"):
            describe_tokenizer_mismatch(FAMILIES[family], SimpleNamespace(kind=other))
    elif not FAMILIES[family].other_tokenizers:
        message = describe_tokenizer_mismatch(FAMILIES[family], SimpleNamespace(kind=other))
        assert message.startswith(f"{family} expects a tokenizer of kind {expected}, but that of the corpus is {other}")


def test_kinds_that_are_interchangeable():
    assert describe_tokenizer_mismatch(FAMILIES["word2vec"], SimpleNamespace(kind="whitespace")) == ""
    assert describe_tokenizer_mismatch(FAMILIES["rnn_lm"], SimpleNamespace(kind="words")) == ""
    assert "rnn_lm expects" in describe_tokenizer_mismatch(FAMILIES["rnn_lm"], SimpleNamespace(kind="events"))
