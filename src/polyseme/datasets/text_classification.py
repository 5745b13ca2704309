"""Texts and their classes, as ULMFiT measures them (error rates); and words and their tags."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import DataSet, columns
from polyseme.errors import UserError
from polyseme.tasks.examples import Example, Unit, read_lines
from polyseme.tasks.readers.conll2012 import BRACKETS, document_units


def error_rate(examples: Sequence[Example], said: Sequence[Any]) -> dict[str, float]:
    wrong = sum(e.label != label for e, label in zip(examples, said, strict=True))
    return {"error": wrong / max(len(examples), 1)}


def _trees(path: Path, need_labels: bool) -> Iterator[Unit]:
    """The Stanford Sentiment Treebank: a tree a line, whose root's label is the sentence's, from 0 to 4."""
    for number, line in enumerate(read_lines(path), 1):
        yield partial(_tree, f"{path}:{number}", line)


def _tree(where: str, line: str) -> Example:
    root = re.match(r"\(([0-4]) ", line)
    words = re.findall(r"\([0-4] ([^()\s]+)\)", line)
    if root is None or not words or line.count("(") != line.count(")"):
        raise UserError(f"{where}: not a tree with labels from 0 to 4: {line[:40]!r}")
    text = " ".join(BRACKETS.get(word, word.replace("\\/", "/")) for word in words)
    return Example(where, text, label=root[1])


def _folders(path: Path, need_labels: bool) -> Iterator[Unit]:
    """A folder for each label, a file for each text; `unsup` has none."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    labels = sorted(p.name for p in path.iterdir() if p.is_dir() and p.name != "unsup")
    for label in labels:
        for file in sorted((path / label).glob("*.txt")):
            yield partial(_file, file, label)


def _file(file: Path, label: str) -> Example:
    text = "\n".join(read_lines(file)).replace("<br />", "\n")
    return Example(str(file), text, label=label)


def _yelp(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Quoted CSV without a header: label, text; a line break is written as a backslash and n."""
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for cells in reader:
            yield partial(_review, f"{path}:{reader.line_num}", cells)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _review(where: str, cells: list[str]) -> Example:
    if len(cells) < 2 or not cells[0].isdecimal() or not cells[1].strip():
        raise UserError(f"{where}: not a label and a text: {str(cells)[:40]!r}")
    return Example(where, " ".join(cells[1:]).replace("\\n", "\n"), label=cells[0])


def _trec(fine: bool) -> Callable[[Path, bool], Iterator[Unit]]:
    """`COARSE:fine question`, in latin-1."""

    def units(path: Path, need_labels: bool) -> Iterator[Unit]:
        for number, line in enumerate(read_lines(path, "latin-1"), 1):
            yield partial(_question, f"{path}:{number}", line, fine)

    return units


def _question(where: str, line: str, fine: bool) -> Example:
    label, _, text = line.partition(" ")
    if ":" not in label or not text.strip():
        raise UserError(f"{where}: not a class with a colon and a question: {line[:40]!r}")
    return Example(where, text, label=label if fine else label.partition(":")[0])


def _conllu(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Ten columns; of these the word and its universal part of speech. Words in several parts (1-2) and words that are
    not there (1.1) are no words of their own."""
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith("#"):
            rows.append((number, line.split("\t")))
        elif not line.strip() and rows:
            yield partial(_sentence, path, rows, need_labels)
            rows = []


def _sentence(path: Path, rows: list[tuple[int, list[str]]], need_labels: bool) -> Example:
    words, tags = [], []
    for number, cells in rows:
        if len(cells) != 10:
            raise UserError(f"{path}:{number}: {len(cells)} columns, not 10")
        if cells[0].isdecimal():
            words.append(cells[1].replace(" ", "\u00a0"))
            tags.append(cells[3])
        elif not re.fullmatch(r"\d+[-.]\d+", cells[0]):
            raise UserError(f"{path}:{number}: the word's number is {cells[0]!r}")
    if not words or (need_labels and "_" in tags):
        raise UserError(f"{path}:{rows[0][0]}: a sentence without words, or without parts of speech")
    return Example(f"{path}:{rows[0][0]}", words=tuple(words), tags=tuple(tags))


def _classes(about: str, folder: str, units: Any, train: str, dev: str, test: str = "") -> DataSet:
    parts = {"train": train, "dev": dev} | ({"test": test} if test else {})
    return DataSet("classification", "accuracy", about, folder, units, parts, error_rate)


def _tags(metric: str, about: str, folder: str, units: Any, train: str, dev: str, test: str = "") -> DataSet:
    return DataSet(
        "tagging", metric, about, folder, units, {"train": train, "dev": dev} | ({"test": test} if test else {})
    )


_STARS = "how many stars?"
SETS: dict[str, DataSet] = {
    "sst-5": _classes("how good is the film, from 0 to 4?", "trees", _trees, "train.txt", "dev.txt", "test.txt"),
    "imdb": _classes("does the review like the film?", "aclImdb", _folders, "train", "test"),
    "yelp-full": _classes(_STARS, "yelp_review_full_csv", _yelp, "train.csv", "test.csv"),
    "yelp-2": _classes("is the review good?", "yelp_review_polarity_csv", _yelp, "train.csv", "test.csv"),
    "trec-6": _classes("what is asked for?", "trec", _trec(False), "train_5500.label", "TREC_10.label"),
    "trec-50": _classes("what exactly is asked for?", "trec", _trec(True), "train_5500.label", "TREC_10.label"),
    "conll-2003": _tags(
        "f1", "people, places, organisations, others", "conll2003", columns(), "eng.train", "eng.testa", "eng.testb"
    ),
    "wnut-17": _tags(
        "f1", "rare names", "wnut17", columns(), "wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"
    ),
    "ner": _tags("f1", "any entities: words and tags in columns", "ner", columns(), "train.conll", "dev.conll"),
    "conll-2000": _tags("f1", "chunks", "conll2000", columns(), "train.txt", "test.txt"),
    "conll-2012": DataSet(
        "coreference",
        "f1",
        "what means the same: English OntoNotes",
        "conll-2012",
        document_units,
        {
            part: f"v4/data/{name}/data/english/annotations"
            for part, name in (("train", "train"), ("dev", "development"), ("test", "test"))
        },
    ),
    "ud-pos": _tags(
        "accuracy",
        "parts of speech, of the English Web Treebank",
        "ud-ewt",
        _conllu,
        "en_ewt-ud-train.conllu",
        "en_ewt-ud-dev.conllu",
        "en_ewt-ud-test.conllu",
    ),
}
