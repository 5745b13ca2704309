"""Pre-training that goes on from a model: on the text of a domain, or of a task (ULMFiT's second stage)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from polyseme.errors import UserError, nearest
from polyseme.families import FAMILIES
from polyseme.files import sha256
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import Lesson
from polyseme.train.recipe import Recipe
from polyseme.weights.folder import load_model, weight_files


def begin_from(path: Path, recipe: Recipe, corpus_path: Path) -> Lesson:
    """The recipe's model with the weights of a folder, which has to be of the same family, sizes and vocabulary.

    What is no weight is the recipe's: dropout may differ.
    """
    folder = load_model(path)
    theirs = folder.model.spec
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


def weights_hash(folder: Path) -> str:
    """Of the weights of a folder: a run that goes on has to have the same."""
    return hashlib.sha256("".join(sha256(file) for file in weight_files(folder)).encode()).hexdigest()
