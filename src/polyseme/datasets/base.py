"""What a named data set is: files as they are distributed, and the metric that counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import UserError, nearest
from polyseme.evaluation.predict import Extra
from polyseme.io.files import PACKED, parse_json
from polyseme.tasks.examples import Example, Kind, Unit, read_lines, read_units, units_of

Split = tuple[list[Example], list[Example]]  # train and dev
Units = Callable[[Path, bool], Iterable[Unit]]  # a file, and whether each row must have a label


@dataclass(frozen=True)
class DataSet:
    """`folder` is its name as distributed, `parts` the files in it: train, dev, and what else there is.

    `extra` adds metrics that need more than labels. `chosen` is for a part that is not a file of its own. `warn` says
    what must be known of train, dev, and the score on dev.
    """

    kind: Kind
    metric: str
    about: str
    folder: str
    units: Units
    parts: dict[str, str]
    extra: Extra | None = None
    chosen: Callable[[Path, str, list[Example]], list[Example]] | None = None
    warn: Callable[[list[Example], list[Example], float], list[str]] | None = None

    def read(self, folder: Path | str, skip_bad: bool = False, strict: bool = False) -> Split:
        """Train and dev examples from the data set's own folder, or from the one where it lies."""
        if not Path(folder).is_dir():
            raise UserError(f"there is no folder {folder}")
        train, dev = (self.part(folder, name, skip_bad, strict=strict) for name in ("train", "dev"))
        return train, dev

    def part(
        self,
        folder: Path | str,
        name: str = "dev",
        skip_bad: bool = False,
        need_labels: bool = True,
        strict: bool = False,
    ) -> list[Example]:
        """The examples of a part of the folder; or of one file, whatever part it is."""
        path = Path(folder)
        if path.is_file():
            return read_units(path, self.units(path, need_labels), skip_bad, strict)
        if not path.is_dir():
            raise UserError(f"there is no folder {path}")
        if name not in self.parts:
            raise UserError(f"there is no part {name!r} of {self.folder}; {nearest(name, self.parts)}")
        path = path / self.folder if (path / self.folder).is_dir() else path
        file = path / self.parts[name]
        packed = (file.with_name(file.name + ending) for ending in PACKED)
        if not file.exists():
            file = next((p for p in packed if p.is_file()), file)
        found = read_units(file, self.units(file, need_labels), skip_bad, strict)
        return self.chosen(path, name, found) if self.chosen else found


def two(ending: str = "tsv", test: bool = True) -> dict[str, str]:
    """The usual names of the parts."""
    names = ("train", "dev", "test") if test else ("train", "dev")
    return {name: f"{name}.{ending}" for name in names}


def table(
    kind: Kind,
    text: str,
    pair: str = "pair",
    label: str = "label",
    header: bool = True,
    bare: tuple[str, str] | None = None,
) -> Units:
    """Rows of a table by the names of its columns; `bare` are those of unlabelled files, where they differ."""

    def units(path: Path, need_labels: bool) -> Iterator[Unit]:
        if bare and not need_labels:
            return units_of(path, kind, bare[0], bare[1], need_labels=False)
        return units_of(path, kind, text, pair, label, header, need_labels)

    return units


def columns(encoding: str = "utf-8") -> Units:
    """Words and tags in columns, whatever the file's ending."""

    def units(path: Path, need_labels: bool) -> Iterator[Unit]:
        return units_of(path, "tagging", need_labels=need_labels, encoding=encoding)

    return units


def json_lines(make: Callable[[Row], Iterable[Example]]) -> Units:
    """A file of JSON objects, one a line; `make` turns one into its examples."""

    def units(path: Path, need_labels: bool) -> Iterator[Unit]:
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                where = f"{path}:{number}"
                yield from each(make, Row(where, parse_json(line, where), need_labels))

    return units


def each(make: Callable[[Any], Iterable[Example]], row: Any) -> Iterator[Unit]:
    """The examples of a row; what is wrong with it is raised when it is read, so that it can be passed over."""
    try:
        found = list(make(row))
    except UserError as error:
        yield partial(_fail, error)
        return
    for example in found:
        yield partial(_same, example)


@dataclass(frozen=True)
class Row:
    """A JSON object, and where it stands."""

    where: str
    values: Any
    need_labels: bool

    def get(self, name: str, type_: type | tuple[type, ...] = str) -> Any:
        if not isinstance(self.values, dict):
            raise UserError(f"{self.where}: expected a JSON object, found {str(self.values)[:40]!r}")
        if name not in self.values:
            raise UserError(f"{self.where}: there is no key {name!r}; {nearest(name, self.values)}")
        value = self.values[name]
        if not isinstance(value, type_) or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.where}: {name} is {str(value)[:40]!r}, which is not what it should be")
        return value

    def inner(self, name: str) -> Row:
        return Row(f"{self.where}, {name}", self.get(name, dict), self.need_labels)

    def rows(self, name: str) -> list[Row]:
        found = self.get(name, list)
        return [Row(f"{self.where}, {name}[{i}]", value, self.need_labels) for i, value in enumerate(found)]

    def label(self, name: str = "label") -> str | None:
        """A label as it is written: `true` for a JSON true."""
        if not self.need_labels and name not in self.values:
            return None
        value = self.get(name, (str, int))
        return value if isinstance(value, str) else json.dumps(value)

    def id(self, name: str = "idx") -> str:
        return str(self.values.get(name, ""))


def _fail(error: UserError) -> Example:
    raise error


def _same(example: Example) -> Example:
    return example
