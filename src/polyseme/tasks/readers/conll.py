"""Sentences in the columns of CoNLL-2003: the word first, its tag last, a blank line after each sentence."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from polyseme.errors import DataError
from polyseme.tasks.base import Example, Words
from polyseme.tasks.readers.rows import RowReader, iter_lines, split_sentences, value_or_raise

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True, eq=False)
class SourceLines:
    """The lines of a file from the end of the sentence before (or the start of the file) to the end of this one.

    With the last sentence they go to the end of the file, so that the lines of all examples are those of the file.
    """

    lines: tuple[str, ...]
    is_word: tuple[bool, ...]
    width: int  # number of columns of a word's line

    def __add__(self, other: "SourceLines") -> "SourceLines":
        return SourceLines(self.lines + other.lines, self.is_word + other.is_word, self.width)

    def with_column(self, cells: Sequence[str], document_cell: str, separator: str = "") -> str:
        """Return the lines with another column: a cell for each word, and `document_cell` at the start of a document.

        Blank lines and comments stay as they are. The separator is that of the line, unless another is set for all.
        """
        remaining, changed = iter(cells), list[str]()
        for line, is_word in zip(self.lines, self.is_word):
            columns = _split(line)
            if is_word or (line.startswith(DOCUMENT_START) and len(columns) == self.width):
                cell = next(remaining) if is_word else document_cell
                own_separator = "\t" if "\t" in line or self.width == 1 else " "
                line = separator.join([*columns, cell]) if separator else line.rstrip(" ") + own_separator + cell
            changed.append(f"{line}\n")
        return "".join(changed)


@dataclass(frozen=True)
class TaggingExample(Example):
    """The words of a sentence and their tags, and the lines of an unlabeled file that they were read from."""

    gold_field = "tags"

    words: Words
    tags: Words | None = None
    id: str = ""
    source: SourceLines | None = field(default=None, compare=False, repr=False)


def iter_sentences(path: Path, encoding: str, needs_labels: bool) -> Iterator[RowReader]:
    """Yield sentences between blank lines. A line that starts with # is a comment unless it fits as word and tag."""
    width, tags = 0, set[str]()
    for line in iter_lines(path, encoding):
        if line.strip() and not line.startswith(("#", DOCUMENT_START)):
            cells = _split(line)
            width = width or len(cells)
            if width > 1:
                tags.add(cells[-1])

    def is_word(line: str) -> bool:
        if not line.startswith("#"):
            return True
        cells = _split(line)
        return len(cells) == width and (width == 1 or cells[-1] in tags)

    if needs_labels:
        for numbered_lines in split_sentences(iter_lines(path, encoding), DOCUMENT_START):
            if sentence := [(number, _split(line)) for number, line in numbered_lines if is_word(line)]:
                yield partial(_parse_sentence, path, sentence, width, needs_labels)
        return
    blocks = _split_with_source(iter_lines(path, encoding, keep_blank=True), is_word)
    yield from _iter_with_source(path, blocks, width)


def _iter_with_source(path: Path, blocks: Iterable[list[tuple[int, str, bool]]], width: int) -> Iterator[RowReader]:
    """Yield sentences with their lines; those of a bad one, which may be skipped, go to the sentence before or after.

    The lines of all good sentences are thus those of the file.
    """
    nothing = SourceLines((), (), width)
    skipped, previous = nothing, list[TaggingExample]()

    def take_previous() -> Iterator[RowReader]:
        for example in previous:
            yield partial(value_or_raise, replace(example, source=(example.source or nothing) + skipped))

    for block in blocks:
        rows = [(number, _split(line)) for number, line, is_row in block if is_row]
        lines = tuple(line for _, line, _ in block)
        try:
            example = _parse_sentence(path, rows, width, needs_labels=False)
        except DataError as error:
            yield partial(value_or_raise, error)
            skipped += SourceLines(lines, (False,) * len(lines), width)
            continue
        yield from take_previous()
        source = SourceLines(lines, tuple(is_row for *_, is_row in block), width)
        previous = [replace(example, source=source if previous else skipped + source)]
        skipped = nothing
    yield from take_previous()


def _split_with_source(lines: Iterable[str], is_word: Callable[[str], bool]) -> Iterator[list[tuple[int, str, bool]]]:
    """Yield the lines from the end of each sentence to the end of the next, numbered, and whether each is a word."""
    block, is_inside, has_words = list[tuple[int, str, bool]](), False, False
    for number, line in enumerate(lines, 1):
        is_separator = not line.strip() or line.startswith(DOCUMENT_START)
        is_row = not is_separator and is_word(line)
        if is_row and has_words and not is_inside:
            end = max(i for i, (*_, is_row_before) in enumerate(block) if is_row_before) + 1
            yield block[:end]
            block, has_words = block[end:], False
        block.append((number, line, is_row))
        is_inside, has_words = (is_inside or is_row) and not is_separator, has_words or is_row
    if has_words:
        yield block


def _parse_sentence(
    path: Path,
    rows: list[tuple[int, list[str]]],
    width: int,
    needs_labels: bool,
) -> TaggingExample:
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
