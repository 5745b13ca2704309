"""What a worker does with a block of documents: count its lines, clean and compare it, make tokens of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as Backend

from polyseme.corpus.build.blocks import Block
from polyseme.corpus.clean.clean import Cleaner, Steps, Tally, line_hashes
from polyseme.corpus.clean.sentences import split_sentences
from polyseme.corpus.dedup.minhash import exact_hashes, fingerprints
from polyseme.corpus.store import token_type
from polyseme.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Work:
    """What all blocks share: the steps of cleaning, the lines that repeat, the tokenizer."""

    steps: Steps
    tokenizer: str = ""  # as JSON
    boilerplate: bytes = b""  # sorted hashes of lines, uint64
    near: bool = True  # whether to sign documents for near duplicates
    cleaned: bool = False  # whether blocks come with the removed documents left out already

    @cached_property
    def key(self) -> str:
        said = (str(self.steps), self.tokenizer, str(self.near), str(self.cleaned))
        return hashlib.sha256("\0".join(said).encode() + self.boilerplate).hexdigest()

    def open(self) -> Opened:
        lines = np.frombuffer(self.boilerplate, np.uint64) if self.boilerplate else None
        backend = Backend.from_str(self.tokenizer) if self.tokenizer else None
        return Opened(self, Cleaner(self.steps, lines), None if backend is None else Tokenizer(backend))


class Opened(NamedTuple):
    work: Work
    cleaner: Cleaner
    tokenizer: Tokenizer | None


class Lines(NamedTuple):
    """The lines of a block's documents."""

    lines: np.ndarray  # uint64: a hash of each, once a document
    sizes: np.ndarray  # int64: how many a document has
    exact: np.ndarray  # uint64 [n, 2]: a hash of the document


class Scanned(NamedTuple):
    """What is known of a block's documents before they become tokens."""

    alive: np.ndarray  # bool [n]: not removed by cleaning
    exact: np.ndarray  # uint64 [n, 2]
    signatures: np.ndarray  # uint16 [n, …]; no columns where near duplicates are let be
    tally: Tally


class Tokens(NamedTuple):
    """A block as it is stored; a sentence or a document without a token leaves no trace."""

    ids: np.ndarray
    words: np.ndarray  # bool
    sentences: np.ndarray  # int32: tokens of each
    documents: np.ndarray  # int32: sentences of each
    stored: np.ndarray  # bool, for each document that came: whether it is there
    characters: int
    tally: Tally
    empty: list[str]  # where documents were that leave no token


def count_lines(opened: Opened, block: Block) -> Lines:
    """The lines of each document, as the steps before leave them."""
    texts = [opened.cleaner.rewrite(text) for text in block.texts]
    found = [line_hashes(text) for text in texts]
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    return Lines(np.concatenate([np.zeros(0, np.uint64), *found]), sizes, exact_hashes(texts))


def scan(opened: Opened, block: Block) -> Scanned:
    """Clean, and say which documents are left and what they look like."""
    tally = Tally()
    found = [opened.cleaner.clean(t, block.lang, p, tally) for t, p in zip(block.texts, block.places)]
    alive = np.array([text is not None for text in found], bool)
    texts = [text or "" for text in found]
    if opened.work.near:
        return Scanned(alive, *fingerprints(texts), tally)
    return Scanned(alive, exact_hashes(texts), np.zeros((len(texts), 0), np.uint16), tally)


def tokenise(opened: Opened, block: Block) -> Tokens:
    """Clean, split into sentences, encode."""
    assert opened.tokenizer is not None
    tally = Tally()
    sentences: list[str] = []
    sizes: list[int] = []
    characters: list[int] = []
    for text, place in zip(block.texts, block.places):
        if opened.work.cleaned:
            left: str | None = opened.cleaner.rewrite(text)
        else:
            left = opened.cleaner.clean(text, block.lang, place, tally)
        found = [] if left is None else split_sentences(left, block.lang or "en")
        sentences += found
        sizes.append(len(found))
        characters.append(len(left or ""))
    run = opened.tokenizer.encode_run(sentences)
    full = run.lengths > 0
    document = np.repeat(np.arange(len(sizes)), sizes)[full]
    kept = np.bincount(document, minlength=len(sizes))
    return Tokens(
        run.ids.astype(token_type(opened.tokenizer.vocab_size)),
        run.words,
        run.lengths[full].astype(np.int32),
        kept[kept > 0].astype(np.int32),
        kept > 0,
        int(np.array(characters, np.int64)[kept > 0].sum()),
        tally,
        [place for place, size, there in zip(block.places, characters, kept) if size and not there],
    )
