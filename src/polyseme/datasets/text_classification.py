"""Text classification (with error rates, as in ULMFiT), tagging and coreference data sets."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset, line_reader, other_names, split_files
from polyseme.datasets.srl import ONTONOTES_NAMES
from polyseme.errors import DataError
from polyseme.io.tables import NumberedRow, read_csv_rows
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.coreference import CoreferenceTask
from polyseme.tasks.readers.conll import BRACKETS
from polyseme.tasks.readers.rows import Columns, RowReader, read_lines, split_sentences
from polyseme.tasks.sequence import TextExample
from polyseme.tasks.tagging import TaggingExample, TaggingTask


def compute_error_rate(examples: Sequence[TextExample], predictions: Sequence[Any]) -> dict[str, float]:
    """Return the share of wrong predictions."""
    num_wrong = sum(e.label != label for e, label in zip(examples, predictions, strict=True))
    return {"error": num_wrong / max(len(examples), 1)}


def _parse_sst_tree(location: str, line: str) -> TextExample:
    """Parse a tree of the Stanford Sentiment Treebank, whose root has the label of the sentence, 0 to 4."""
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
    for row in read_csv_rows(enumerate(read_lines(path), 1), f"{path}:"):
        yield partial(_parse_yelp_row, path, row)


def _parse_yelp_row(path: Path, row: NumberedRow | DataError) -> TextExample:
    if isinstance(row, DataError):
        raise row
    location, cells = f"{path}:{row[0]}", row[1]
    if len(cells) < 2 or not cells[0].isdecimal() or not cells[1].strip():
        raise DataError(f"{location}: not a label and a text: {str(cells)[:40]!r}")
    return TextExample(location, " ".join(cells[1:]).replace("\\n", "\n"), label=cells[0])


def _parse_trec_line(location: str, line: str, is_fine_grained: bool = False) -> TextExample:
    """Parse `COARSE:fine question`."""
    label, _, text = line.partition(" ")
    if ":" not in label or not text.strip():
        raise DataError(f"{location}: not a class with a colon and a question: {line[:40]!r}")
    return TextExample(location, text, label=label if is_fine_grained else label.partition(":")[0])


def _read_conllu(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read words and universal part-of-speech tags of CoNLL-U, without multiword tokens (1-2) and empty nodes (1.1)."""
    for lines in split_sentences(read_lines(path)):
        if rows := [(number, line.split("\t")) for number, line in lines if not line.startswith("#")]:
            yield partial(_conllu_example, path, rows, needs_labels)


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


_text = partial(NamedDataset, ClassificationTask, "accuracy", extra_metrics=compute_error_rate)
_tags, _coreference = (partial(NamedDataset, task, "f1") for task in (TaggingTask, CoreferenceTask))
_parts_of_speech = partial(NamedDataset, TaggingTask, "accuracy")
_IMDB_FILES, _TREC_FILES = {"train": "train", "dev": "test"}, {"train": "train_5500.label", "dev": "TREC_10.label"}
_VALID = ("valid", "dev")
_NER_FILES, _UD_FILES = split_files("eng.{}", dev="testa", test="testb"), split_files("en_ewt-ud-{}.conllu")
_YELP_FILES = split_files("{}.csv", "train", "dev", dev="test")
_WNUT_FILES = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
_CONLL_2012_FILES = split_files("v4/data/{}/data/english/annotations", dev="development")
_NER_NAMES = other_names("{}.txt", dev=_VALID)
_WNUT_NAMES, _UD_NAMES = other_names("{}.conll", "{}.txt", dev=_VALID), other_names("*-ud-{}.conllu")
_ANY_NER_NAMES = other_names("{}.conll", "{}.txt", "{}.tsv", "{}.bio", "{}.iob", "{}.iob2", dev=_VALID)
_SST, _TREC = line_reader(_parse_sst_tree), line_reader(_parse_trec_line, "latin-1")
_TREC_FINE = line_reader(partial(_parse_trec_line, is_fine_grained=True), "latin-1")
DATASETS: dict[str, NamedDataset] = {
    "sst-5": _text("sentiment of a movie review, from 0 to 4", "trees", _SST, split_files("{}.txt")),
    "imdb": _text("is the movie review positive?", "aclImdb", _read_label_folders, _IMDB_FILES),
    "yelp-full": _text("how many stars?", "yelp_review_full_csv", _read_yelp, _YELP_FILES),
    "yelp-2": _text("is the review positive?", "yelp_review_polarity_csv", _read_yelp, _YELP_FILES),
    "trec-6": _text("type of the expected answer, 6 classes", "trec", _TREC, _TREC_FILES),
    "trec-50": _text("type of the expected answer, 50 classes", "trec", _TREC_FINE, _TREC_FILES),
    "conll-2003": _tags(
        "named entities: people, places, organizations, others",
        "conll2003",
        Columns(),
        _NER_FILES,
        other_names=_NER_NAMES,
    ),
    "wnut-17": _tags("rare and emerging named entities", "wnut17", Columns(), _WNUT_FILES, other_names=_WNUT_NAMES),
    "ner": _tags(
        "named entities in CoNLL format", "ner", Columns(), split_files("{}.conll"), other_names=_ANY_NER_NAMES
    ),
    "conll-2000": _tags("chunks", "conll2000", Columns(), split_files("{}.txt", "train", "dev", dev="test")),
    "conll-2012": _coreference(
        "coreference, English OntoNotes", "conll-2012", Columns(), _CONLL_2012_FILES, other_names=ONTONOTES_NAMES
    ),
    "ud-pos": _parts_of_speech(
        "part-of-speech tags, English Web Treebank", "ud-ewt", _read_conllu, _UD_FILES, other_names=_UD_NAMES
    ),
}
