"""Blocks of input documents: the unit of work of a worker. The input alone determines where a block ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyseme.corpus.sources.sources import ReadPosition, SourceReader
from polyseme.errors import DataError

BLOCK_CHARS = 2_000_000  # enough to be worth sending to a worker, few enough to fit into memory
MAX_BLOCK_DOCUMENTS = 20_000  # limits for short documents
MAX_SHARD_DOCUMENTS = 200_000
MAX_REPORTED_ROWS = 100  # bad rows listed with their message; all are counted


@dataclass
class SkippedInput:
    """Counts of skipped input: blank documents, documents without a token, and rows that could not be read."""

    num_blank: int = 0
    num_empty: int = 0
    empty_locations: list[str] = field(default_factory=list)
    num_bad: int = 0
    bad_row_messages: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any] | SkippedInput) -> None:
        """Add the counts of `other`, an instance or its fields as a dict."""
        other = other if isinstance(other, SkippedInput) else SkippedInput(**other)
        self.num_blank += other.num_blank
        self.num_empty += other.num_empty
        self.empty_locations = [*self.empty_locations, *other.empty_locations][:MAX_REPORTED_ROWS]
        self.num_bad += other.num_bad
        self.bad_row_messages = [*self.bad_row_messages, *other.bad_row_messages][:MAX_REPORTED_ROWS]


@dataclass
class DocumentBlock:
    """Consecutive documents of one source and language, with the counts of what was skipped between them."""

    source_index: int
    lang: str
    first_document: int  # index of the first document in the whole input
    num_documents: int = 0
    texts: list[str] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)  # file and line or row of each document
    num_characters: int = 0
    skipped: SkippedInput = field(default_factory=SkippedInput)
    next_position: ReadPosition = field(default_factory=ReadPosition)  # start of the next block
    ends_shard: bool = False

    def filter(self, mask: np.ndarray) -> DocumentBlock:
        """Return the block with only the texts where `mask` is True. `num_documents` still counts all documents."""
        indices = np.flatnonzero(mask).tolist()
        return replace(self, texts=[self.texts[i] for i in indices], locations=[self.locations[i] for i in indices])


def read_blocks(
    reader: SourceReader, start: ReadPosition, first_document: int, shard_characters: int
) -> Iterator[DocumentBlock]:
    """Yield the blocks from `start` on, where document `first_document` is next, and mark those that fill a shard."""
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
