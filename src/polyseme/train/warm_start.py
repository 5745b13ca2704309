"""Pre-training that goes on from a model: on the text of a domain, or of a task (ULMFiT's second stage)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.io.files import sha256
from polyseme.nn.trunks.lookup import LookupSpec
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import Lesson
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import ModelFolder, load_model, weight_files


def begin_from(path: Path, recipe: Recipe, corpus_path: Path) -> Lesson:
    """The recipe's model with the weights of a folder, which has to be of the same family, sizes and vocabulary.

    What is no weight is the recipe's: dropout may differ. Of a folder of word vectors, the vectors of those tokens that
    are words.
    """
    folder = load_model(path)
    theirs = folder.model.spec
    if isinstance(theirs.trunk, LookupSpec) and not isinstance(FAMILIES[recipe.family].spec().trunk, LookupSpec):
        return _begin_from_words(folder, recipe, corpus_path)
    if theirs.family != recipe.family:
        raise UserError(f"{path} is of the family {theirs.family}, but {recipe.name} is for {recipe.family}")
    tokenizer = Tokenizer.load(corpus_path / "tokenizer").marked(FAMILIES[recipe.family].marks)
    if folder.tokenizer.hash != tokenizer.hash:
        raise UserError(f"{corpus_path} has another vocabulary than {path}: prepare it with --tokenizer {path}")
    model = recipe.check().model_spec(tokenizer.vocab_size).build(recipe.seed)
    given, wanted = folder.model.state_dict(), model.state_dict()
    for name, tensor in wanted.items():
        if name not in given:
            raise UserError(f"{path} has no {name}, which {recipe.name} trains; {nearest(name, given)}")
        if given[name].shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in {recipe.name} and {tuple(given[name].shape)} in {path}"
            raise UserError(f"{name} is {sizes}: give the recipe the sizes of the model")
    if deeper := [n for n in given if n not in wanted and n.startswith("trunk.")]:
        raise UserError(f"{path} has {deeper[0]}, which the model of {recipe.name} has not: give it the model's sizes")
    model.load_state_dict({name: given[name] for name in wanted})
    return Lesson(model, None, {"begun_from": str(path), "begun_from_hash": weights_hash(path)})


def _begin_from_words(folder: ModelFolder, recipe: Recipe, corpus_path: Path) -> Lesson:
    """The recipe's model, its tokens that are whole words with the vectors that these have.

    They are made as long as those they take the place of, since weights behind them are drawn for these. Of two
    vocabularies it is the source's.
    """
    path, tokenizer, words = folder.path, Tokenizer.load(corpus_path / "tokenizer"), folder.tokenizer
    target = Tokenizer.load(corpus_path / "target") if (corpus_path / "target").is_dir() else None
    model = recipe.check().model_spec(tokenizer.vocab_size, target.vocab_size if target else 0).build(recipe.seed)
    trunk: Any = model.trunk
    table, vectors = getattr(trunk, "encoder", trunk).table, folder.model.trunk.table
    if not isinstance(table, Tensor) or not isinstance(vectors, Tensor) or table.shape[1] != vectors.shape[1]:
        raise UserError(
            f"the vectors of {path} have {folder.model.spec.trunk.dim} numbers, but those of {recipe.name} "
            f"{table.shape[1] if isinstance(table, Tensor) else 'are no table'}: set model.dim, or model.word_dim"
        )
    kept = [i for i in range(words.vocab_size) if i not in words.special_ids]
    kept = [0, *kept]  # all stand behind another word
    pieces, of = (np.array(part) for part in tokenizer.encode_words(["a", *(words.vocabulary[i] for i in kept[1:])]))
    whole = (np.bincount(of, minlength=len(kept))[of] == 1) & (of > 0)  # one piece is the whole word
    if not whole.any():
        raise UserError(f"no token of {corpus_path} is a word of {path}")
    rows, first = np.unique(pieces[whole], return_index=True)  # of words that are one token, the first
    which = torch.from_numpy(np.array(kept)[of[whole][first]])
    with torch.no_grad():
        chosen = vectors.index_select(0, which)
        table.index_copy_(0, torch.from_numpy(rows), chosen * (table.std() / chosen.std()))
    return Lesson(model, None, {"begun_from": str(path), "begun_from_hash": weights_hash(path)})


def weights_hash(folder: Path) -> str:
    """Of the weights of a folder: a run that goes on has to have the same."""
    return hashlib.sha256("".join(sha256(file) for file in weight_files(folder)).encode()).hexdigest()
