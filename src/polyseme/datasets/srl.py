"""Semantic role labeling data sets in the formats of CoNLL-2005 and CoNLL-2012."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from polyseme.datasets.base import NamedDataset, find_compressed, split_files
from polyseme.errors import DataError
from polyseme.tasks.readers.rows import Columns, RowReader
from polyseme.tasks.readers.srl import (
    CONLL_2012_LAYOUT,
    find_conll_2005_layout,
    iter_srl_rows,
    iter_srl_sentences,
    paste_columns,
)
from polyseme.tasks.semantic_roles import SemanticRolesTask


def _read_conll_2005(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read the folder of a split with words and props, or the file pasted from them (train-set.gz)."""
    if not path.is_dir():
        pasted_file = path if path.is_file() else find_compressed(path.with_name(f"{path.name}-set"))
        layout = find_conll_2005_layout(iter_srl_sentences(pasted_file))
        return iter_srl_rows(iter_srl_sentences(pasted_file), needs_labels, layout)
    files = sorted((path / "words").glob("*.words*"))
    if not files:
        raise DataError(f"{path}/words holds no files of words (*.words or *.words.gz)")
    pairs = [(p, path / "props" / p.name.replace(".words", ".props")) for p in files]
    sentences = [rows for pair in pairs for rows in paste_columns(*pair)]
    return iter_srl_rows(sentences, needs_labels, find_conll_2005_layout(sentences))


def _read_conll_2012(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read all `*_conll` files under a folder (gold ones if there are any), or one file."""
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*gold_conll*")) or sorted(path.rglob("*_conll"))
    if not files:
        raise DataError(f"{path} holds no files *_gold_conll")
    sentences = [rows for file in files for rows in iter_srl_sentences(file)]
    return iter_srl_rows(sentences, needs_labels, CONLL_2012_LAYOUT)


_ROLES = "who does what to whom: the arguments of a predicate"
_CONLL_2005_FILES = {"train": "train", "dev": "devel", "test": "test.wsj", "brown": "test.brown"}
_VERSIONS = {"train": "v4/data/train", "dev": "v4/data/development", "test": "v9/data/test"}
_CONLL_2012_FILES = split_files("{}/data/english/annotations", **_VERSIONS)
# as converted for coreference, one file per split, and the layout of conll-formatted-ontonotes-5.0
ONTONOTES_NAMES = {
    split: (f"{name}.english.v4_gold_conll", f"data/{folder}/data/english/annotations")
    for split, name, folder in (("train", "train", "train"), ("dev", "dev", "development"), ("test", "test", "test"))
}
_roles = partial(NamedDataset, SemanticRolesTask, "f1")
DATASETS: dict[str, NamedDataset] = {
    "srl": _roles(f"{_ROLES}; columns as in CoNLL-2005 or CoNLL-2012", "srl", Columns(), split_files("{}.conll")),
    "srl/conll-2005": _roles(_ROLES, "conll05st-release", _read_conll_2005, _CONLL_2005_FILES),
    "srl/conll-2012": _roles(_ROLES, "conll-2012", _read_conll_2012, _CONLL_2012_FILES, other_names=ONTONOTES_NAMES),
}
