"""The tokenizer of musical performances: one word per event, with a fixed vocabulary."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers

from polyseme.corpus.sources.events import EVENTS, SPECIAL_TOKENS
from polyseme.text.pipelines import add_special_tokens, split_special_tokens


def build_event_tokenizer() -> Tokenizer:
    """Build the tokenizer of performances, with one token per event."""
    vocab = {word: i for i, word in enumerate((*SPECIAL_TOKENS, *EVENTS))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), split_special_tokens(SPECIAL_TOKENS)]
    )
    add_special_tokens(tokenizer, SPECIAL_TOKENS)
    return tokenizer
