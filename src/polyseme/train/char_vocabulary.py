"""The characters of a vocabulary, for models that read words by their characters."""

from __future__ import annotations

from polyseme.nn.layers.char_cnn import BEGIN, END, Characters
from polyseme.nn.model import Model
from polyseme.text.tokenizer import Tokenizer


def learn_spellings(model: Model, tokenizer: Tokenizer) -> None:
    """Tell such a model how each token is written; the marks around a text are characters of their own."""
    bottom = getattr(model.trunk, "embeddings", None)
    if not isinstance(bottom, Characters):
        return
    specials, words = tokenizer.specials, list[str | int](tokenizer.vocabulary)
    if tokenizer.byte_level:
        words = [tokenizer.decode([i], skip_specials=False).strip() or word for i, word in enumerate(words)]
    for place, mark in ((specials.cls, BEGIN), (specials.bos, BEGIN), (specials.sep, END), (specials.eos, END)):
        if place is not None:
            words[place] = mark
    bottom.learn_spellings(words)
