"""A look at a tokenizer: what its vocabulary is made of, and how it does on texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseme.text.pipelines import END_OF_WORD, PREFIX, SPACE, sound
from polyseme.text.tokenizer import Tokenizer
from polyseme.text.validation import bare

_BATCH = 1_000_000  # characters that are encoded together


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """Facts about the vocabulary alone. Pieces of bytes have a length in bytes, the others in characters."""
    pieces = [piece for i, piece in enumerate(tokenizer.vocabulary) if i not in tokenizer.special_ids]
    lengths = Counter(len(bare(tokenizer, piece).replace(SPACE, "")) for piece in pieces)
    inner = _continues(tokenizer, pieces)
    alphabet = {character for piece in pieces for character in bare(tokenizer, piece)}
    return {
        "kind": tokenizer.kind,
        "pieces": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "specials": {
            role: [token, getattr(tokenizer.specials, role)] for role, token in tokenizer.special_tokens.items()
        },
        "continuation pieces": None if inner is None else inner / max(len(pieces), 1),
        "characters": None if tokenizer.byte_level else len(alphabet - {SPACE}),
        "lengths": {str(length): count for length, count in sorted(lengths.items())},
        "mean length": sum(length * count for length, count in lengths.items()) / max(len(pieces), 1),
        "hash": tokenizer.hash,
    }


def _continues(tokenizer: Tokenizer, pieces: list[str]) -> int | None:
    """How many pieces stand only behind others in a word; None for a kind whose pieces do not say."""
    if tokenizer.kind in ("characters", "events", "words", "spaced"):
        return None
    if tokenizer.kind == "wordpiece":
        return sum(piece.startswith(PREFIX) for piece in pieces)
    if any(piece.endswith(END_OF_WORD) for piece in pieces):
        return None
    return sum(not piece.startswith("Ġ" if tokenizer.byte_level else SPACE) for piece in pieces)


@dataclass
class Measured:
    """Sums over the texts of one group."""

    documents: int = 0
    characters: int = 0
    words: int = 0  # as white space parts them
    tokens: int = 0
    unknown: int = 0
    units: int = 0  # words as the tokenizer parts them, at punctuation too
    whole: int = 0  # of these, the ones that are one known token

    def row(self) -> dict[str, float]:
        tokens, words = max(self.tokens, 1), max(self.words, 1)
        return {
            "documents": self.documents,
            "characters": self.characters,
            "words": self.words,
            "tokens": self.tokens,
            "tokens per word": self.tokens / words,
            "characters per token": self.characters / tokens,
            "unknown": self.unknown / tokens,
            "kept whole": self.whole / max(self.units, 1),
        }


def measure(tokenizer: Tokenizer, texts: Iterable[tuple[Hashable, str]]) -> dict[Hashable, Measured]:
    """How the tokenizer does on the texts of each group, in bounded memory."""
    found: dict[Hashable, Measured] = {}
    waiting: dict[Hashable, list[str]] = {}
    size = 0
    for group, text in texts:
        waiting.setdefault(group, []).append(sound(text))
        size += len(text)
        if size >= _BATCH:
            for each, some in waiting.items():
                _add(tokenizer, found.setdefault(each, Measured()), some)
            waiting, size = {}, 0
    for each, some in waiting.items():
        _add(tokenizer, found.setdefault(each, Measured()), some)
    return found


def _add(tokenizer: Tokenizer, sums: Measured, texts: list[str]) -> None:
    run = tokenizer.encode_run(texts)
    sums.documents += len(texts)
    sums.characters += sum(map(len, texts))
    sums.words += sum(len(text.split()) for text in texts)
    sums.tokens += len(run.ids)
    unknown = run.ids == (-1 if tokenizer.byte_level or tokenizer.specials.unk is None else tokenizer.specials.unk)
    sums.unknown += int(unknown.sum())
    starts = np.flatnonzero(run.words)
    sums.units += len(starts)
    alone = np.diff(np.append(starts, len(run.ids))) == 1
    sums.whole += int((alone & ~unknown[starts]).sum())
