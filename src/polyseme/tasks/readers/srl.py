"""Semantic roles in the columns of CoNLL-2005 and CoNLL-2012: one example for each predicate of a sentence.

CoNLL-2005 (Carreras and Màrquez 2005): words, any number of syntax columns, a column with the lemma of each target
verb (`-` elsewhere), then a column for each target. Words and props are distributed as separate, aligned files
(`train/words/*`, `train/props/*`). A leading `#` is a word there, a currency sign. CoNLL-2012 (Pradhan et al. 2012):
document, part, number, word, part of speech, parse, lemma, frameset, sense, speaker, names, a column for each
predicate, coreference, between `#begin document` and `#end document`. A lemma alone does not make a word a predicate.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyseme.errors import DataError
from polyseme.tasks.base import Example, Words
from polyseme.tasks.metrics.srl import BRACKET_PATTERN, brackets_to_tags
from polyseme.tasks.readers.conll import BRACKETS
from polyseme.tasks.readers.rows import RowReader, iter_lines, lazy_rows, split_sentences

LocatedRow = tuple[str, list[str]]  # location, cells


@dataclass(frozen=True)
class PredicateExample(Example):
    """A sentence with one of its words marked: the predicate, by its index from 0 and its name in the file."""

    gold_field = "tags"

    words: Words
    tags: Words | None = None
    predicate: tuple[int, str] | None = None


@dataclass(frozen=True)
class ColumnLayout:
    """Columns, from 0, of a word, its predicate and the arguments."""

    word: int
    predicate_name: int
    predicate_marker: int  # `-` if the word is not a predicate
    first_argument: int
    num_trailing: int  # columns after the arguments


CONLL_2012_LAYOUT = ColumnLayout(3, 6, 7, 11, 1)


def iter_srl_sentences(path: Path) -> Iterator[list[LocatedRow]]:
    """Yield the rows of each sentence of a file."""
    for lines in split_sentences(iter_lines(path), ("#begin document", "#end document")):
        yield [(f"{path}:{number}", line.split()) for number, line in lines]


def paste_columns(words: Path, props: Path) -> Iterator[list[LocatedRow]]:
    """Yield sentences with the words of one file and the other columns of another."""
    sides = [list(iter_srl_sentences(path)) for path in (words, props)]
    if [len(s) for s in sides[0]] != [len(s) for s in sides[1]]:
        raise DataError(f"{words} and {props} do not have the same sentences")
    for word_rows, prop_rows in zip(*sides):
        yield [(location, [word[0], *cells]) for (_, word), (location, cells) in zip(word_rows, prop_rows)]


def _count_leading_columns(rows: list[LocatedRow]) -> int:
    """Return the number of columns of a sentence before those of arguments."""
    columns = enumerate(zip(*(cells for _, cells in rows)), 1)
    return max((n for n, column in columns if not all(map(BRACKET_PATTERN.fullmatch, column))), default=0)


def iter_srl_rows(
    sentences: Iterable[list[LocatedRow]], needs_labels: bool, layout: ColumnLayout
) -> Iterator[RowReader]:
    """Yield readers of the predicates of sentences."""
    to_examples = partial(_predicate_examples, layout=layout, needs_labels=needs_labels)
    for rows in sentences:
        yield from lazy_rows(to_examples, rows)


def find_conll_2005_layout(sentences: Iterable[list[LocatedRow]]) -> ColumnLayout:
    """Return the layout of CoNLL-2005 with as many columns before the arguments as most sentences have."""
    counts, location = Counter[int](), ""
    for rows in sentences:
        counts[_count_leading_columns(rows)] += 1
        location = location or rows[0][0]
    n = max(counts, key=counts.__getitem__, default=2)
    if n < 2:
        raise DataError(f"{location}: there are no columns of words and predicates before the arguments")
    return ColumnLayout(0, n - 1, n - 1, n, 0)


def _predicate_examples(rows: list[LocatedRow], layout: ColumnLayout, needs_labels: bool) -> Iterator[PredicateExample]:
    """Yield an example for each predicate, and one for a sentence without any, unless labels are needed."""
    num_columns = len(rows[0][1])
    expected_columns = max(layout.first_argument + layout.num_trailing, num_columns)
    for location, cells in rows:
        if len(cells) != expected_columns:
            raise DataError(f"{location}: {len(cells)} columns, but {expected_columns} are needed here")
    locations = [location for location, _ in rows]
    words = tuple(_unescape_word(cells[layout.word]) for _, cells in rows)
    positions = [i for i, (_, cells) in enumerate(rows) if cells[layout.predicate_marker] != "-"]
    tag_columns = [
        brackets_to_tags([cells[i] for _, cells in rows], locations)
        for i in range(layout.first_argument, num_columns - layout.num_trailing)
    ]
    if len(tag_columns) != len(positions) and (tag_columns or needs_labels):
        verb_positions = [tags.index("B-V") for tags in tag_columns if "B-V" in tags]
        if not tag_columns or len(verb_positions) != len(tag_columns):
            counts = f"{len(positions)} predicates, but {len(tag_columns)} columns of arguments"
            raise DataError(f"{locations[0]}: {counts}")
        positions = verb_positions
    if not positions and not needs_labels:
        yield PredicateExample(locations[0], words, None, None)
    for index, i in enumerate(positions):
        predicate = i, rows[i][1][layout.predicate_name]
        yield PredicateExample(locations[0], words, tag_columns[index] if tag_columns else None, predicate)


def _unescape_word(word: str) -> str:
    """Return a word as it was written: with brackets and slashes, and `.` for OntoNotes' `/.`."""
    word = BRACKETS.get(word, word.replace("\\/", "/"))
    return word[1] if len(word) == 2 and word[0] == "/" else word


def iter_predicates(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Yield readers of the predicates of a file of either kind."""
    is_conll_2012 = next(iter_lines(path)).startswith("#begin document")
    layout = CONLL_2012_LAYOUT if is_conll_2012 else find_conll_2005_layout(iter_srl_sentences(path))
    return iter_srl_rows(iter_srl_sentences(path), needs_labels, layout)
