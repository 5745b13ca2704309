"""Labelled examples from files: tables, JSON lines, CoNLL columns; each plain or packed (`files.PACKED`).

A row that cannot be read is a `UserError` with file and line; `skip_bad` counts and skips such rows.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from polyseme.errors import UserError, nearest
from polyseme.io.files import PACKED, json_object, unpacked
from polyseme.nn.heads.tag_schemes import broken, mended

Kind = Literal["classification", "pair", "regression", "choice", "tagging", "span", "coreference"]
Answer = tuple[str, int]  # a text, and the character where it stands in its context; -1 if nobody said
KINDS: tuple[str, ...] = get_args(Kind)
TABLES, LINES, COLUMNS = (".tsv", ".txt", ".csv"), (".jsonl", ".ndjson"), (".conll", ".iob", ".bio")


@dataclass(frozen=True)
class Document:
    """What is known of a document beside its words: how its columns are written, without the last; how many words each
    sentence has; who says each word; and of which kind its text is, if that is said."""

    header: str
    stems: tuple[str, ...]
    sentences: tuple[int, ...]
    speakers: tuple[str, ...]
    genre: str = ""


@dataclass(frozen=True)
class Example:
    """One row of a data file, and where it stands: words and tags for tagging, else a text, a pair or choices.

    A label is kept as it is written, a number too; of a choice it is the number of the right one, from 0. For spans the
    text is the context and the pair is the question; no answers at all, (), say that there is none to find. A document
    has words, and clusters of mentions, which are the first and last word of each.
    """

    where: str
    text: str | None = None
    pair: str | None = None
    words: tuple[str, ...] | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    answers: tuple[Answer, ...] | None = None
    id: str = ""
    accepted: tuple[str, ...] = ()  # of a choice, all texts that are right where several are
    mark: tuple[int, str] | None = None  # the word that the tags are about, from 0, and what its file calls it
    document: Document | None = None
    clusters: tuple[tuple[tuple[int, int], ...], ...] | None = None

    @property
    def answer(self) -> str | tuple[Any, ...] | None:
        """What is to be predicted, if it is known."""
        if self.clusters is not None:
            return self.clusters
        if self.answers is not None:
            return tuple(text for text, _ in self.answers)
        return self.label if self.tags is None else self.tags


@dataclass(frozen=True)
class Rows:
    """What the formats share: where the rows come from, and the columns or keys that are wanted."""

    path: Path
    lines: list[str]
    names: dict[str, str]  # "text", "pair", "label" -> the column's name in this file
    need_labels: bool
    numbers: bool = False  # whether labels are numbers
    optional: tuple[str, ...] = ()  # roles that a file may lack

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"

    def example(self, line: int, values: dict[str, Any]) -> Example:
        where = self.where(line)
        if "pair" in self.optional and values.get("pair") in ("", None):
            values = {role: value for role, value in values.items() if role != "pair"}
        text, pair = (
            _text(values[role], where, self.names[role]) if role in values else None for role in ("text", "pair")
        )
        label = values.get("label")
        if label is not None and not isinstance(label, str):
            label = _number(label, where, self.names["label"])
        if self.need_labels and not label:
            raise UserError(f"{where}: the label ({self.names['label']}) is missing")
        if self.numbers and label:
            as_number(label, where)
        return Example(where, text, pair, label=label or None)


def as_number(label: Any, where: str) -> float:
    """A label as the number it must be."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: the label {str(label)[:40]!r} is not a number")
    return number


Unit = Callable[[], Example]  # reads one row or sentence, or says what is wrong with it


def read_examples(
    path: Path | str,
    kind: Kind,
    *,
    text: str = "text",
    pair: str = "pair",
    label: str = "label",
    header: bool = True,
    need_labels: bool = True,
    skip_bad: bool = False,
    encoding: str = "utf-8",
    strict: bool = False,
) -> list[Example]:
    """Every example of a file, in its order. For regression a second text is read where the file has one.

    Questions with their answers in a text (span) are SQuAD's JSON; documents with chains of mentions (coreference) are
    the columns of CoNLL-2012, a file or a folder of them. Choices are JSON lines: a text (or `prompt`), a
    list of `choices`, and the right one or its number from 0.
    Without a header, `text`, `pair` and `label` are column numbers from 1. Tags of entities that cannot follow each
    other (I-X behind O, in IOB2) are mended and counted, or with `strict` an error.
    """
    units = units_of(Path(path), kind, text, pair, label, header, need_labels, encoding)
    return read_units(Path(path), units, skip_bad, strict)


def units_of(
    path: Path,
    kind: Kind,
    text: str = "text",
    pair: str = "pair",
    label: str = "label",
    header: bool = True,
    need_labels: bool = True,
    encoding: str = "utf-8",
) -> Iterator[Unit]:
    """Each row or sentence of a file, not yet read."""
    if kind not in KINDS:
        raise UserError(f"no task kind {kind!r}; {nearest(kind, KINDS)}")
    if kind == "span":
        from polyseme.tasks.readers.squad import squad_units

        return squad_units(path, need_labels)
    if kind == "coreference":
        from polyseme.tasks.readers.conll2012 import document_units

        return document_units(path, need_labels)
    suffix = (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix
    names = {"text": text, "pair": pair, "label": label}
    if kind not in ("pair", "regression"):
        del names["pair"]
    optional: tuple[str, ...] = () if need_labels else ("label", "tags")
    if kind == "regression" and pair == "pair":  # nobody asked for it
        optional += ("pair",)
    rows = Rows(path, read_lines(path, encoding), names, need_labels, kind == "regression", optional)
    if suffix in LINES:
        units = _json_units(rows, kind)
    elif kind == "tagging":
        units = _column_units(rows)
    elif suffix in TABLES and kind != "choice":
        units = _table_units(rows, header, suffix == ".csv" and "\t" not in rows.lines[0])
    else:
        known = ", ".join(LINES if kind == "choice" else TABLES + LINES)
        raise UserError(f"{path}: {kind} reads {known} (or these with {' '.join(PACKED)}), not {suffix!r}")
    return units


def read_units(path: Path, units: Iterable[Unit], skip_bad: bool, strict: bool = False) -> list[Example]:
    """Every example that can be read; the first that cannot is an error, or all such are counted and passed over.

    Broken tags are mended and counted, or with `strict` an error.
    """
    found, bad = [], []
    for read in units:
        try:
            found.append(read())
        except UserError as error:
            if not skip_bad:
                raise
            bad.append(error)
    if bad:
        total = len(bad) + len(found)
        print(f"{path}: skipped {len(bad)} bad of {total} rows, the first: {bad[0]}", file=sys.stderr)
    if not found:
        raise UserError(f"{path} holds no examples" + (f" but {len(bad)} bad rows" if bad else ""))
    return _mend(path, found, strict)


def _mend(path: Path, examples: list[Example], strict: bool) -> list[Example]:
    """Sentences whose tags mark entities as no scheme allows get such tags as mark what was meant."""
    tagged = [i for i, e in enumerate(examples) if e.tags is not None]
    new = dict(zip(tagged, mended([examples[i].tags or () for i in tagged])))
    changed = [i for i in tagged if new[i] != examples[i].tags]
    if not changed:
        return examples
    first, tags = examples[changed[0]], examples[changed[0]].tags or ()
    place = broken(tags) or 0
    said = f"{first.where}: {tags[min(place, len(tags) - 1)]!r} at word {min(place, len(tags) - 1) + 1}"
    if strict:
        raise UserError(f"{said} cannot stand there; {len(changed)} of {len(examples)} sentences have such tags")
    number = sum(a != b for i in changed for a, b in zip(new[i], examples[i].tags or ()))
    where = f"{len(changed)} of {len(examples)} sentences with broken tags"
    print(f"{path}: mended {number} tags in {where}, the first: {said}", file=sys.stderr)
    return [replace(e, tags=new[i]) if i in new else e for i, e in enumerate(examples)]


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file without their ends; an empty file is an error."""
    data = b"".join(unpacked(path))
    try:
        text = data.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise UserError(f"there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not {encoding} text (byte {error.start} of the file)") from None
    if not text.strip():
        raise UserError(f"{path} is empty")
    return [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]


def _table_units(rows: Rows, header: bool, commas: bool) -> Iterator[Unit]:
    """Tab-separated columns as GLUE has them, where a quote is a character like any other; or quoted CSV."""
    cells = _commas(rows) if commas else ((n, line.split("\t")) for n, line in enumerate(rows.lines, 1))
    top_line, top = next(cells)
    places: dict[str, int] = {}
    for role, name in rows.names.items():
        if header and name in top:
            places[role] = top.index(name)
        elif not header and name.isdecimal() and 1 <= int(name) <= len(top):
            places[role] = int(name) - 1
        elif role in rows.optional:
            continue
        elif header:
            raise UserError(f"{rows.where(top_line)}: there is no column {name!r}; {nearest(name, top)}")
        else:
            raise UserError(
                f"{rows.path}: without a header, {role} is a column number from 1 to {len(top)}, not {name!r}"
            )
    if not header:
        yield partial(_from_cells, rows, top_line, top, places, len(top))
    for line, row in cells:
        yield partial(_from_cells, rows, line, row, places, len(top))


def _from_cells(rows: Rows, line: int, cells: list[str], places: dict[str, int], width: int) -> Example:
    if len(cells) != width:
        raise UserError(f"{rows.where(line)}: {len(cells)} columns, but the first line has {width}")
    return rows.example(line, {role: cells[place] for role, place in places.items()})


def _commas(rows: Rows) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in rows.lines), strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{rows.where(line)}: not valid CSV: {error}") from None


def _json_units(rows: Rows, kind: Kind) -> Iterator[Unit]:
    for line, content in enumerate(rows.lines, 1):
        if content.strip():
            yield partial(_from_json, rows, line, content, kind)


def _from_json(rows: Rows, line: int, content: str, kind: Kind) -> Example:
    where = rows.where(line)
    record = json_object(content, where)
    names = {"words": "words", "tags": "tags"} if kind == "tagging" else rows.names
    if kind == "choice":
        text = "prompt" if rows.names["text"] not in record and "prompt" in record else rows.names["text"]
        names = {"text": text, "choices": "choices", "label": rows.names["label"]}
    values = {}
    for role, name in names.items():
        if name in record:
            values[role] = record[name]
        elif role not in rows.optional:
            raise UserError(f"{where}: there is no key {name!r}; {nearest(name, record)}")
    if kind == "choice":
        return _from_choices(rows, where, values)
    if kind != "tagging":
        return rows.example(line, values)
    words = _words(values["words"], where, "words")
    tags = None if values.get("tags") is None else _words(values["tags"], where, "tags")
    if rows.need_labels and tags is None:
        raise UserError(f"{where}: the tags are missing")
    if tags is not None and len(tags) != len(words):
        raise UserError(f"{where}: {len(words)} words but {len(tags)} tags")
    return Example(where, words=words, tags=tags, mark=_mark(record, words, where))


def _mark(record: dict[str, Any], words: tuple[str, ...], where: str) -> tuple[int, str] | None:
    """The number of the word that the tags are about, from 0, if there is one."""
    place = record.get("mark")
    if place is None:
        return None
    if type(place) is not int or not 0 <= place < len(words):
        raise UserError(f"{where}: mark is {str(place)[:40]!r}, not the number of a word, 0 to {len(words) - 1}")
    return place, words[place]


def _from_choices(rows: Rows, where: str, values: dict[str, Any]) -> Example:
    choices = _words(values["choices"], where, "choices")
    if len(choices) < 2:
        raise UserError(f"{where}: there is one choice, which leaves nothing to choose")
    label, number = values.get("label"), None
    if isinstance(label, str) and choices.count(label) == 1:
        number = choices.index(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        number = label
    elif isinstance(label, str) and label.isdecimal():
        number = int(label)
    if label in (None, "") and rows.need_labels:
        raise UserError(f"{where}: the label ({rows.names['label']}) is missing")
    if label not in (None, "") and (number is None or not 0 <= number < len(choices)):
        raise UserError(
            f"{where}: the label is {str(label)[:40]!r}: one of the choices is needed, or 0 to {len(choices) - 1}"
        )
    text = _text(values["text"], where, rows.names["text"])
    return Example(where, text, label=None if number is None else str(number), choices=choices)


def _column_units(rows: Rows) -> Iterator[Unit]:
    """Sentences between blank lines. A line with # in front is a comment unless it fits as word and tag."""
    other = ("#", "-DOCSTART-")
    plain = [_columns(line) for line in rows.lines if line.strip() and not line.startswith(other)]
    width = len(plain[0]) if plain else 0
    tags = {columns[-1] for columns in plain}
    sentence: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*rows.lines, ""], 1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            columns = _columns(line)
            word = len(columns) == width and (width == 1 or columns[-1] in tags)
            if word or not line.startswith("#"):
                sentence.append((number, columns))
        elif sentence:
            yield partial(_from_columns, rows, sentence, width)
            sentence = []


def _from_columns(rows: Rows, sentence: list[tuple[int, list[str]]], width: int) -> Example:
    for line, columns in sentence:
        if rows.need_labels and len(columns) < 2:
            raise UserError(f"{rows.where(line)}: there is no tag beside {columns[0]!r}")
        if len(columns) != width:
            raise UserError(f"{rows.where(line)}: {len(columns)} columns, but the first row has {width}")
        if not columns[0] or not columns[-1]:
            raise UserError(f"{rows.where(line)}: the {'tag' if columns[0] else 'word'} is empty")
    words = tuple(columns[0] for _, columns in sentence)
    tags = tuple(columns[-1] for _, columns in sentence) if width > 1 else None
    return Example(rows.where(sentence[0][0]), words=words, tags=tags)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _text(value: Any, where: str, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {name} is {str(value)[:40]!r}, not a text")
    if not value.strip():
        raise UserError(f"{where}: {name} is an empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {name} holds half a surrogate pair, which is no character") from None
    return value


def _words(value: Any, where: str, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {name} is {str(value)[:40]!r}, not a list of texts")
    return tuple(_text(item, where, f"{name}[{i}]") for i, item in enumerate(value))


def _number(value: Any, where: str, name: str) -> str:
    """JSON labels may be numbers or true and false: they are kept as they are written."""
    if not isinstance(value, int | float):
        raise UserError(f"{where}: {name} is {str(value)[:40]!r}, not a label")
    return json.dumps(value)
