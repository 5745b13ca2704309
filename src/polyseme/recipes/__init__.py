"""Recipes by name: functions that return a Recipe or an NgramRecipe."""

from collections.abc import Callable
from pathlib import Path

from polyseme.errors import ConfigError, suggest
from polyseme.io.json import read_json_object
from polyseme.ngram.train import NgramRecipe
from polyseme.recipes import best, captioning, ulmfit
from polyseme.recipes import encoder_decoders as s2s
from polyseme.recipes import encoders as enc
from polyseme.recipes import language_models as lm
from polyseme.recipes import published_sizes as sizes
from polyseme.recipes import word_vectors as wv
from polyseme.train.recipe import Recipe

_RECIPE_FUNCTIONS: tuple[Callable[[], Recipe], ...] = (
    *(best.best, enc.demo, enc.bert_tiny, sizes.bert_mini, enc.bert_small, sizes.bert_medium, enc.bert_base),
    *(enc.bert_large, sizes.bert_xlarge, sizes.bert_multilingual),
    *(enc.roberta_tiny, enc.roberta_base, enc.roberta_large, sizes.xlm_roberta_base, sizes.xlm_roberta_large),
    *(sizes.camembert_base, sizes.camembert_large),
    *(enc.albert_tiny, enc.albert_base, enc.albert_large, enc.albert_xlarge, enc.albert_xxlarge),
    *(enc.spanbert_tiny, enc.spanbert_base, enc.spanbert_large, enc.distilbert_tiny, enc.distilbert_base),
    *(enc.modernbert_tiny, enc.modernbert_small, sizes.modernbert_base, sizes.modernbert_large, enc.mini),
    *(lm.gpt_tiny, lm.gpt_base, lm.gpt2_tiny, lm.gpt2_small, *sizes.GPT2_SIZES, *sizes.GPT3_SIZES),
    *(lm.transformer_xl_tiny, lm.transformer_xl_base, sizes.transformer_xl_large),
    *(lm.gpt_bert_tiny, lm.gpt_bert_small),
    *(enc.xlnet_tiny, enc.xlnet_base, sizes.xlnet_large),
    *(s2s.seq2seq_tiny, s2s.seq2seq_multi30k, sizes.seq2seq_luong),
    *(s2s.transformer_tiny, s2s.transformer_multi30k, s2s.transformer_base, sizes.transformer_big),
    *(s2s.t5_tiny, s2s.t5_small, s2s.t5_base, s2s.t5_large, s2s.t5_v11, *sizes.T5_SIZES),
    *(lm.music_tiny, lm.music_base, lm.performance_rnn_tiny, lm.performance_rnn_base, lm.nnlm_tiny, lm.nnlm_ap),
    *(ulmfit.tiny, ulmfit.lecture, ulmfit.paper, ulmfit.awd),
    *(lm.rnn_lm_tiny, sizes.rnn_lm_small, lm.rnn_lm_medium, sizes.rnn_lm_large),
    *(wv.word2vec_tiny, wv.cbow_tiny, wv.word2vec, wv.fasttext_tiny, wv.fasttext, wv.glove_tiny, wv.glove),
    *(lm.elmo_tiny, lm.elmo_small, sizes.elmo_medium, lm.elmo_original),
    *(lm.flair_tiny, lm.flair_small, lm.flair_paper, lm.taglm_tiny, lm.taglm_paper),
    *(captioning.show_attend_tell_tiny, captioning.show_attend_tell_base, captioning.image_transformer_tiny),
)
RECIPES: dict[str, Callable[[], Recipe]] = {recipe_fn().name: recipe_fn for recipe_fn in _RECIPE_FUNCTIONS}
NGRAM_RECIPES: dict[str, Callable[[], NgramRecipe]] = {"ngram-3": lm.ngram3, "ngram-5": lm.ngram5}


def get_training_recipe(name: str) -> Recipe:
    """Return a recipe that trains a model, by name or from a `recipe.json`."""
    recipe = get_recipe(name)
    if isinstance(recipe, NgramRecipe):
        raise ConfigError(f"the recipe {name!r} counts n-grams; there is nothing to train")
    if name == best.NAME:
        raise ConfigError(f"the recipe {name!r} is derived from a corpus and a budget: it is for pre-training only")
    return recipe


def find_named_recipe(name: str) -> Recipe | None:
    """Return the recipe of this name that trains a model, if there is one that does not depend on a corpus."""
    return RECIPES[name]() if name in RECIPES and name != best.NAME else None


def get_recipe(name: str) -> Recipe | NgramRecipe:
    """Return a recipe by name or from a `recipe.json`."""
    if name in RECIPES or name in NGRAM_RECIPES:
        return RECIPES[name]() if name in RECIPES else NGRAM_RECIPES[name]()
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        contents = read_json_object(path)
        contents = contents.get("recipe", contents)
        is_ngram = isinstance(contents, dict) and contents.get("kind") == NgramRecipe.__name__
        return NgramRecipe.from_json(contents) if is_ngram else Recipe.from_json(contents)
    raise ConfigError(f"there is no recipe {name!r}; {suggest(name, [*RECIPES, *NGRAM_RECIPES])}")
