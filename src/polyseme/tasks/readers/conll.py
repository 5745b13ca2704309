"""Sentences in the columns of CoNLL-2003: the word first, its tag last, a blank line after each sentence."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.tasks.readers.rows import RowReader

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
Build = Callable[[str, tuple[str, ...], tuple[str, ...] | None], Any]  # a location, words and tags to an example


def iter_sentences(path: Path, lines: list[str], needs_labels: bool, build: Build) -> Iterator[RowReader]:
    """Yield sentences between blank lines. A line that starts with # is a comment unless it fits as word and tag."""
    plain = [_split(line) for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    width = len(plain[0]) if plain else 0
    tags = {cells[-1] for cells in plain}
    sentence: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            cells = _split(line)
            is_word = len(cells) == width and (width == 1 or cells[-1] in tags)
            if is_word or not line.startswith("#"):
                sentence.append((number, cells))
        elif sentence:
            yield partial(_parse_sentence, path, sentence, width, needs_labels, build)
            sentence = []


def _parse_sentence(
    path: Path, sentence: list[tuple[int, list[str]]], width: int, needs_labels: bool, build: Build
) -> Any:
    for line, cells in sentence:
        if needs_labels and len(cells) < 2:
            raise DataError(f"{path}:{line}: there is no tag beside {cells[0]!r}")
        if len(cells) != width:
            raise DataError(f"{path}:{line}: {len(cells)} columns, but the first row has {width}")
        if not cells[0] or not cells[-1]:
            raise DataError(f"{path}:{line}: the {'tag' if cells[0] else 'word'} is empty")
    words = tuple(cells[0] for _, cells in sentence)
    tags = tuple(cells[-1] for _, cells in sentence) if width > 1 else None
    return build(f"{path}:{sentence[0][0]}", words, tags)


def _split(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
