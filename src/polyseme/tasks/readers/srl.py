"""Semantic roles in columns, as CoNLL-2005 and CoNLL-2012 distribute them: an example for each predicate of a sentence.

CoNLL-2005 (Carreras and Màrquez 2005): words, any number of columns of syntax, a column with the lemma of each target
verb (`-` elsewhere), then a column for each target. Words and props are distributed as files of their own, line by
line alike (`train/words/*`, `train/props/*`), which its scripts paste together. A `#` in front is a word there, a
currency. CoNLL-2012 (Pradhan et al. 2012): document, part, number, word, part of speech, parse, lemma, frameset, sense,
speaker, names, a column for each predicate, coreference; `#begin document` and `#end document` around. A lemma alone is
no predicate there: it may have but a sense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.tasks.metrics.srl import BRACKET_PATTERN, brackets_to_tags
from polyseme.tasks.readers.conll import BRACKETS
from polyseme.tasks.readers.rows import RowReader, lazy_rows, read_lines

# a location, words, tags and predicate to an example
Build = Callable[[str, tuple[str, ...], tuple[str, ...] | None, tuple[int, str] | None], Any]
LocatedRow = tuple[str, list[str]]  # where it stands, its cells


@dataclass(frozen=True)
class ColumnLayout:
    """In which columns, from 0, what stands: the word, the predicate's name, what marks a predicate (`-`: none), and
    the arguments, from the first to the last but so many."""

    word: int
    predicate_name: int
    predicate_marker: int
    first_argument: int
    num_trailing: int


CONLL_2012_LAYOUT = ColumnLayout(3, 6, 7, 11, 1)


def _conll_2005_layout(num_leading_columns: int) -> ColumnLayout:
    """The predicates stand in the last column before those of arguments."""
    return ColumnLayout(0, num_leading_columns - 1, num_leading_columns - 1, num_leading_columns, 0)


def iter_srl_sentences(path: Path) -> Iterator[list[LocatedRow]]:
    rows: list[LocatedRow] = []
    for line_number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith(("#begin document", "#end document")):
            rows.append((f"{path}:{line_number}", line.split()))
        elif rows:
            yield rows
            rows = []


def paste_columns(words: Path, props: Path) -> Iterator[list[LocatedRow]]:
    """Words from one file, all else from another."""
    sides = [list(iter_srl_sentences(path)) for path in (words, props)]
    if [len(s) for s in sides[0]] != [len(s) for s in sides[1]]:
        raise DataError(f"{words} and {props} do not have the same sentences")
    for word_rows, prop_rows in zip(*sides):
        yield [(location, [word[0], *cells]) for (_, word), (location, cells) in zip(word_rows, prop_rows)]


def _count_leading_columns(rows: list[LocatedRow]) -> int:
    """How many columns of a sentence are before those of arguments."""
    columns = list(zip(*(cells for _, cells in rows)))
    return next(
        (i + 1 for i in reversed(range(len(columns))) if not all(map(BRACKET_PATTERN.fullmatch, columns[i]))), 0
    )


def iter_srl_rows(
    sentences: list[list[LocatedRow]], needs_labels: bool, build: Build, layout: ColumnLayout | None = None
) -> Iterator[RowReader]:
    if layout is None:
        layout = _conll_2005_layout(Counter(map(_count_leading_columns, sentences)).most_common(1)[0][0])
        if layout.predicate_marker < 1:
            raise DataError(
                f"{sentences[0][0][0]}: no column of words, then one of predicates, before those of arguments"
            )
    to_examples = partial(_predicate_examples, layout=layout, needs_labels=needs_labels, build=build)
    for rows in sentences:
        yield from lazy_rows(to_examples, rows)


def _predicate_examples(
    rows: list[LocatedRow], layout: ColumnLayout, needs_labels: bool, build: Build
) -> Iterator[Any]:
    """One for each predicate. Where no labels are needed, a sentence without a predicate is one too: it has its place
    in what is written."""
    num_columns = len(rows[0][1])
    expected_columns = max(layout.first_argument + layout.num_trailing, num_columns)
    for location, cells in rows:
        if len(cells) != expected_columns:
            raise DataError(f"{location}: {len(cells)} columns, but {expected_columns} are needed here")
    locations = [location for location, _ in rows]
    words = tuple(_unescape_word(cells[layout.word]) for _, cells in rows)
    predicates = [
        (i, cells[layout.predicate_name]) for i, (_, cells) in enumerate(rows) if cells[layout.predicate_marker] != "-"
    ]
    tag_columns = [
        brackets_to_tags([cells[i] for _, cells in rows], locations)
        for i in range(layout.first_argument, num_columns - layout.num_trailing)
    ]
    if len(tag_columns) != len(predicates) and (tag_columns or needs_labels):
        verb_positions = [tags.index("B-V") for tags in tag_columns if "B-V" in tags]
        if not tag_columns or len(verb_positions) != len(tag_columns):
            raise DataError(
                f"{locations[0]}: {len(predicates)} predicates, but {len(tag_columns)} columns of arguments"
            )
        predicates = [(i, rows[i][1][layout.predicate_name]) for i in verb_positions]
    if not predicates and not needs_labels:
        yield build(locations[0], words, None, None)
    for index, predicate in enumerate(predicates):
        yield build(locations[0], words, tag_columns[index] if tag_columns else None, predicate)


def _unescape_word(word: str) -> str:
    """As it was in the text: brackets, slashes, and OntoNotes' `/.` for a full stop."""
    word = BRACKETS.get(word, word.replace("\\/", "/"))
    return word[1] if len(word) == 2 and word[0] == "/" else word


def iter_predicates(path: Path, needs_labels: bool, build: Build) -> Iterator[RowReader]:
    """A file of either kind."""
    sentences = list(iter_srl_sentences(path))
    is_conll_2012 = read_lines(path)[0].startswith("#begin document")
    return iter_srl_rows(sentences, needs_labels, build, CONLL_2012_LAYOUT if is_conll_2012 else None)
