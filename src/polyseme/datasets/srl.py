"""Semantic role labeling data sets in the formats of CoNLL-2005 and CoNLL-2012."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from polyseme.datasets.base import NamedDataset, task_reader
from polyseme.errors import DataError
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.tasks.readers.rows import RowReader
from polyseme.tasks.readers.srl import CONLL_2012_LAYOUT, iter_srl_rows, iter_srl_sentences, paste_columns
from polyseme.tasks.semantic_roles import PredicateExample, SemanticRolesTask

SRL_DESCRIPTION = "who does what to whom: the arguments of a predicate"


def _read_conll_2005(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read the folder of a split with words and props, or the file pasted from them (train-set.gz)."""
    if not path.is_dir():
        pasted_file = path if path.is_file() else path.with_name(f"{path.name}-set")
        compressed_files = (pasted_file.with_name(pasted_file.name + suffix) for suffix in COMPRESSED_SUFFIXES)
        return iter_srl_rows(
            list(iter_srl_sentences(next((p for p in (pasted_file, *compressed_files) if p.is_file()), pasted_file))),
            needs_labels,
            PredicateExample,
        )
    files = sorted((path / "words").glob("*.words*"))
    if not files:
        raise DataError(f"{path}/words holds no files of words (*.words or *.words.gz)")
    pairs = [(p, path / "props" / p.name.replace(".words", ".props")) for p in files]
    return iter_srl_rows([rows for pair in pairs for rows in paste_columns(*pair)], needs_labels, PredicateExample)


def _read_conll_2012(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read all `*_conll` files under a folder (gold ones if there are any), or one file."""
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*gold_conll*")) or sorted(path.rglob("*_conll"))
    if not files:
        raise DataError(f"{path} holds no files *_gold_conll")
    sentences = [rows for file in files for rows in iter_srl_sentences(file)]
    return iter_srl_rows(sentences, needs_labels, PredicateExample, CONLL_2012_LAYOUT)


def _english_annotations(version: str, split: str) -> str:
    return f"{version}/data/{split}/data/english/annotations"


DATASETS: dict[str, NamedDataset] = {
    "srl": NamedDataset(
        SemanticRolesTask,
        "f1",
        f"{SRL_DESCRIPTION}; columns as in CoNLL-2005 or CoNLL-2012",
        "srl",
        task_reader(SemanticRolesTask),
        {name: f"{name}.conll" for name in ("train", "dev", "test")},
    ),
    "srl/conll-2005": NamedDataset(
        SemanticRolesTask,
        "f1",
        SRL_DESCRIPTION,
        "conll05st-release",
        _read_conll_2005,
        {"train": "train", "dev": "devel", "test": "test.wsj", "brown": "test.brown"},
    ),
    "srl/conll-2012": NamedDataset(
        SemanticRolesTask,
        "f1",
        SRL_DESCRIPTION,
        "conll-2012",
        _read_conll_2012,
        {
            "train": _english_annotations("v4", "train"),
            "dev": _english_annotations("v4", "development"),
            "test": _english_annotations("v9", "test"),
        },
    ),
}
