"""Texts and their classes, as ULMFiT measures them (error rates); and words and their tags."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset, conll_reader
from polyseme.errors import DataError
from polyseme.tasks.examples import Example, RowReader, read_lines
from polyseme.tasks.readers.conll2012 import BRACKETS, iter_documents


def compute_error_rate(examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    num_wrong = sum(e.label != label for e, label in zip(examples, predictions, strict=True))
    return {"error": num_wrong / max(len(examples), 1)}


def _read_sst_trees(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """The Stanford Sentiment Treebank: a tree a line, whose root's label is the sentence's, from 0 to 4."""
    for line_number, line in enumerate(read_lines(path), 1):
        yield partial(_parse_sst_tree, f"{path}:{line_number}", line)


def _parse_sst_tree(location: str, line: str) -> Example:
    root = re.match(r"\(([0-4]) ", line)
    words = re.findall(r"\([0-4] ([^()\s]+)\)", line)
    if root is None or not words or line.count("(") != line.count(")"):
        raise DataError(f"{location}: not a tree with labels from 0 to 4: {line[:40]!r}")
    text = " ".join(BRACKETS.get(word, word.replace("\\/", "/")) for word in words)
    return Example(location, text, label=root[1])


def _read_label_folders(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """A folder for each label, a file for each text; `unsup` has none."""
    if not path.is_dir():
        raise DataError(f"there is no folder {path}")
    labels = sorted(p.name for p in path.iterdir() if p.is_dir() and p.name != "unsup")
    for label in labels:
        for file in sorted((path / label).glob("*.txt")):
            yield partial(_read_text_file, file, label)


def _read_text_file(file: Path, label: str) -> Example:
    text = "\n".join(read_lines(file)).replace("<br />", "\n")
    return Example(str(file), text, label=label)


def _read_yelp(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Quoted CSV without a header: label, text; a line break is written as a backslash and n."""
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for cells in reader:
            yield partial(_parse_yelp_row, f"{path}:{reader.line_num}", cells)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _parse_yelp_row(location: str, cells: list[str]) -> Example:
    if len(cells) < 2 or not cells[0].isdecimal() or not cells[1].strip():
        raise DataError(f"{location}: not a label and a text: {str(cells)[:40]!r}")
    return Example(location, " ".join(cells[1:]).replace("\\n", "\n"), label=cells[0])


def _trec_reader(is_fine_grained: bool) -> Callable[[Path, bool], Iterator[RowReader]]:
    """`COARSE:fine question`, in latin-1."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        for line_number, line in enumerate(read_lines(path, "latin-1"), 1):
            yield partial(_parse_trec_line, f"{path}:{line_number}", line, is_fine_grained)

    return read


def _parse_trec_line(location: str, line: str, is_fine_grained: bool) -> Example:
    label, _, text = line.partition(" ")
    if ":" not in label or not text.strip():
        raise DataError(f"{location}: not a class with a colon and a question: {line[:40]!r}")
    return Example(location, text, label=label if is_fine_grained else label.partition(":")[0])


def _read_conllu(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Ten columns; of these the word and its universal part of speech. Words in several parts (1-2) and words that are
    not there (1.1) are no words of their own."""
    rows: list[tuple[int, list[str]]] = []
    for line_number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith("#"):
            rows.append((line_number, line.split("\t")))
        elif not line.strip() and rows:
            yield partial(_conllu_example, path, rows, needs_labels)
            rows = []


def _conllu_example(path: Path, rows: list[tuple[int, list[str]]], needs_labels: bool) -> Example:
    words, tags = [], []
    for line_number, cells in rows:
        if len(cells) != 10:
            raise DataError(f"{path}:{line_number}: {len(cells)} columns, not 10")
        if cells[0].isdecimal():
            words.append(cells[1].replace(" ", "\u00a0"))
            tags.append(cells[3])
        elif not re.fullmatch(r"\d+[-.]\d+", cells[0]):
            raise DataError(f"{path}:{line_number}: the word's number is {cells[0]!r}")
    if not words or (needs_labels and "_" in tags):
        raise DataError(f"{path}:{rows[0][0]}: a sentence without words, or without parts of speech")
    return Example(f"{path}:{rows[0][0]}", words=tuple(words), tags=tuple(tags))


def _classification_dataset(
    description: str, folder: str, reader: Any, train: str, dev: str, test: str = ""
) -> NamedDataset:
    splits = {"train": train, "dev": dev} | ({"test": test} if test else {})
    return NamedDataset("classification", "accuracy", description, folder, reader, splits, compute_error_rate)


def _tagging_dataset(
    metric: str, description: str, folder: str, reader: Any, train: str, dev: str, test: str = ""
) -> NamedDataset:
    return NamedDataset(
        "tagging", metric, description, folder, reader, {"train": train, "dev": dev} | ({"test": test} if test else {})
    )


_STARS_DESCRIPTION = "how many stars?"
DATASETS: dict[str, NamedDataset] = {
    "sst-5": _classification_dataset(
        "how good is the film, from 0 to 4?", "trees", _read_sst_trees, "train.txt", "dev.txt", "test.txt"
    ),
    "imdb": _classification_dataset("does the review like the film?", "aclImdb", _read_label_folders, "train", "test"),
    "yelp-full": _classification_dataset(
        _STARS_DESCRIPTION, "yelp_review_full_csv", _read_yelp, "train.csv", "test.csv"
    ),
    "yelp-2": _classification_dataset(
        "is the review good?", "yelp_review_polarity_csv", _read_yelp, "train.csv", "test.csv"
    ),
    "trec-6": _classification_dataset(
        "what is asked for?", "trec", _trec_reader(False), "train_5500.label", "TREC_10.label"
    ),
    "trec-50": _classification_dataset(
        "what exactly is asked for?", "trec", _trec_reader(True), "train_5500.label", "TREC_10.label"
    ),
    "conll-2003": _tagging_dataset(
        "f1",
        "people, places, organisations, others",
        "conll2003",
        conll_reader(),
        "eng.train",
        "eng.testa",
        "eng.testb",
    ),
    "wnut-17": _tagging_dataset(
        "f1",
        "rare names",
        "wnut17",
        conll_reader(),
        "wnut17train.conll",
        "emerging.dev.conll",
        "emerging.test.annotated",
    ),
    "ner": _tagging_dataset(
        "f1", "any entities: words and tags in columns", "ner", conll_reader(), "train.conll", "dev.conll"
    ),
    "conll-2000": _tagging_dataset("f1", "chunks", "conll2000", conll_reader(), "train.txt", "test.txt"),
    "conll-2012": NamedDataset(
        "coreference",
        "f1",
        "what means the same: English OntoNotes",
        "conll-2012",
        iter_documents,
        {
            part: f"v4/data/{name}/data/english/annotations"
            for part, name in (("train", "train"), ("dev", "development"), ("test", "test"))
        },
    ),
    "ud-pos": _tagging_dataset(
        "accuracy",
        "parts of speech, of the English Web Treebank",
        "ud-ewt",
        _read_conllu,
        "en_ewt-ud-train.conllu",
        "en_ewt-ud-dev.conllu",
        "en_ewt-ud-test.conllu",
    ),
}
