"""The input in blocks: runs of documents that one worker takes at a time, with borders set by the input alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyseme.corpus.sources.sources import Place, Sources
from polyseme.errors import UserError

BLOCK = 2_000_000  # characters: enough to be worth sending, little enough for memory
MANY, MOST = 20_000, 200_000  # documents of a block and of a shard at most, however short they are
SHOWN = 100  # how many bad rows are kept with their message; all are counted


@dataclass
class Passed:
    """What was passed over: blank documents, those of which no token is left, and rows that could not be read."""

    blank: int = 0
    empty: int = 0
    empty_places: list[str] = field(default_factory=list)
    bad: int = 0
    bad_rows: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any] | Passed) -> None:
        other = other if isinstance(other, Passed) else Passed(**other)
        self.blank += other.blank
        self.empty += other.empty
        self.empty_places = [*self.empty_places, *other.empty_places][:SHOWN]
        self.bad += other.bad
        self.bad_rows = [*self.bad_rows, *other.bad_rows][:SHOWN]


@dataclass
class Block:
    """Some documents of one language of one origin, and what lay between them."""

    origin: int
    lang: str
    first: int  # the number of its first document
    count: int = 0  # how many documents
    texts: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # where each was found, in words
    characters: int = 0
    passed: Passed = field(default_factory=Passed)
    after: Place = field(default_factory=Place)  # where the next block begins
    closes: bool = False  # whether a shard ends here

    def only(self, kept: np.ndarray) -> Block:
        """The same stretch of input with the text of some of its documents."""
        chosen = np.flatnonzero(kept).tolist()
        return replace(self, texts=[self.texts[i] for i in chosen], places=[self.places[i] for i in chosen])


def read_blocks(sources: Sources, start: Place, first: int, shard_characters: int) -> Iterator[Block]:
    """Every block from a place on; document `first` is the next. A shard ends with the block that fills it."""
    characters = documents = 0
    for block in _blocks(sources, start, first):
        characters, documents = characters + block.characters, documents + block.count
        block.closes = characters >= shard_characters or documents >= MOST
        if block.closes:
            characters = documents = 0
        yield block


def _blocks(sources: Sources, start: Place, first: int) -> Iterator[Block]:
    block: Block | None = None
    for number in range(start.input, len(sources.inputs)):
        read = sources.inputs[number]
        if block and (block.origin, block.lang) != (read.origin, read.lang):
            yield block
            block = None
        for item, found in enumerate(read.read()):
            if number == start.input and item < start.item:
                continue
            if block is None:
                block = Block(read.origin, read.lang, first)
            block.after = Place(number, item + 1)
            if isinstance(found, UserError):
                if not sources.skip_bad:
                    raise found
                block.passed.add(Passed(bad=1, bad_rows=[str(found)]))
            elif not found.text or found.text.isspace():
                block.passed.blank += 1
            else:
                first += 1
                block.count += 1
                block.texts.append(found.text)
                block.places.append(f"{found.source} {found.where}".rstrip())
                block.characters += len(found.text)
                if block.characters >= BLOCK or block.count >= MANY:
                    yield block
                    block = None
    if block:
        yield block
