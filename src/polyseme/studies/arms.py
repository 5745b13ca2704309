"""The recipe of an arm: the named recipe, its overrides, those of the user, and what is the same in every arm."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch

from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, suggest
from polyseme.families import get_family
from polyseme.ngram.train import NgramRecipe
from polyseme.recipes.launch import resolve_arguments
from polyseme.studies.base import Arm, Study
from polyseme.train.recipe import BudgetConfig, Recipe

VALID_FRACTION, EVAL_TOKENS = 0.01, 1 << 18  # of the documents, and of their tokens
NEVER = 10**9  # steps
AnyRecipe = Recipe | NgramRecipe


def resolve_recipe(arm: Arm, overrides: Mapping[str, Any], corpus: Path = Path()) -> AnyRecipe:
    """Return the recipe of an arm, without its budget, seed and learning rate.

    The same documents are held out in every arm. A run is evaluated and saved at its end only; without a GPU it is
    not compiled. The user's `overrides` apply if the recipe has such a setting.
    """
    recipe: Any = resolve_arguments(arm.recipe, corpus, Path(), arm.overrides).recipe
    recipe = recipe.replace(valid_fraction=VALID_FRACTION)
    if isinstance(recipe, Recipe):
        recipe = recipe.replace(save_every=NEVER, keep_checkpoints=1, log_every=100, eval_tokens=EVAL_TOKENS)
        if recipe.optimizer.name != "nt_asgd":  # which depends on the loss during the run
            recipe = recipe.replace(eval_every=NEVER)
        recipe = recipe.replace(compile=recipe.compile and torch.cuda.is_available())
    applicable = {path: value for path, value in overrides.items() if has_setting(recipe, path)}
    recipe = resolve_arguments(recipe, corpus, Path(), applicable).recipe
    return recipe.check() if isinstance(recipe, Recipe) else recipe


def has_setting(recipe: AnyRecipe, path: str) -> bool:
    """Return whether a recipe has a setting, such as `optimizer.lr`, `lr` or `model.dim`."""
    name, _, rest = path.partition(".")
    if name == "model" and isinstance(recipe, Recipe):
        return rest in get_type_hints(get_family(recipe.family).trunk_config)
    paths = recipe.find_paths(name)
    return bool(paths) and (not rest or hasattr(getattr(recipe, name, None), rest.partition(".")[0]))


def check_overrides(study: Study, overrides: Mapping[str, Any], corpus: Path) -> None:
    """Raise `ConfigError` unless every arm has a valid recipe and model, and every override applies to one of them."""
    for path in (*overrides, *(path for arm in study.arms for path in arm.overrides)):
        if path.partition(".")[0] in ("budget", "seed"):
            raise ConfigError(f"{path} cannot be overridden in a study: its arms have the same budget and seeds")
    recipes = [resolve_recipe(arm, overrides, corpus) for arm in study.arms if arm.recipe]
    vocab_size = Corpus.open(corpus).vocab_size
    for arm, recipe in zip([arm for arm in study.arms if arm.recipe], recipes):
        try:
            if isinstance(recipe, Recipe):
                recipe.model_config(vocab_size)
        except ConfigError as error:
            raise ConfigError(f"the arm {arm.name}: {error}") from None
    for path in overrides:
        if not any(has_setting(recipe, path) for recipe in recipes):
            names = sorted({name for recipe in recipes for name in vars(recipe)})
            raise ConfigError(f"no arm of the study {study.name} has the setting {path!r}; {suggest(path, names)}")


def trains_on_cpu(recipe: AnyRecipe) -> bool:
    """Return whether a model is trained on the CPU: counts and static word vectors."""
    return isinstance(recipe, NgramRecipe) or recipe.objective.is_sparse


def scale_run(recipe: Recipe, budget: BudgetConfig, fraction: float) -> Recipe:
    """Return the recipe of a run of a fraction of the budget, whose warm-up is as much shorter."""
    budget = BudgetConfig(math.ceil(budget.steps * fraction), math.ceil(budget.tokens * fraction))
    warmup = recipe.schedule.warmup
    schedule = recipe.schedule.replace(warmup=max(warmup * fraction, 1.0) if warmup >= 1 else warmup)
    batch_warmup_steps = int(recipe.batch_warmup_steps * fraction)
    return recipe.replace(budget=budget, schedule=schedule, batch_warmup_steps=batch_warmup_steps)
