"""Overrides that make a study small enough for a CPU."""

from typing import Any

from polyseme.studies.arms import has_setting, resolve_recipe
from polyseme.studies.base import Study
from polyseme.studies.catalog.settings import TINY


def tiny_overrides(study: Study) -> dict[str, Any]:
    """Return overrides for all arms of a study, with which it runs on a CPU in seconds.

    An arm takes those that it has; a setting that no arm has, such as `model.num_heads` of LSTMs, is left out.
    """
    recipes = [resolve_recipe(arm, {}) for arm in study.arms if arm.recipe]
    return {path: value for path, value in TINY.items() if any(has_setting(recipe, path) for recipe in recipes)}
