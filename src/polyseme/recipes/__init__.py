"""Recipes by name: functions that return a Recipe or an NgramRecipe."""

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
    modernbert,
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
    word_vectors,
    xlnet,
)
from polyseme.train.recipe import Recipe

_RECIPE_FUNCTIONS: tuple[Callable[[], Recipe], ...] = (
    *(demo.demo, bert.tiny, bert.small, bert.base, bert.large),
    *(roberta.tiny, roberta.base, roberta.large),
    *(albert.tiny, albert.base, albert.large, albert.xlarge, albert.xxlarge),
    *(spanbert.tiny, spanbert.base, spanbert.large),
    *(distilbert.tiny, distilbert.base),
    *(modernbert.tiny, modernbert.small),
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
    *(word_vectors.word2vec_tiny, word_vectors.cbow_tiny, word_vectors.word2vec),
    *(word_vectors.fasttext_tiny, word_vectors.fasttext, word_vectors.glove_tiny, word_vectors.glove),
    *(elmo.tiny, elmo.small, elmo.original),
    *(flair.tiny, flair.small, flair.paper, taglm.tiny, taglm.paper),
)
RECIPES: dict[str, Callable[[], Recipe]] = {recipe_fn().name: recipe_fn for recipe_fn in _RECIPE_FUNCTIONS}

NGRAM_RECIPES: dict[str, Callable[[], NgramRecipe]] = {
    recipe_fn().name: recipe_fn for recipe_fn in (ngram.ngram3, ngram.ngram5)
}


def get_training_recipe(name: str) -> Recipe:
    """Return a recipe that trains a model, by name or from a `recipe.json`."""
    recipe = get_recipe(name)
    if isinstance(recipe, NgramRecipe):
        raise ConfigError(f"the recipe {name!r} counts n-grams; there is nothing to train")
    return recipe


def get_recipe(name: str) -> Recipe | NgramRecipe:
    """Return a recipe by name or from a `recipe.json`."""
    if name in RECIPES or name in NGRAM_RECIPES:
        return RECIPES[name]() if name in RECIPES else NGRAM_RECIPES[name]()
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        contents = read_json(path)
        contents = contents["recipe"] if isinstance(contents, dict) and "recipe" in contents else contents
        is_ngram = isinstance(contents, dict) and contents.get("kind") == NgramRecipe.__name__
        return NgramRecipe.from_json(contents) if is_ngram else Recipe.from_json(contents)
    raise ConfigError(f"there is no recipe {name!r}; {suggest(name, [*RECIPES, *NGRAM_RECIPES])}")
