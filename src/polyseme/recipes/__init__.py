"""Recipes by name: plain functions that return a Recipe, or for what is counted an NgramRecipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polyseme.errors import ConfigError, suggest
from polyseme.io.json import read_json
from polyseme.ngram.train import NgramRecipe
from polyseme.recipes import (
    albert,
    bert,
    demo,
    distilbert,
    elmo,
    flair,
    gpt,
    gpt2,
    music,
    ngram,
    nnlm,
    performance_rnn,
    rnn_lm,
    roberta,
    seq2seq,
    spanbert,
    t5,
    taglm,
    transformer,
    transformer_xl,
    ulmfit,
    xlnet,
)
from polyseme.recipes import modernbert as modern
from polyseme.recipes import word_vectors as vectors
from polyseme.train.recipe import Recipe

_RECIPE_FUNCTIONS: tuple[Callable[[], Recipe], ...] = (
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
    *(seq2seq.tiny, seq2seq.multi30k),
    *(transformer.tiny, transformer.multi30k, transformer.base),
    *(t5.tiny, t5.small, t5.base, t5.large, t5.v11),
    *(music.tiny, music.base),
    *(performance_rnn.tiny, performance_rnn.base),
    *(nnlm.tiny, nnlm.ap),
    *(ulmfit.tiny, ulmfit.lecture, ulmfit.paper, ulmfit.awd),
    *(rnn_lm.tiny, rnn_lm.medium),
    *(vectors.word2vec_tiny, vectors.cbow_tiny, vectors.word2vec, vectors.fasttext_tiny, vectors.fasttext),
    *(vectors.glove_tiny, vectors.glove),
    *(elmo.tiny, elmo.small, elmo.original),
    *(flair.tiny, flair.small, flair.paper, taglm.tiny, taglm.paper),
)
RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _RECIPE_FUNCTIONS}

NGRAM_RECIPES: dict[str, Callable[[], NgramRecipe]] = {make().name: make for make in (ngram.ngram3, ngram.ngram5)}


def get_training_recipe(name: str) -> Recipe:
    """A recipe of training by its name, or from a `recipe.json` (a run's too)."""
    recipe = get_recipe(name)
    if isinstance(recipe, NgramRecipe):
        raise ConfigError(f"the recipe {name!r} counts n-grams: there is nothing to train")
    return recipe


def get_recipe(name: str) -> Recipe | NgramRecipe:
    """The same, or a recipe of counting."""
    if name in RECIPES or name in NGRAM_RECIPES:
        return RECIPES[name]() if name in RECIPES else NGRAM_RECIPES[name]()
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        contents = read_json(path)
        contents = contents["recipe"] if isinstance(contents, dict) and "recipe" in contents else contents
        is_ngram = isinstance(contents, dict) and contents.get("kind") == NgramRecipe.__name__
        return NgramRecipe.from_json(contents) if is_ngram else Recipe.from_json(contents)
    raise ConfigError(f"there is no recipe {name!r}; {suggest(name, [*RECIPES, *NGRAM_RECIPES])}")
