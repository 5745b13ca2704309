"""Recipes of arms, studies as JSON, the learning-rate search, and the corpora of other tokenizers."""

import json
from pathlib import Path

import pytest

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError, ModelError
from polyseme.ngram.train import NgramRecipe
from polyseme.studies import jobs
from polyseme.studies.arms import has_setting, resolve_recipe, scale_run
from polyseme.studies.base import Arm, Study, load_study
from polyseme.studies.corpora import arm_corpus, check_sources, missing_corpora, prepare_corpus
from polyseme.studies.metrics import sample_evenly, split_evenly
from polyseme.studies.plan import StudyOptions, StudyPlan
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.recipe import BudgetConfig
from tests.support.studies import TINY, arm, study_json


def make_plan(project, study_data, out, *arms, **options):
    study = Study.from_json(study_json(*arms, lr_factors=[0.5, 1.0, 2.0])).check()
    return StudyPlan.create(
        study, project / "corpus-bert", study_data, out, "12steps", 2, StudyOptions(overrides=TINY, **options)
    )


def test_a_recipe_has_the_overrides_of_its_arm_then_those_of_the_user():
    bert = Arm("a", "bert-tiny", {"model.dim": 64, "optimizer.lr": 0.5, "compile": True})
    recipe = resolve_recipe(bert, {"model.dim": 32, "model.hidden_dim": 7, "lr": 0.25})
    assert recipe.model["dim"] == 32 and recipe.optimizer.lr == 0.25 and not recipe.compile
    assert recipe.valid_fraction == 0.01 and "hidden_dim" not in recipe.model
    ngram = resolve_recipe(Arm("n", "ngram-5"), {"model.dim": 32, "order": 3})
    assert isinstance(ngram, NgramRecipe) and ngram.order == 3 and not has_setting(ngram, "optimizer.lr")


def test_the_schedule_of_a_short_run_is_scaled():
    recipe = resolve_recipe(Arm("a", "bert-tiny", {"schedule.warmup": 60, "batch_warmup_steps": 30}), {})
    short = scale_run(recipe, BudgetConfig(steps=100), 1 / 6)
    assert (short.budget.steps, short.schedule.warmup, short.batch_warmup_steps) == (17, 10, 5)
    relative = recipe.replace(schedule=recipe.schedule.replace(warmup=0.1))
    assert scale_run(relative, BudgetConfig(tokens=600), 1 / 6).schedule.warmup == 0.1
    assert scale_run(relative, BudgetConfig(tokens=600), 1 / 6).budget.tokens == 100


@pytest.mark.parametrize(
    "change,message",
    [
        ({"arms": [arm("a"), arm("a")]}, "that of two"),
        ({"arms": [arm("a/b")]}, "no name of an arm"),
        ({"arms": [arm("a", "")]}, "either a recipe or the arm"),
        ({"arms": [arm("a", "", from_arm="b")]}, "has no arm 'b'"),
        ({"arms": [arm("..")]}, "no name of an arm"),
        ({"arms": [arm("a"), arm("b", "", from_arm="a", overrides={"max_len": 8})]}, "no overrides or tokenizer apply"),
        ({"lr_factors": []}, "lr_factors of the study"),
        ({"lr_factors": [1.0, -1.0]}, "lr_factors of the study"),
        ({"metrics": []}, "at least one arm and one metric"),
        ({"metricks": []}, "unknown key 'metricks'"),
        ({"questions": [{"text": "?", "arm": "nsp", "reference": "x", "metric": "blimp", "predicted": "higher",
                         "source": ""}]}, "has no arm 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_study_is_rejected(tmp_path, change, message):
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study_json() | change))
    with pytest.raises(ConfigError, match=message):
        load_study(path)


def test_a_study_is_read_back_as_it_was_written(tmp_path):
    study = Study.from_json(study_json(arm("a", overrides={"model": {"dim": 8}}), arm("b")))
    assert Study.from_json(study.to_plain()) == study


@pytest.mark.parametrize(
    "losses,best",
    [
        ({0.5: 3.0, 1.0: 2.0, 2.0: 2.5}, 1.0),
        ({0.5: 3.0, 1.0: None, 2.0: 2.9, 4.0: 2.95}, 2.0),  # a diverged run loses
        ({0.5: 6.0, 1.0: 5.9, 2.0: 5.0, 4.0: None}, 2.0),  # beyond the largest rate
        ({0.5: 6.0, 1.0: 5.9, **{2.0**i: 6.0 - i / 2 for i in range(1, 7)}}, 64.0),  # but not forever
        ({0.5: 2.0, 1.0: 3.0, 2.0: 4.0, 0.25: 1.5, 0.125: 1.8}, 0.25),  # below the smallest
        ({0.5: 3.0, 1.0: 3.0, 2.0: 3.0}, 1.0),  # a tie
    ],
)
def test_the_learning_rate_with_the_lowest_loss_is_chosen(project, study_data, tmp_path, monkeypatch, losses, best):
    plan = make_plan(project, study_data, tmp_path, arm("a"))
    (only,), recipes = plan.arms, []

    def pretrain(recipe, corpus, folder):
        recipes.append(recipe)
        loss = losses[float(folder.name.removeprefix("search-"))]
        if loss is None:
            raise ModelError("step 3 is not finite")
        return {"valid": {"masked": loss}, "steps": recipe.budget.steps}

    monkeypatch.setattr(jobs, "run_pretraining", pretrain)
    jobs.search_rate(plan, only)
    record = plan.read_arm_file(only, "lr.json")
    assert record["factor"] == best and record["lr"] == best * resolve_recipe(only, TINY).optimizer.lr
    assert {(recipe.seed, recipe.budget.steps) for recipe in recipes} == {(1_000_003, 2)}
    assert [rate["factor"] for rate in record["rates"]] == list(losses)
    jobs.search_rate(plan, only)
    assert len(recipes) == len(losses), "finished rates are not tried again"


def test_a_search_without_a_rate_that_trains_fails_and_can_be_repeated(project, study_data, tmp_path, monkeypatch):
    plan, num_runs = make_plan(project, study_data, tmp_path, arm("a")), []

    def diverge(recipe, corpus, folder):
        num_runs.append(recipe)
        raise ModelError("step 3 is not finite")

    monkeypatch.setattr(jobs, "run_pretraining", diverge)
    for expected in (3, 6):
        with pytest.raises(ModelError, match=r"no learning rate of a can be trained, such as .*: step 3 is not finite"):
            jobs.search_rate(plan, plan.arms[0])
        assert len(num_runs) == expected and jobs.needs_search(plan, plan.arms[0])


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.1, 0.2, 0.24])
def test_the_search_evaluates_on_documents_that_no_result_uses(project, fraction):
    corpus = Corpus.open(project / "corpus-bert")
    recipe = resolve_recipe(Arm("a", "bert-tiny"), {"valid_fraction": fraction})
    held_out = [
        set(corpus.split(each.valid_fraction)[1].document_ids.tolist())
        for each in (recipe, jobs.hold_out_others(recipe, corpus.num_documents))
    ]
    assert len(held_out[1]) == 2 * len(held_out[0]) and not held_out[0] & held_out[1]
    assert jobs.hold_out_others(recipe, 3) is recipe


def test_a_void_run_loses_against_one_that_learned(project, study_data, tmp_path, monkeypatch):
    plan = make_plan(project, study_data, tmp_path, arm("a"))
    monkeypatch.setattr(jobs, "measure_unigram_loss", lambda corpus: 4.0)
    monkeypatch.setattr(
        jobs, "is_void", lambda recipe, results, unigram_loss: results["valid"]["masked"] < unigram_loss / 2
    )
    monkeypatch.setattr(
        jobs,
        "run_pretraining",
        lambda recipe, corpus, folder: {"valid": {"masked": 3.0 if folder.name.endswith("-1") else 1.0}, "steps": 1},
    )
    jobs.search_rate(plan, plan.arms[0])
    assert plan.read_arm_file(plan.arms[0], "lr.json")["factor"] == 1.0


def test_an_arm_with_another_tokenizer_gets_a_corpus_of_the_same_text(project, study_data, tmp_path):
    gpt = arm("gpt", "gpt2-tiny", tokenizer="bpe")
    plan = make_plan(project, study_data, tmp_path / "out", arm("bert", tokenizer="wordpiece"), gpt)
    bert, gpt = plan.arms
    check_sources(plan)
    assert missing_corpora(plan) == [gpt]
    prepare_corpus(plan, gpt)
    assert not missing_corpora(plan)
    assert arm_corpus(plan, bert) == project / "corpus-bert" and arm_corpus(plan, gpt) == tmp_path / "out/corpora/bpe"
    tokenizer = Tokenizer.load(arm_corpus(plan, gpt) / "tokenizer")
    assert tokenizer.kind == "bpe" and tokenizer.lowercase == Tokenizer.load(project / "tok-bert").lowercase


def test_sources_that_are_gone_are_an_error(project, study_data, tmp_path, monkeypatch):
    plan = make_plan(project, study_data, tmp_path / "out", arm("gpt", "gpt2-tiny", tokenizer="bpe"))
    text = Path(project / "text.txt")
    text.rename(text.with_name("moved.txt"))
    try:
        with pytest.raises(
            DataError, match=r"the arm gpt needs the text of .* with another tokenizer: .*does not exist"
        ):
            check_sources(plan)
    finally:
        text.with_name("moved.txt").rename(text)


def test_examples_are_spread_evenly():
    assert sample_evenly(range(10), 3) == [1, 5, 8] and sample_evenly(range(3), 5) == [0, 1, 2]
    train, dev = split_evenly(list(range(20)), 2)
    assert dev == [5, 15] and sorted(train + dev) == list(range(20))
