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

from polyseme.datasets.base import DataSet, each
from polyseme.datasets.text_classification import BRACKETS
from polyseme.errors import UserError
from polyseme.io.files import PACKED
from polyseme.tasks.examples import Example, Unit, read_lines
from polyseme.tasks.metrics.srl import CELL, role_scores, tags_of

ABOUT = "who does what to whom: the arguments of a predicate"
Line = tuple[str, list[str]]  # where it stands, its cells


@dataclass(frozen=True)
class Form:
    """In which columns, from 0, what stands: the word, the predicate's name, what marks a predicate (`-`: none), and
    the arguments, from the first to the last but so many."""

    word: int
    name: int
    marks: int
    first: int
    behind: int


CONLL_2012 = Form(3, 6, 7, 11, 1)


def _conll_2005(base: int) -> Form:
    """The predicates stand in the last column before those of arguments."""
    return Form(0, base - 1, base - 1, base, 0)


def _sentences(path: Path) -> Iterator[list[Line]]:
    rows: list[Line] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith(("#begin document", "#end document")):
            rows.append((f"{path}:{number}", line.split()))
        elif rows:
            yield rows
            rows = []


def _pasted(words: Path, props: Path) -> Iterator[list[Line]]:
    """Words from one file, all else from another."""
    sides = [list(_sentences(path)) for path in (words, props)]
    if [len(s) for s in sides[0]] != [len(s) for s in sides[1]]:
        raise UserError(f"{words} and {props} do not have the same sentences")
    for left, right in zip(*sides):
        yield [(where, [word[0], *cells]) for (_, word), (where, cells) in zip(left, right)]


def _base(rows: list[Line]) -> int:
    """How many columns of a sentence are before those of arguments."""
    columns = list(zip(*(cells for _, cells in rows)))
    return next((i + 1 for i in reversed(range(len(columns))) if not all(map(CELL.fullmatch, columns[i]))), 0)


def _units(sentences: list[list[Line]], need_labels: bool, form: Form | None = None) -> Iterator[Unit]:
    if form is None:
        form = _conll_2005(Counter(map(_base, sentences)).most_common(1)[0][0])
        if form.marks < 1:
            raise UserError(
                f"{sentences[0][0][0]}: no column of words, then one of predicates, before those of arguments"
            )
    for rows in sentences:
        yield from each(partial(_examples, form=form, need_labels=need_labels), rows)


def _examples(rows: list[Line], form: Form, need_labels: bool) -> Iterator[Example]:
    """One for each predicate. Where no labels are needed, a sentence without a predicate is one too: it has its place
    in what is written."""
    width = len(rows[0][1])
    needed = max(form.first + form.behind, width)
    for place, cells in rows:
        if len(cells) != needed:
            raise UserError(f"{place}: {len(cells)} columns, but {needed} are needed here")
    where = [place for place, _ in rows]
    words = tuple(_word(cells[form.word]) for _, cells in rows)
    marks = [(i, cells[form.name]) for i, (_, cells) in enumerate(rows) if cells[form.marks] != "-"]
    columns = [tags_of([cells[i] for _, cells in rows], where) for i in range(form.first, width - form.behind)]
    if len(columns) != len(marks) and (columns or need_labels):
        verbs = [tags.index("B-V") for tags in columns if "B-V" in tags]
        if not columns or len(verbs) != len(columns):
            raise UserError(f"{where[0]}: {len(marks)} predicates, but {len(columns)} columns of arguments")
        marks = [(i, rows[i][1][form.name]) for i in verbs]
    if not marks and not need_labels:
        yield Example(where[0], words=words)
    for number, mark in enumerate(marks):
        yield Example(where[0], words=words, tags=columns[number] if columns else None, mark=mark)


def _word(word: str) -> str:
    """As it was in the text: brackets, slashes, and OntoNotes' `/.` for a full stop."""
    word = BRACKETS.get(word, word.replace("\\/", "/"))
    return word[1] if len(word) == 2 and word[0] == "/" else word


def _columns(path: Path, need_labels: bool) -> Iterator[Unit]:
    """A file of either kind."""
    sentences = list(_sentences(path))
    begins = read_lines(path)[0].startswith("#begin document")
    return _units(sentences, need_labels, CONLL_2012 if begins else None)


def _folder_2005(path: Path, need_labels: bool) -> Iterator[Unit]:
    """The folder of a part, with words and props, or the file that the task's scripts make of them: train-set.gz."""
    if not path.is_dir():
        made = path if path.is_file() else path.with_name(f"{path.name}-set")
        packed = (made.with_name(made.name + ending) for ending in PACKED)
        return _units(list(_sentences(next((p for p in (made, *packed) if p.is_file()), made))), need_labels)
    files = sorted((path / "words").glob("*.words*"))
    if not files:
        raise UserError(f"{path}/words holds no files of words (*.words or *.words.gz)")
    pairs = [(p, path / "props" / p.name.replace(".words", ".props")) for p in files]
    return _units([rows for pair in pairs for rows in _pasted(*pair)], need_labels)


def _folder_2012(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Every `*_conll` file below a folder (the gold ones, if there are such), or one file."""
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*gold_conll*")) or sorted(path.rglob("*_conll"))
    if not files:
        raise UserError(f"{path} holds no files *_gold_conll")
    return _units([rows for file in files for rows in _sentences(file)], need_labels, CONLL_2012)


def _english(version: str, part: str) -> str:
    return f"{version}/data/{part}/data/english/annotations"


SETS: dict[str, DataSet] = {
    "srl": DataSet(
        "tagging",
        "f1",
        f"{ABOUT}; columns as in CoNLL-2005 or CoNLL-2012",
        "srl",
        _columns,
        {name: f"{name}.conll" for name in ("train", "dev", "test")},
        role_scores,
    ),
    "srl/conll-2005": DataSet(
        "tagging",
        "f1",
        ABOUT,
        "conll05st-release",
        _folder_2005,
        {"train": "train", "dev": "devel", "test": "test.wsj", "brown": "test.brown"},
        role_scores,
    ),
    "srl/conll-2012": DataSet(
        "tagging",
        "f1",
        ABOUT,
        "conll-2012",
        _folder_2012,
        {"train": _english("v4", "train"), "dev": _english("v4", "development"), "test": _english("v9", "test")},
        role_scores,
    ),
}
