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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyseme.datasets.base import NamedDataset, lazy_examples
from polyseme.datasets.text_classification import BRACKETS
from polyseme.errors import DataError
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.tasks.examples import Example, RowReader, read_lines
from polyseme.tasks.metrics.srl import BRACKET_PATTERN, brackets_to_tags, srl_scores

SRL_DESCRIPTION = "who does what to whom: the arguments of a predicate"
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


def _iter_sentences(path: Path) -> Iterator[list[LocatedRow]]:
    rows: list[LocatedRow] = []
    for line_number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith(("#begin document", "#end document")):
            rows.append((f"{path}:{line_number}", line.split()))
        elif rows:
            yield rows
            rows = []


def _paste_columns(words: Path, props: Path) -> Iterator[list[LocatedRow]]:
    """Words from one file, all else from another."""
    sides = [list(_iter_sentences(path)) for path in (words, props)]
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


def _row_readers(
    sentences: list[list[LocatedRow]], needs_labels: bool, layout: ColumnLayout | None = None
) -> Iterator[RowReader]:
    if layout is None:
        layout = _conll_2005_layout(Counter(map(_count_leading_columns, sentences)).most_common(1)[0][0])
        if layout.predicate_marker < 1:
            raise DataError(
                f"{sentences[0][0][0]}: no column of words, then one of predicates, before those of arguments"
            )
    for rows in sentences:
        yield from lazy_examples(partial(_predicate_examples, layout=layout, needs_labels=needs_labels), rows)


def _predicate_examples(rows: list[LocatedRow], layout: ColumnLayout, needs_labels: bool) -> Iterator[Example]:
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
        yield Example(locations[0], words=words)
    for index, predicate in enumerate(predicates):
        yield Example(locations[0], words=words, tags=tag_columns[index] if tag_columns else None, predicate=predicate)


def _unescape_word(word: str) -> str:
    """As it was in the text: brackets, slashes, and OntoNotes' `/.` for a full stop."""
    word = BRACKETS.get(word, word.replace("\\/", "/"))
    return word[1] if len(word) == 2 and word[0] == "/" else word


def _read_srl_file(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """A file of either kind."""
    sentences = list(_iter_sentences(path))
    is_conll_2012 = read_lines(path)[0].startswith("#begin document")
    return _row_readers(sentences, needs_labels, CONLL_2012_LAYOUT if is_conll_2012 else None)


def _read_conll_2005(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """The folder of a part, with words and props, or the file that the task's scripts make of them: train-set.gz."""
    if not path.is_dir():
        pasted_file = path if path.is_file() else path.with_name(f"{path.name}-set")
        compressed_files = (pasted_file.with_name(pasted_file.name + suffix) for suffix in COMPRESSED_SUFFIXES)
        return _row_readers(
            list(_iter_sentences(next((p for p in (pasted_file, *compressed_files) if p.is_file()), pasted_file))),
            needs_labels,
        )
    files = sorted((path / "words").glob("*.words*"))
    if not files:
        raise DataError(f"{path}/words holds no files of words (*.words or *.words.gz)")
    pairs = [(p, path / "props" / p.name.replace(".words", ".props")) for p in files]
    return _row_readers([rows for pair in pairs for rows in _paste_columns(*pair)], needs_labels)


def _read_conll_2012(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Every `*_conll` file below a folder (the gold ones, if there are such), or one file."""
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*gold_conll*")) or sorted(path.rglob("*_conll"))
    if not files:
        raise DataError(f"{path} holds no files *_gold_conll")
    return _row_readers([rows for file in files for rows in _iter_sentences(file)], needs_labels, CONLL_2012_LAYOUT)


def _english_annotations(version: str, split: str) -> str:
    return f"{version}/data/{split}/data/english/annotations"


DATASETS: dict[str, NamedDataset] = {
    "srl": NamedDataset(
        "tagging",
        "f1",
        f"{SRL_DESCRIPTION}; columns as in CoNLL-2005 or CoNLL-2012",
        "srl",
        _read_srl_file,
        {name: f"{name}.conll" for name in ("train", "dev", "test")},
        srl_scores,
    ),
    "srl/conll-2005": NamedDataset(
        "tagging",
        "f1",
        SRL_DESCRIPTION,
        "conll05st-release",
        _read_conll_2005,
        {"train": "train", "dev": "devel", "test": "test.wsj", "brown": "test.brown"},
        srl_scores,
    ),
    "srl/conll-2012": NamedDataset(
        "tagging",
        "f1",
        SRL_DESCRIPTION,
        "conll-2012",
        _read_conll_2012,
        {
            "train": _english_annotations("v4", "train"),
            "dev": _english_annotations("v4", "development"),
            "test": _english_annotations("v9", "test"),
        },
        srl_scores,
    ),
}
