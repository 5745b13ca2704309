"""Statistics of a tokenizer: its vocabulary, and how it encodes texts."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseme.io.lines import replace_surrogates
from polyseme.text.cached_encoder import batch_by_length
from polyseme.text.pipelines import CONTINUATION_PREFIX, END_OF_WORD_SUFFIX, METASPACE
from polyseme.text.tokenizer import Tokenizer
from polyseme.text.validation import strip_markers

_BATCH_CHARS = 1_000_000  # characters encoded at once


def describe_vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe the vocabulary. Lengths are in bytes for byte-level pieces, else in characters."""
    ids = tokenizer.special_token_ids
    pieces = [piece for i, piece in enumerate(tokenizer.vocabulary) if i not in tokenizer.all_special_ids]
    lengths = Counter(len(strip_markers(tokenizer, piece).replace(METASPACE, "")) for piece in pieces)
    num_continuations = _count_continuations(tokenizer, pieces)
    alphabet = {character for piece in pieces for character in strip_markers(tokenizer, piece)}
    return {
        "kind": tokenizer.kind,
        "pieces": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "specials": {role: [token, getattr(ids, role)] for role, token in tokenizer.special_tokens_map.items()},
        "continuation pieces": None if num_continuations is None else num_continuations / max(len(pieces), 1),
        "characters": None if tokenizer.is_byte_level else len(alphabet - {METASPACE}),
        "lengths": {str(length): count for length, count in sorted(lengths.items())},
        "mean length": sum(length * count for length, count in lengths.items()) / max(len(pieces), 1),
        "hash": tokenizer.hash,
    }


def _count_continuations(tokenizer: Tokenizer, pieces: list[str]) -> int | None:
    """Count pieces that only continue words; None if the pieces of this kind do not show it."""
    if tokenizer.kind in ("characters", "events", "words", "whitespace"):
        return None
    if tokenizer.kind == "wordpiece":
        return sum(piece.startswith(CONTINUATION_PREFIX) for piece in pieces)
    if any(piece.endswith(END_OF_WORD_SUFFIX) for piece in pieces):
        return None
    return sum(not piece.startswith("Ġ" if tokenizer.is_byte_level else METASPACE) for piece in pieces)


@dataclass
class TokenizationStats:
    """Totals over the texts of one group."""

    num_documents: int = 0
    num_chars: int = 0
    num_words: int = 0  # split at white space
    num_tokens: int = 0
    num_unknown: int = 0
    num_pretokens: int = 0  # words as the tokenizer splits them, also at punctuation
    num_whole_words: int = 0  # pretokens that are a single known token

    def to_row(self) -> dict[str, float]:
        """Return the totals and the ratios derived from them."""
        tokens, words = max(self.num_tokens, 1), max(self.num_words, 1)
        return {
            "documents": self.num_documents,
            "characters": self.num_chars,
            "words": self.num_words,
            "tokens": self.num_tokens,
            "tokens per word": self.num_tokens / words,
            "characters per token": self.num_chars / tokens,
            "unknown": self.num_unknown / tokens,
            "whole words": self.num_whole_words / max(self.num_pretokens, 1),
        }


def measure_tokenization(
    tokenizer: Tokenizer, texts: Iterable[tuple[Hashable, str]]
) -> dict[Hashable, TokenizationStats]:
    """Measure how the tokenizer encodes the texts of each group, in bounded memory."""
    stats: defaultdict[Hashable, TokenizationStats] = defaultdict(TokenizationStats)
    for batch in batch_by_length(texts, _BATCH_CHARS, lambda group_and_text: len(group_and_text[1])):
        texts_by_group: defaultdict[Hashable, list[str]] = defaultdict(list)
        for group, text in batch:
            texts_by_group[group].append(replace_surrogates(text))
        for group, group_texts in texts_by_group.items():
            _add_texts(tokenizer, stats[group], group_texts)
    return dict(stats)


def _add_texts(tokenizer: Tokenizer, stats: TokenizationStats, texts: list[str]) -> None:
    encoded, unk_id = tokenizer.encode_corpus(texts), tokenizer.special_token_ids.unk
    is_unknown = encoded.ids == (-1 if tokenizer.is_byte_level or unk_id is None else unk_id)
    starts = np.flatnonzero(encoded.word_starts)
    is_single_token = np.diff(np.append(starts, len(encoded.ids))) == 1
    stats.num_documents += len(texts)
    stats.num_chars += sum(map(len, texts))
    stats.num_words += sum(len(text.split()) for text in texts)
    stats.num_tokens += len(encoded.ids)
    stats.num_unknown += int(is_unknown.sum())
    stats.num_pretokens += len(starts)
    stats.num_whole_words += int((is_single_token & ~is_unknown[starts]).sum())
