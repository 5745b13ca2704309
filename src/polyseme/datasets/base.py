"""Named data sets: files as distributed, their task and their main metric."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.io.json import parse_json
from polyseme.tasks.base import MetricsFn, TaskConfig
from polyseme.tasks.readers.rows import Columns, JsonRow, RowReader, lazy_rows, read_lines
from polyseme.tasks.sequence import TextExample

DatasetReader = Callable[[Path, bool], Iterable[RowReader]]  # a file, and whether each row must have a label


@dataclass(frozen=True)
class NamedDataset:
    """Data set as distributed: `folder` is the name of its folder, `splits` maps splits to files in it.

    `other_names` has other names under which the files of a split are distributed; `*` stands for any characters.
    `format` is the columns of files that the task itself reads, or a function that reads a file. `extra_metrics` are
    metrics that need more than labels. `split_filter` selects a split that is not a file of its own. `get_warnings`
    returns warnings, given train, dev and the score on dev. With `has_symmetric_pairs`, neither text of a pair comes
    before the other.
    """

    task: type[TaskConfig]
    metric: str
    description: str
    folder: str
    format: Columns | DatasetReader
    splits: dict[str, str] = field(default_factory=lambda: split_files())
    extra_metrics: MetricsFn | None = None
    split_filter: Callable[[Path, str, list[Any]], list[Any]] | None = None
    get_warnings: Callable[[list[Any], list[Any], float], list[str]] | None = None
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_symmetric_pairs: bool = False

    def file_names(self, split: str) -> tuple[str, ...]:
        """Return the names that the file or folder of a split may have, the usual one first."""
        return (self.splits[split], *self.other_names.get(split, ()))

    def find_file(self, folder: Path, split: str) -> Path:
        """Return the file of a split under any of its names, plain or compressed; two files are an error."""
        names = self.file_names(split)
        existing = list(dict.fromkeys(path for name in names for path in _find_files(folder, name)))
        if len(existing) > 1:
            shown = " and ".join(str(path.relative_to(folder)) for path in existing)
            raise DataError(f"{folder} has {shown}, which are both names of its {split} examples: keep one of them")
        if not existing and len(names) > 1:
            raise DataError(f"{folder} has no {split} examples: none of {', '.join(names)}")
        return existing[0] if existing else folder / names[0]

    def iter_rows(self, path: Path, needs_labels: bool) -> Iterable[RowReader]:
        """Yield one function per row of a file; calling it parses the row."""
        if isinstance(self.format, Columns):
            return self.task.iter_rows(path, self.format, needs_labels)
        return self.format(path, needs_labels)

    def read(self, folder: Path | str, skip_bad: bool = False, strict: bool = False) -> tuple[list[Any], list[Any]]:
        """Read train and dev examples from the data set's folder, or from its parent folder."""
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
    ) -> list[Any]:
        """Read the examples of a split, or of a single file."""
        path = Path(folder)
        if path.is_file():
            return self.task.collect(path, self.iter_rows(path, needs_labels), skip_bad, strict)
        if not path.is_dir():
            raise DataError(f"there is no folder {path}")
        if split not in self.splits:
            raise ConfigError(f"there is no split {split!r} of {self.folder}; {suggest(split, self.splits)}")
        path = path / self.folder if (path / self.folder).is_dir() else path
        file = self.find_file(path, split)
        examples = self.task.collect(file, self.iter_rows(file, needs_labels), skip_bad, strict)
        return self.split_filter(path, split, examples) if self.split_filter else examples


def _find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, each plain if it exists, else compressed."""
    files: dict[str, Path] = {}
    for suffix in ("", *COMPRESSED_SUFFIXES):
        for path in sorted(folder.glob(pattern + suffix)):
            files.setdefault(str(path).removesuffix(suffix), path)
    return list(files.values())


def find_compressed(path: Path) -> Path:
    """Return a file, or its compressed form if only that exists."""
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in COMPRESSED_SUFFIXES)]
    return next((p for p in candidates if p.exists()), path)


def split_files(pattern: str = "{}.tsv", *splits: str, **names: str) -> dict[str, str]:
    """Return the files of splits (train, dev and test): the split, or its name given here, in the place of `{}`."""
    return {split: pattern.format(names.get(split, split)) for split in splits or ("train", "dev", "test")}


def other_names(*patterns: str, dev: Sequence[str] = ("dev",)) -> dict[str, tuple[str, ...]]:
    """Return other names of the files of train, dev and test: the split, or each name of dev, in the place of `{}`."""
    names = {"train": ["train"], "dev": dev, "test": ["test"]}
    return {split: tuple(p.format(name) for p in patterns for name in names[split]) for split in names}


def line_reader(parse: Callable[[str, str], Any], encoding: str = "utf-8") -> DatasetReader:
    """Read an example from each line of a file; `parse` takes the location and the line."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        for line_number, line in enumerate(read_lines(path, encoding), 1):
            yield partial(parse, f"{path}:{line_number}", line)

    return read


def json_lines_reader(to_examples: Callable[[JsonRow], Iterable[Any]]) -> DatasetReader:
    """Read a file of JSON objects, one per line; `to_examples` converts one to its examples."""

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        for line_number, line in enumerate(read_lines(path), 1):
            if line.strip():
                location = f"{path}:{line_number}"
                yield from lazy_rows(to_examples, JsonRow(location, parse_json(line, location), needs_labels))

    return read


def pair_reader(first: str, second: str, label: str = "label") -> DatasetReader:
    """Read pairs of texts by their keys, without those that lack a majority label (`-`), as SNLI's authors advise."""

    def to_examples(row: JsonRow) -> list[TextExample]:
        if isinstance(row.values, dict) and row.values.get(label) == "-":
            return []
        return [TextExample(row.location, row.get(first), row.get(second), row.label(label), row.id())]

    return json_lines_reader(to_examples)
