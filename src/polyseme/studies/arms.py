"""From the arms of a study to recipes, and what their sizes have in common."""

from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from torch import nn

from polyseme.config import Config, override_config
from polyseme.errors import ConfigError
from polyseme.families import get_family
from polyseme.ngram.train import NgramRecipe
from polyseme.nn.model import Model
from polyseme.recipes import get_recipe
from polyseme.studies.base import Arm, Study
from polyseme.train.recipe import Recipe

AnyRecipe = Recipe | NgramRecipe


def resolve_recipes(study: Study, overrides: Mapping[str, Any] | None = None) -> dict[str, AnyRecipe]:
    """Return the recipe of each arm that trains a model, with overrides of all arms: `{"model.num_layers": 2}`.

    A setting applies to the arms that have it: an LSTM has no `model.num_heads`, an n-gram model no `batch_tokens`. One
    that no arm has is an error.
    """
    overrides = dict(overrides or {})
    recipes = {arm.name: resolve_arm(arm) for arm in study.arms if not arm.from_arm}
    for path, value in overrides.items():
        names = [name for name, recipe in recipes.items() if has_setting(recipe, path)]
        if not names:
            raise ConfigError(f"no arm of the study {study.name} has the setting {path!r}")
        for name in names:
            recipes[name] = override_config(recipes[name], {path: value})
    if not torch.cuda.is_available() and "compile" not in overrides:  # on a CPU it takes longer than a short run
        recipes = {name: _without_compile(recipe) for name, recipe in recipes.items()}
    return recipes


def resolve_arm(arm: Arm) -> AnyRecipe:
    """Return the recipe of an arm with its overrides."""
    return override_config(get_recipe(arm.recipe), arm.overrides)


def has_setting(config: Config, path: str) -> bool:
    """Return whether a config has a field at a dotted path; fields of `model` are arguments of the family's trunk."""
    name, _, rest = path.partition(".")
    paths = config.find_paths(name)
    if not paths or not rest:
        return bool(paths)
    if isinstance(config, Recipe) and name == "model":
        return rest in get_type_hints(get_family(config.family).trunk_config)
    nested: Any = config
    for part in paths[0].split("."):
        nested = getattr(nested, part)
    return isinstance(nested, Config) and has_setting(nested, rest)


def count_non_embedding(model: Model | nn.Module) -> int:
    """Return the number of parameters of a model's trunk outside its embeddings.

    Embeddings are the tables of tokens and positions, ALBERT's projection and ELMo's character CNN. Heads do not count:
    a softmax over the vocabulary is as large as the embeddings.
    """
    names = [(name.split("."), parameter.numel()) for name, parameter in model.named_parameters()]
    return sum(size for parts, size in names if parts[0] == "trunk" and "embeddings" not in parts)


def _without_compile(recipe: AnyRecipe) -> AnyRecipe:
    return recipe.replace(compile=False) if isinstance(recipe, Recipe) else recipe
