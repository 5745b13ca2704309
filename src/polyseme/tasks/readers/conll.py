"""Sentences in the columns of CoNLL-2003: the word first, its tag last, a blank line after each sentence."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyseme.errors import DataError
from polyseme.tasks.base import Example, Words
from polyseme.tasks.readers.rows import RowReader, iter_lines, split_sentences

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True)
class TaggingExample(Example):
    """The words of a sentence and their tags."""

    gold_field = "tags"

    words: Words
    tags: Words | None = None
    id: str = ""


def iter_sentences(path: Path, encoding: str, needs_labels: bool) -> Iterator[RowReader]:
    """Yield sentences between blank lines. A line that starts with # is a comment unless it fits as word and tag."""
    width, tags = 0, set[str]()
    for line in iter_lines(path, encoding):
        if line.strip() and not line.startswith(("#", "-DOCSTART-")):
            cells = _split(line)
            width = width or len(cells)
            if width > 1:
                tags.add(cells[-1])

    def is_word(line: str) -> bool:
        if not line.startswith("#"):
            return True
        cells = _split(line)
        return len(cells) == width and (width == 1 or cells[-1] in tags)

    for numbered_lines in split_sentences(iter_lines(path, encoding), "-DOCSTART-"):
        if sentence := [(number, _split(line)) for number, line in numbered_lines if is_word(line)]:
            yield partial(_parse_sentence, path, sentence, width, needs_labels)


def _parse_sentence(path: Path, rows: list[tuple[int, list[str]]], width: int, needs_labels: bool) -> TaggingExample:
    for line, cells in rows:
        if needs_labels and len(cells) < 2:
            raise DataError(f"{path}:{line}: there is no tag beside {cells[0]!r}")
        if len(cells) != width:
            raise DataError(f"{path}:{line}: {len(cells)} columns, but the first row has {width}")
        if not cells[0] or not cells[-1]:
            raise DataError(f"{path}:{line}: the {'tag' if cells[0] else 'word'} is empty")
    words = tuple(cells[0] for _, cells in rows)
    tags = tuple(cells[-1] for _, cells in rows) if width > 1 else None
    return TaggingExample(f"{path}:{rows[0][0]}", words, tags)


def _split(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
