"""Named data sets: how the files of each are read, exactly as they are distributed, and the metric that counts.

Those of GLUE (Wang et al. 2019, table 1) hold tabs, and a quote is a character like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.errors import UserError
from polyseme.tasks.examples import Example, Kind, read_examples, read_lines

Split = tuple[list[Example], list[Example]]  # train and dev


def _two_files(data: DataSet, folder: Path, skip_bad: bool) -> Split:
    return data.examples(folder / "train.tsv", skip_bad), data.examples(folder / "dev.tsv", skip_bad)


@dataclass(frozen=True)
class DataSet:
    """`folder` is its name as distributed. `columns` are those of the header, or without one numbers from 1."""

    kind: Kind
    metric: str
    about: str
    folder: str
    columns: dict[str, str]
    header: bool = True
    split: Callable[[DataSet, Path, bool], Split] = _two_files

    def read(self, folder: Path | str, skip_bad: bool = False) -> Split:
        """Train and dev examples from the data set's own folder, or from the one where it lies."""
        path = Path(folder)
        if not path.is_dir():
            raise UserError(f"there is no folder {path}")
        return self.split(self, path / self.folder if (path / self.folder).is_dir() else path, skip_bad)

    def examples(self, path: Path, skip_bad: bool) -> list[Example]:
        columns: dict[str, Any] = self.columns
        return read_examples(path, self.kind, **columns, header=self.header, skip_bad=skip_bad)


def _by_dev_ids(data: DataSet, folder: Path, skip_bad: bool) -> Split:
    """Microsoft's training file, of which `dev_ids.tsv` names the pairs that are the dev set; or GLUE's own two."""
    if (folder / "train.tsv").is_file():
        return _two_files(data, folder, skip_bad)
    path, ids = folder / "msr_paraphrase_train.txt", folder / "dev_ids.tsv"
    found = data.examples(path, skip_bad)
    chosen = {tuple(line.split("\t")) for line in read_lines(ids)}
    pairs = [tuple(line.split("\t")[1:3]) for line in read_lines(path)]
    if absent := sorted(chosen - set(pairs)):
        raise UserError(f"{ids} names the pair {' '.join(absent[0])!r}, which is not in {path.name}")
    parts: Split = ([], [])
    for example in found:
        line = int(example.where.rpartition(":")[2])
        parts[pairs[line - 1] in chosen].append(example)
    return parts


_PAIR = {"text": "sentence1", "pair": "sentence2"}
DATA_SETS: dict[str, DataSet] = {
    "glue/cola": DataSet(
        "classification",
        "matthews",
        "is the sentence acceptable English?",
        "CoLA",
        {"text": "4", "label": "2"},
        header=False,
    ),
    "glue/sst-2": DataSet(
        "classification", "accuracy", "does the review like the film?", "SST-2", {"text": "sentence"}
    ),
    "glue/mrpc": DataSet(
        "pair",
        "f1",
        "do the two sentences say the same?",
        "MRPC",
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
        split=_by_dev_ids,
    ),
    "glue/sts-b": DataSet(
        "regression", "spearman", "how alike are the two sentences, from 0 to 5?", "STS-B", _PAIR | {"label": "score"}
    ),
    "glue/wnli": DataSet("pair", "accuracy", "does the second sentence follow from the first?", "WNLI", _PAIR),
}
