"""The characters of a vocabulary, for models that read words by their characters."""

from __future__ import annotations

from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, CharCNN
from polyseme.nn.model import Model
from polyseme.text.tokenizer import Tokenizer


def set_char_vocabulary(model: Model, tokenizer: Tokenizer) -> None:
    """Tell such a model how each token is written; the marks around a text are characters of their own."""
    embeddings = getattr(model.trunk, "embeddings", None)
    if not isinstance(embeddings, CharCNN):
        return
    specials, words = tokenizer.special_token_ids, list[str | int](tokenizer.vocabulary)
    if tokenizer.is_byte_level:
        words = [tokenizer.decode([i], skip_special_tokens=False).strip() or word for i, word in enumerate(words)]
    for token_id, boundary in (
        (specials.cls, BOS_CHARACTER),
        (specials.bos, BOS_CHARACTER),
        (specials.sep, EOS_CHARACTER),
        (specials.eos, EOS_CHARACTER),
    ):
        if token_id is not None:
            words[token_id] = boundary
    embeddings.set_spellings(words)
