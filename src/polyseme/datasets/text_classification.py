"""Text classification (with error rates, as in ULMFiT), tagging and coreference data sets."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset, task_reader
from polyseme.errors import DataError
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.coreference import CoreferenceTask
from polyseme.tasks.readers.conll import BRACKETS
from polyseme.tasks.readers.rows import RowReader, read_lines
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask


def compute_error_rate(examples: Sequence[TextExample], predictions: Sequence[Any]) -> dict[str, float]:
    """Return the share of wrong predictions."""
    num_wrong = sum(e.label != label for e, label in zip(examples, predictions, strict=True))
    return {"error": num_wrong / max(len(examples), 1)}


def _read_sst_trees(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read the Stanford Sentiment Treebank: a tree per line, whose root has the label of the sentence, 0 to 4."""
    for line_number, line in enumerate(read_lines(path), 1):
        yield partial(_parse_sst_tree, f"{path}:{line_number}", line)


def _parse_sst_tree(location: str, line: str) -> TextExample:
    root = re.match(r"\(([0-4]) ", line)
    words = re.findall(r"\([0-4] ([^()\s]+)\)", line)
    if root is None or not words or line.count("(") != line.count(")"):
        raise DataError(f"{location}: not a tree with labels from 0 to 4: {line[:40]!r}")
    text = " ".join(BRACKETS.get(word, word.replace("\\/", "/")) for word in words)
    return TextExample(location, text, label=root[1])


def _read_label_folders(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read a folder per label with a file per text; `unsup` is unlabeled and skipped."""
    if not path.is_dir():
        raise DataError(f"there is no folder {path}")
    labels = sorted(p.name for p in path.iterdir() if p.is_dir() and p.name != "unsup")
    for label in labels:
        for file in sorted((path / label).glob("*.txt")):
            yield partial(_read_text_file, file, label)


def _read_text_file(file: Path, label: str) -> TextExample:
    text = "\n".join(read_lines(file)).replace("<br />", "\n")
    return TextExample(str(file), text, label=label)


def _read_yelp(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read quoted CSV without a header: label, text; a line break is written as a backslash and n."""
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for cells in reader:
            yield partial(_parse_yelp_row, f"{path}:{reader.line_num}", cells)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _parse_yelp_row(location: str, cells: list[str]) -> TextExample:
    if len(cells) < 2 or not cells[0].isdecimal() or not cells[1].strip():
        raise DataError(f"{location}: not a label and a text: {str(cells)[:40]!r}")
    return TextExample(location, " ".join(cells[1:]).replace("\\n", "\n"), label=cells[0])


def _trec_reader(is_fine_grained: bool) -> Callable[[Path, bool], Iterator[RowReader]]:
    """Build a reader of lines `COARSE:fine question` in Latin-1."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        for line_number, line in enumerate(read_lines(path, "latin-1"), 1):
            yield partial(_parse_trec_line, f"{path}:{line_number}", line, is_fine_grained)

    return read


def _parse_trec_line(location: str, line: str, is_fine_grained: bool) -> TextExample:
    label, _, text = line.partition(" ")
    if ":" not in label or not text.strip():
        raise DataError(f"{location}: not a class with a colon and a question: {line[:40]!r}")
    return TextExample(location, text, label=label if is_fine_grained else label.partition(":")[0])


def _read_conllu(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read words and universal part-of-speech tags of CoNLL-U, without multiword tokens (1-2) and empty nodes (1.1)."""
    rows: list[tuple[int, list[str]]] = []
    for line_number, line in enumerate([*read_lines(path), ""], 1):
        if line.strip() and not line.startswith("#"):
            rows.append((line_number, line.split("\t")))
        elif not line.strip() and rows:
            yield partial(_conllu_example, path, rows, needs_labels)
            rows = []


def _conllu_example(path: Path, rows: list[tuple[int, list[str]]], needs_labels: bool) -> TaggingExample:
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
    return TaggingExample(f"{path}:{rows[0][0]}", tuple(words), tuple(tags))


def _classification_dataset(
    description: str, folder: str, reader: Any, train: str, dev: str, test: str = ""
) -> NamedDataset:
    splits = {"train": train, "dev": dev} | ({"test": test} if test else {})
    return NamedDataset(ClassificationTask, "accuracy", description, folder, reader, splits, compute_error_rate)


def _tagging_dataset(
    metric: str, description: str, folder: str, reader: Any, train: str, dev: str, test: str = ""
) -> NamedDataset:
    return NamedDataset(
        TaggingTask,
        metric,
        description,
        folder,
        reader,
        {"train": train, "dev": dev} | ({"test": test} if test else {}),
    )


_STARS_DESCRIPTION = "how many stars?"
DATASETS: dict[str, NamedDataset] = {
    "sst-5": _classification_dataset(
        "sentiment of a movie review, from 0 to 4", "trees", _read_sst_trees, "train.txt", "dev.txt", "test.txt"
    ),
    "imdb": _classification_dataset("is the movie review positive?", "aclImdb", _read_label_folders, "train", "test"),
    "yelp-full": _classification_dataset(
        _STARS_DESCRIPTION, "yelp_review_full_csv", _read_yelp, "train.csv", "test.csv"
    ),
    "yelp-2": _classification_dataset(
        "is the review positive?", "yelp_review_polarity_csv", _read_yelp, "train.csv", "test.csv"
    ),
    "trec-6": _classification_dataset(
        "type of the expected answer, 6 classes", "trec", _trec_reader(False), "train_5500.label", "TREC_10.label"
    ),
    "trec-50": _classification_dataset(
        "type of the expected answer, 50 classes", "trec", _trec_reader(True), "train_5500.label", "TREC_10.label"
    ),
    "conll-2003": _tagging_dataset(
        "f1",
        "named entities: people, places, organizations, others",
        "conll2003",
        task_reader(TaggingTask),
        "eng.train",
        "eng.testa",
        "eng.testb",
    ),
    "wnut-17": _tagging_dataset(
        "f1",
        "rare and emerging named entities",
        "wnut17",
        task_reader(TaggingTask),
        "wnut17train.conll",
        "emerging.dev.conll",
        "emerging.test.annotated",
    ),
    "ner": _tagging_dataset(
        "f1", "named entities in CoNLL format", "ner", task_reader(TaggingTask), "train.conll", "dev.conll"
    ),
    "conll-2000": _tagging_dataset("f1", "chunks", "conll2000", task_reader(TaggingTask), "train.txt", "test.txt"),
    "conll-2012": NamedDataset(
        CoreferenceTask,
        "f1",
        "coreference, English OntoNotes",
        "conll-2012",
        task_reader(CoreferenceTask),
        {
            part: f"v4/data/{name}/data/english/annotations"
            for part, name in (("train", "train"), ("dev", "development"), ("test", "test"))
        },
    ),
    "ud-pos": _tagging_dataset(
        "accuracy",
        "part-of-speech tags, English Web Treebank",
        "ud-ewt",
        _read_conllu,
        "en_ewt-ud-train.conllu",
        "en_ewt-ud-dev.conllu",
        "en_ewt-ud-test.conllu",
    ),
}
