"""Recipes by name: plain functions that return a Recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polyseme.errors import UserError, nearest
from polyseme.files import read_json
from polyseme.recipes import (
    albert,
    bert,
    demo,
    distilbert,
    elmo,
    gpt,
    gpt2,
    modern,
    music,
    nnlm,
    performance_rnn,
    rnn_lm,
    roberta,
    spanbert,
    t5,
    transformer_xl,
    xlnet,
)
from polyseme.train.recipe import Recipe

_MAKERS: tuple[Callable[[], Recipe], ...] = (
    *(demo.demo, bert.tiny, bert.small, bert.base, bert.large),
    *(roberta.tiny, roberta.base, roberta.large),
    *(albert.tiny, albert.base, albert.large, albert.xlarge, albert.xxlarge),
    *(spanbert.tiny, spanbert.base, spanbert.large),
    *(distilbert.tiny, distilbert.base),
    *(modern.tiny, modern.small),
    *(gpt.tiny, gpt.base),
    *(gpt2.tiny, gpt2.small),
    *(transformer_xl.tiny, transformer_xl.base),
    *(xlnet.tiny, xlnet.base),
    *(t5.tiny, t5.small, t5.base, t5.large, t5.v11),
    *(music.tiny, music.base),
    *(performance_rnn.tiny, performance_rnn.base),
    *(nnlm.tiny, nnlm.ap),
    *(rnn_lm.tiny, rnn_lm.medium),
    *(elmo.tiny, elmo.small, elmo.original),
)
RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _MAKERS}


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a `recipe.json` (a run's too)."""
    if name in RECIPES:
        return RECIPES[name]()
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        data = read_json(path)
        return Recipe.from_json(data["recipe"] if isinstance(data, dict) and "recipe" in data else data)
    raise UserError(f"there is no recipe {name!r}; {nearest(name, RECIPES)}")
