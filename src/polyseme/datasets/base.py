"""What a named data set is: files as they are distributed, and the metric that counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.evaluation.predict import MetricsFn
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.io.json import parse_json
from polyseme.tasks.examples import Example, RowReader, TaskType, iter_rows, read_lines, read_rows

TrainDev = tuple[list[Example], list[Example]]  # train and dev
DatasetReader = Callable[[Path, bool], Iterable[RowReader]]  # a file, and whether each row must have a label


@dataclass(frozen=True)
class NamedDataset:
    """`folder` is its name as distributed, `splits` the files in it: train, dev, and what else there is.

    `extra_metrics` adds metrics that need more than labels. `split_filter` is for a part that is not a file of its own.
    `get_warnings` says what must be known of train, dev, and the score on dev.
    """

    task_type: TaskType
    metric: str
    description: str
    folder: str
    reader: DatasetReader
    splits: dict[str, str]
    extra_metrics: MetricsFn | None = None
    split_filter: Callable[[Path, str, list[Example]], list[Example]] | None = None
    get_warnings: Callable[[list[Example], list[Example], float], list[str]] | None = None

    def read(self, folder: Path | str, skip_bad: bool = False, strict: bool = False) -> TrainDev:
        """Train and dev examples from the data set's own folder, or from the one where it lies."""
        if not Path(folder).is_dir():
            raise DataError(f"there is no folder {folder}")
        train, dev = (self.read_split(folder, split, skip_bad, strict=strict) for split in ("train", "dev"))
        return train, dev

    def read_split(
        self,
        folder: Path | str,
        split: str = "dev",
        skip_bad: bool = False,
        needs_labels: bool = True,
        strict: bool = False,
    ) -> list[Example]:
        """The examples of a part of the folder; or of one file, whatever part it is."""
        path = Path(folder)
        if path.is_file():
            return read_rows(path, self.reader(path, needs_labels), skip_bad, strict)
        if not path.is_dir():
            raise DataError(f"there is no folder {path}")
        if split not in self.splits:
            raise ConfigError(f"there is no part {split!r} of {self.folder}; {suggest(split, self.splits)}")
        path = path / self.folder if (path / self.folder).is_dir() else path
        file = path / self.splits[split]
        compressed_files = (file.with_name(file.name + suffix) for suffix in COMPRESSED_SUFFIXES)
        if not file.exists():
            file = next((p for p in compressed_files if p.is_file()), file)
        examples = read_rows(file, self.reader(file, needs_labels), skip_bad, strict)
        return self.split_filter(path, split, examples) if self.split_filter else examples


def standard_files(extension: str = "tsv", has_test: bool = True) -> dict[str, str]:
    """The usual names of the parts."""
    names = ("train", "dev", "test") if has_test else ("train", "dev")
    return {name: f"{name}.{extension}" for name in names}


def table_reader(
    task_type: TaskType,
    text_column: str,
    pair_column: str = "pair",
    label_column: str = "label",
    has_header: bool = True,
    unlabeled_columns: tuple[str, str] | None = None,
) -> DatasetReader:
    """Rows of a table by the names of its columns; `unlabeled_columns` are those of unlabelled files, where they
    differ.
    """

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        if unlabeled_columns and not needs_labels:
            return iter_rows(path, task_type, unlabeled_columns[0], unlabeled_columns[1], needs_labels=False)
        return iter_rows(path, task_type, text_column, pair_column, label_column, has_header, needs_labels)

    return read


def conll_reader(encoding: str = "utf-8") -> DatasetReader:
    """Words and tags in columns, whatever the file's ending."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        return iter_rows(path, "tagging", needs_labels=needs_labels, encoding=encoding)

    return read


def json_lines_reader(to_examples: Callable[[JsonRow], Iterable[Example]]) -> DatasetReader:
    """A file of JSON objects, one a line; `to_examples` turns one into its examples."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        for line_number, line in enumerate(read_lines(path), 1):
            if line.strip():
                location = f"{path}:{line_number}"
                yield from lazy_examples(to_examples, JsonRow(location, parse_json(line, location), needs_labels))

    return read


def lazy_examples(to_examples: Callable[[Any], Iterable[Example]], row: Any) -> Iterator[RowReader]:
    """The examples of a row; what is wrong with it is raised when it is read, so that it can be passed over."""
    try:
        examples = list(to_examples(row))
    except DataError as error:
        yield partial(_raise_error, error)
        return
    for example in examples:
        yield partial(_return_example, example)


@dataclass(frozen=True)
class JsonRow:
    """A JSON object, and where it stands."""

    location: str
    values: Any
    needs_labels: bool

    def get(self, name: str, expected_type: type | tuple[type, ...] = str) -> Any:
        if not isinstance(self.values, dict):
            raise DataError(f"{self.location}: expected a JSON object, found {str(self.values)[:40]!r}")
        if name not in self.values:
            raise DataError(f"{self.location}: there is no key {name!r}; {suggest(name, self.values)}")
        value = self.values[name]
        if not isinstance(value, expected_type) or (isinstance(value, str) and not value.strip()):
            raise DataError(f"{self.location}: {name} is {str(value)[:40]!r}, which is not what it should be")
        return value

    def child(self, name: str) -> JsonRow:
        return JsonRow(f"{self.location}, {name}", self.get(name, dict), self.needs_labels)

    def children(self, name: str) -> list[JsonRow]:
        elements = self.get(name, list)
        return [JsonRow(f"{self.location}, {name}[{i}]", value, self.needs_labels) for i, value in enumerate(elements)]

    def label(self, name: str = "label") -> str | None:
        """A label as it is written: `true` for a JSON true."""
        if not self.needs_labels and name not in self.values:
            return None
        value = self.get(name, (str, int))
        return value if isinstance(value, str) else json.dumps(value)

    def id(self, name: str = "idx") -> str:
        return str(self.values.get(name, ""))


def _raise_error(error: DataError) -> Example:
    raise error


def _return_example(example: Example) -> Example:
    return example
