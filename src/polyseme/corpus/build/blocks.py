"""The input in blocks: runs of documents that one worker takes at a time, with borders set by the input alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyseme.corpus.sources.sources import ReadPosition, SourceReader
from polyseme.errors import DataError

BLOCK_CHARS = 2_000_000  # characters: enough to be worth sending, little enough for memory
MAX_BLOCK_DOCUMENTS, MAX_SHARD_DOCUMENTS = (
    20_000,
    200_000,
)  # documents of a block and of a shard at most, however short they are
MAX_REPORTED_ROWS = 100  # how many bad rows are kept with their message; all are counted


@dataclass
class SkippedInput:
    """What was passed over: blank documents, those of which no token is left, and rows that could not be read."""

    num_blank: int = 0
    num_empty: int = 0
    empty_locations: list[str] = field(default_factory=list)
    num_bad: int = 0
    bad_row_messages: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any] | SkippedInput) -> None:
        other = other if isinstance(other, SkippedInput) else SkippedInput(**other)
        self.num_blank += other.num_blank
        self.num_empty += other.num_empty
        self.empty_locations = [*self.empty_locations, *other.empty_locations][:MAX_REPORTED_ROWS]
        self.num_bad += other.num_bad
        self.bad_row_messages = [*self.bad_row_messages, *other.bad_row_messages][:MAX_REPORTED_ROWS]


@dataclass
class DocumentBlock:
    """Some documents of one language of one origin, and what lay between them."""

    source_index: int
    lang: str
    first_document: int  # the number of its first document
    num_documents: int = 0  # how many documents
    texts: list[str] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)  # where each was found, in words
    num_characters: int = 0
    skipped: SkippedInput = field(default_factory=SkippedInput)
    next_position: ReadPosition = field(default_factory=ReadPosition)  # where the next block begins
    ends_shard: bool = False  # whether a shard ends here

    def filter(self, mask: np.ndarray) -> DocumentBlock:
        """The same stretch of input with the text of some of its documents."""
        indices = np.flatnonzero(mask).tolist()
        return replace(self, texts=[self.texts[i] for i in indices], locations=[self.locations[i] for i in indices])


def read_blocks(
    reader: SourceReader, start: ReadPosition, first_document: int, shard_characters: int
) -> Iterator[DocumentBlock]:
    """Every block from a place on; document `first_document` is the next. A shard ends with the block that fills it."""
    num_characters = num_documents = 0
    for block in _split_blocks(reader, start, first_document):
        num_characters, num_documents = num_characters + block.num_characters, num_documents + block.num_documents
        block.ends_shard = num_characters >= shard_characters or num_documents >= MAX_SHARD_DOCUMENTS
        if block.ends_shard:
            num_characters = num_documents = 0
        yield block


def _split_blocks(reader: SourceReader, start: ReadPosition, first_document: int) -> Iterator[DocumentBlock]:
    block: DocumentBlock | None = None
    for file_index in range(start.file_index, len(reader.files)):
        source_file = reader.files[file_index]
        if block and (block.source_index, block.lang) != (source_file.source_index, source_file.lang):
            yield block
            block = None
        for item_index, document in enumerate(source_file.read()):
            if file_index == start.file_index and item_index < start.item_index:
                continue
            if block is None:
                block = DocumentBlock(source_file.source_index, source_file.lang, first_document)
            block.next_position = ReadPosition(file_index, item_index + 1)
            if isinstance(document, DataError):
                if not reader.skip_bad:
                    raise document
                block.skipped.add(SkippedInput(num_bad=1, bad_row_messages=[str(document)]))
            elif not document.text or document.text.isspace():
                block.skipped.num_blank += 1
            else:
                first_document += 1
                block.num_documents += 1
                block.texts.append(document.text)
                block.locations.append(f"{document.source} {document.location}".rstrip())
                block.num_characters += len(document.text)
                if block.num_characters >= BLOCK_CHARS or block.num_documents >= MAX_BLOCK_DOCUMENTS:
                    yield block
                    block = None
    if block:
        yield block
