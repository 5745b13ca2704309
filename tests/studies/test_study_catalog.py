"""Studies as data: every arm is a valid recipe, sizes match, questions refer to what exists."""

import json

import pytest

from polyseme.ngram.train import NgramRecipe
from polyseme.nn.model import build_meta
from polyseme.studies.arms import resolve_recipe
from polyseme.studies.base import Study
from polyseme.studies.catalog import STUDIES
from polyseme.studies.metrics import METRICS

REFERENCE_SIZE = 12_600_000
NOT_MATCHED = {  # and why, which their notes say
    **dict.fromkeys(("n-gram", "word2vec", "fasttext", "glove"), "has no parameters outside its tables"),
    "albert": "shares those of one layer",
}
EVERY_STUDY = pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)


def count_outside_embeddings(recipe):
    """Return the number of parameters of the trunk outside its embeddings."""
    trunk = build_meta(recipe.model_config(vocab_size=16_384)).trunk
    return sum(p.numel() for name, p in trunk.named_parameters() if "embeddings" not in name.split("."))


@EVERY_STUDY
def test_every_arm_builds(study):
    recipes = [resolve_recipe(arm, {}) for arm in study.arms if not arm.from_arm]
    distinct = {
        json.dumps([r.family, r.size, r.model, r.objective.to_json()]): r for r in recipes if hasattr(r, "model")
    }
    for recipe in distinct.values():
        recipe.model_config(vocab_size=16_384)  # builds it without values, and checks that objective and optimizer fit


@EVERY_STUDY
def test_arms_and_questions_refer_to_what_exists(study):
    assert study.check().source and study.title and len(study.arms) >= 3
    assert study.metrics and set(study.metrics) <= METRICS.keys()
    assert Study.from_json(study.to_plain()) == study
    for question in study.questions:
        assert question.arm != question.reference and question.source and question.text.endswith("?")
        assert question.published is None or (question.published > 0) == (question.predicted == "higher")


def test_arms_of_the_lineage_have_the_same_size_or_say_why_not():
    sizes = {}
    for arm in STUDIES["lineage"].arms:
        recipe = resolve_recipe(arm, {})
        sizes[arm.name] = 0 if isinstance(recipe, NgramRecipe) else count_outside_embeddings(recipe)
    matched = {name for name, size in sizes.items() if abs(size / REFERENCE_SIZE - 1) < 0.1}
    assert matched == sizes.keys() - NOT_MATCHED.keys()
    assert 0.2 < sizes["albert"] / REFERENCE_SIZE < 0.3
    assert all(arm.note for arm in STUDIES["lineage"].arms if arm.name in NOT_MATCHED)


@EVERY_STUDY
def test_arms_differ_in_what_the_study_is_about_alone(study):
    """Optimizer, batch, schedule and lengths are the same in all arms, except where a study compares them."""
    compared = {"muon-layout": {"optimizer"}, "roberta-batch": {"optimizer", "batch_tokens"}}.get(study.name, set())
    shared = ("optimizer", "schedule", "batch_tokens", "max_len")
    arms = [arm for arm in study.arms if arm.recipe and (study.name != "lineage" or arm.transfer == "finetune")]
    for name in set(shared) - compared:
        assert len({json.dumps(resolve_recipe(arm, {}).to_json()[name]) for arm in arms}) == 1, name
