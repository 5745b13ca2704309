"""Labelled examples from files: tables, JSON lines, CoNLL columns; each plain or packed (`files.PACKED`).

A row that cannot be read is a `DataError` with file and line; `skip_bad` counts and skips such rows.
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

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.compression import COMPRESSED_SUFFIXES, read_decompressed
from polyseme.io.json import parse_json_object
from polyseme.nn.heads.tag_schemes import first_invalid, repair_tags

TaskType = Literal["classification", "pair", "regression", "choice", "tagging", "span", "coreference"]
GoldAnswer = tuple[str, int]  # a text, and the character where it stands in its context; -1 if nobody said
TASK_TYPES: tuple[str, ...] = get_args(TaskType)
TABLE_SUFFIXES, JSON_LINES_SUFFIXES, CONLL_SUFFIXES = (
    (".tsv", ".txt", ".csv"),
    (".jsonl", ".ndjson"),
    (".conll", ".iob", ".bio"),
)


@dataclass(frozen=True)
class ConllDocument:
    """What is known of a document beside its words: how its columns are written, without the last; how many words each
    sentence has; who says each word; and of which kind its text is, if that is said."""

    header: str
    row_prefixes: tuple[str, ...]
    sentence_lengths: tuple[int, ...]
    speakers: tuple[str, ...]
    genre: str = ""


@dataclass(frozen=True)
class Example:
    """One row of a data file, and where it stands: words and tags for tagging, else a text, a pair or choices.

    A label is kept as it is written, a number too; of a choice it is the number of the right one, from 0. For spans the
    text is the context and the pair is the question; no answers at all, (), say that there is none to find. A document
    has words, and clusters of mentions, which are the first and last word of each.
    """

    location: str
    text: str | None = None
    pair: str | None = None
    words: tuple[str, ...] | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    answers: tuple[GoldAnswer, ...] | None = None
    id: str = ""
    accepted_answers: tuple[str, ...] = ()  # of a choice, all texts that are right where several are
    predicate: tuple[int, str] | None = None  # the word that the tags are about, from 0, and what its file calls it
    document: ConllDocument | None = None
    clusters: tuple[tuple[tuple[int, int], ...], ...] | None = None

    @property
    def gold(self) -> str | tuple[Any, ...] | None:
        """What is to be predicted, if it is known."""
        if self.clusters is not None:
            return self.clusters
        if self.answers is not None:
            return tuple(text for text, _ in self.answers)
        return self.label if self.tags is None else self.tags


@dataclass(frozen=True)
class TableReader:
    """What the formats share: where the rows come from, and the columns or keys that are wanted."""

    path: Path
    lines: list[str]
    columns: dict[str, str]  # "text", "pair", "label" -> the column's name in this file
    needs_labels: bool
    has_numeric_labels: bool = False  # whether labels are numbers
    optional_columns: tuple[str, ...] = ()  # roles that a file may lack

    def location(self, line: int) -> str:
        return f"{self.path}:{line}"

    def build_example(self, line: int, values: dict[str, Any]) -> Example:
        location = self.location(line)
        if "pair" in self.optional_columns and values.get("pair") in ("", None):
            values = {role: value for role, value in values.items() if role != "pair"}
        text, pair = (
            _text(values[role], location, self.columns[role]) if role in values else None for role in ("text", "pair")
        )
        label = values.get("label")
        if label is not None and not isinstance(label, str):
            label = _label_text(label, location, self.columns["label"])
        if self.needs_labels and not label:
            raise DataError(f"{location}: the label ({self.columns['label']}) is missing")
        if self.has_numeric_labels and label:
            parse_float(label, location)
        return Example(location, text, pair, label=label or None)


def parse_float(label: Any, location: str) -> float:
    """A label as the number it must be."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{location}: the label {str(label)[:40]!r} is not a number")
    return number


RowReader = Callable[[], Example]  # reads one row or sentence, or says what is wrong with it


def read_examples(
    path: Path | str,
    task_type: TaskType,
    *,
    text: str = "text",
    pair: str = "pair",
    label: str = "label",
    header: bool = True,
    needs_labels: bool = True,
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
    row_readers = iter_rows(Path(path), task_type, text, pair, label, header, needs_labels, encoding)
    return read_rows(Path(path), row_readers, skip_bad, strict)


def iter_rows(
    path: Path,
    task_type: TaskType,
    text: str = "text",
    pair: str = "pair",
    label: str = "label",
    header: bool = True,
    needs_labels: bool = True,
    encoding: str = "utf-8",
) -> Iterator[RowReader]:
    """Each row or sentence of a file, not yet read."""
    if task_type not in TASK_TYPES:
        raise ConfigError(f"no task kind {task_type!r}; {suggest(task_type, TASK_TYPES)}")
    if task_type == "span":
        from polyseme.tasks.readers.squad import iter_questions

        return iter_questions(path, needs_labels)
    if task_type == "coreference":
        from polyseme.tasks.readers.conll2012 import iter_documents

        return iter_documents(path, needs_labels)
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path).suffix
    columns = {"text": text, "pair": pair, "label": label}
    if task_type not in ("pair", "regression"):
        del columns["pair"]
    optional_columns: tuple[str, ...] = () if needs_labels else ("label", "tags")
    if task_type == "regression" and pair == "pair":  # nobody asked for it
        optional_columns += ("pair",)
    table = TableReader(
        path, read_lines(path, encoding), columns, needs_labels, task_type == "regression", optional_columns
    )
    if suffix in JSON_LINES_SUFFIXES:
        row_readers = _iter_json(table, task_type)
    elif task_type == "tagging":
        row_readers = _iter_conll(table)
    elif suffix in TABLE_SUFFIXES and task_type != "choice":
        row_readers = _iter_table(table, header, suffix == ".csv" and "\t" not in table.lines[0])
    else:
        supported_suffixes = ", ".join(
            JSON_LINES_SUFFIXES if task_type == "choice" else TABLE_SUFFIXES + JSON_LINES_SUFFIXES
        )
        raise DataError(
            f"{path}: {task_type} reads {supported_suffixes} (or these with {' '.join(COMPRESSED_SUFFIXES)}), "
            f"not {suffix!r}"
        )
    return row_readers


def read_rows(path: Path, row_readers: Iterable[RowReader], skip_bad: bool, strict: bool = False) -> list[Example]:
    """Every example that can be read; the first that cannot is an error, or all such are counted and passed over.

    Broken tags are mended and counted, or with `strict` an error.
    """
    examples, errors = [], []
    for read_row in row_readers:
        try:
            examples.append(read_row())
        except DataError as error:
            if not skip_bad:
                raise
            errors.append(error)
    if errors:
        total = len(errors) + len(examples)
        print(f"{path}: skipped {len(errors)} bad of {total} rows, the first: {errors[0]}", file=sys.stderr)
    if not examples:
        raise DataError(f"{path} holds no examples" + (f" but {len(errors)} bad rows" if errors else ""))
    return _repair_examples(path, examples, strict)


def _repair_examples(path: Path, examples: list[Example], strict: bool) -> list[Example]:
    """Sentences whose tags mark entities as no scheme allows get such tags as mark what was meant."""
    tagged_indices = [i for i, e in enumerate(examples) if e.tags is not None]
    repaired_tags = dict(zip(tagged_indices, repair_tags([examples[i].tags or () for i in tagged_indices])))
    changed_indices = [i for i in tagged_indices if repaired_tags[i] != examples[i].tags]
    if not changed_indices:
        return examples
    first, tags = examples[changed_indices[0]], examples[changed_indices[0]].tags or ()
    position = first_invalid(tags) or 0
    problem = f"{first.location}: {tags[min(position, len(tags) - 1)]!r} at word {min(position, len(tags) - 1) + 1}"
    if strict:
        raise DataError(
            f"{problem} cannot stand there; {len(changed_indices)} of {len(examples)} sentences have such tags"
        )
    num_changed = sum(a != b for i in changed_indices for a, b in zip(repaired_tags[i], examples[i].tags or ()))
    summary = f"{len(changed_indices)} of {len(examples)} sentences with broken tags"
    print(f"{path}: mended {num_changed} tags in {summary}, the first: {problem}", file=sys.stderr)
    return [replace(e, tags=repaired_tags[i]) if i in repaired_tags else e for i, e in enumerate(examples)]


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file without their ends; an empty file is an error."""
    raw_bytes = b"".join(read_decompressed(path))
    try:
        text = raw_bytes.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise ConfigError(f"there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = raw_bytes.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not {encoding} text (byte {error.start} of the file)") from None
    if not text.strip():
        raise DataError(f"{path} is empty")
    return [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]


def _iter_table(table: TableReader, header: bool, is_csv: bool) -> Iterator[RowReader]:
    """Tab-separated columns as GLUE has them, where a quote is a character like any other; or quoted CSV."""
    cells = _read_csv(table) if is_csv else ((n, line.split("\t")) for n, line in enumerate(table.lines, 1))
    header_line, header_cells = next(cells)
    column_indices: dict[str, int] = {}
    for role, name in table.columns.items():
        if header and name in header_cells:
            column_indices[role] = header_cells.index(name)
        elif not header and name.isdecimal() and 1 <= int(name) <= len(header_cells):
            column_indices[role] = int(name) - 1
        elif role in table.optional_columns:
            continue
        elif header:
            raise DataError(
                f"{table.location(header_line)}: there is no column {name!r}; {suggest(name, header_cells)}"
            )
        else:
            raise DataError(
                f"{table.path}: without a header, {role} is a column number from 1 to {len(header_cells)}, not {name!r}"
            )
    if not header:
        yield partial(_from_cells, table, header_line, header_cells, column_indices, len(header_cells))
    for line, row in cells:
        yield partial(_from_cells, table, line, row, column_indices, len(header_cells))


def _from_cells(table: TableReader, line: int, cells: list[str], column_indices: dict[str, int], width: int) -> Example:
    if len(cells) != width:
        raise DataError(f"{table.location(line)}: {len(cells)} columns, but the first line has {width}")
    return table.build_example(line, {role: cells[index] for role, index in column_indices.items()})


def _read_csv(table: TableReader) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in table.lines), strict=True)
    line = 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{table.location(line)}: not valid CSV: {error}") from None


def _iter_json(table: TableReader, task_type: TaskType) -> Iterator[RowReader]:
    for line, content in enumerate(table.lines, 1):
        if content.strip():
            yield partial(_from_json, table, line, content, task_type)


def _from_json(table: TableReader, line: int, content: str, task_type: TaskType) -> Example:
    location = table.location(line)
    record = parse_json_object(content, location)
    keys = {"words": "words", "tags": "tags"} if task_type == "tagging" else table.columns
    if task_type == "choice":
        text = "prompt" if table.columns["text"] not in record and "prompt" in record else table.columns["text"]
        keys = {"text": text, "choices": "choices", "label": table.columns["label"]}
    values = {}
    for role, name in keys.items():
        if name in record:
            values[role] = record[name]
        elif role not in table.optional_columns:
            raise DataError(f"{location}: there is no key {name!r}; {suggest(name, record)}")
    if task_type == "choice":
        return _from_choices(table, location, values)
    if task_type != "tagging":
        return table.build_example(line, values)
    words = _words(values["words"], location, "words")
    tags = None if values.get("tags") is None else _words(values["tags"], location, "tags")
    if table.needs_labels and tags is None:
        raise DataError(f"{location}: the tags are missing")
    if tags is not None and len(tags) != len(words):
        raise DataError(f"{location}: {len(words)} words but {len(tags)} tags")
    return Example(location, words=words, tags=tags, predicate=_predicate(record, words, location))


def _predicate(record: dict[str, Any], words: tuple[str, ...], location: str) -> tuple[int, str] | None:
    """The number of the word that the tags are about, from 0, if there is one."""
    position = record.get("predicate")
    if position is None:
        return None
    if type(position) is not int or not 0 <= position < len(words):
        raise DataError(
            f"{location}: predicate is {str(position)[:40]!r}, not the number of a word, 0 to {len(words) - 1}"
        )
    return position, words[position]


def _from_choices(table: TableReader, location: str, values: dict[str, Any]) -> Example:
    choices = _words(values["choices"], location, "choices")
    if len(choices) < 2:
        raise DataError(f"{location}: there is one choice, which leaves nothing to choose")
    label, number = values.get("label"), None
    if isinstance(label, str) and choices.count(label) == 1:
        number = choices.index(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        number = label
    elif isinstance(label, str) and label.isdecimal():
        number = int(label)
    if label in (None, "") and table.needs_labels:
        raise DataError(f"{location}: the label ({table.columns['label']}) is missing")
    if label not in (None, "") and (number is None or not 0 <= number < len(choices)):
        raise DataError(
            f"{location}: the label is {str(label)[:40]!r}: one of the choices is needed, or 0 to {len(choices) - 1}"
        )
    text = _text(values["text"], location, table.columns["text"])
    return Example(location, text, label=None if number is None else str(number), choices=choices)


def _iter_conll(table: TableReader) -> Iterator[RowReader]:
    """Sentences between blank lines. A line with # in front is a comment unless it fits as word and tag."""
    skipped_prefixes = ("#", "-DOCSTART-")
    word_rows = [_columns(line) for line in table.lines if line.strip() and not line.startswith(skipped_prefixes)]
    width = len(word_rows[0]) if word_rows else 0
    tags = {columns[-1] for columns in word_rows}
    sentence: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*table.lines, ""], 1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            columns = _columns(line)
            is_word = len(columns) == width and (width == 1 or columns[-1] in tags)
            if is_word or not line.startswith("#"):
                sentence.append((number, columns))
        elif sentence:
            yield partial(_from_columns, table, sentence, width)
            sentence = []


def _from_columns(table: TableReader, sentence: list[tuple[int, list[str]]], width: int) -> Example:
    for line, columns in sentence:
        if table.needs_labels and len(columns) < 2:
            raise DataError(f"{table.location(line)}: there is no tag beside {columns[0]!r}")
        if len(columns) != width:
            raise DataError(f"{table.location(line)}: {len(columns)} columns, but the first row has {width}")
        if not columns[0] or not columns[-1]:
            raise DataError(f"{table.location(line)}: the {'tag' if columns[0] else 'word'} is empty")
    words = tuple(columns[0] for _, columns in sentence)
    tags = tuple(columns[-1] for _, columns in sentence) if width > 1 else None
    return Example(table.location(sentence[0][0]), words=words, tags=tags)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _text(value: Any, location: str, name: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a text")
    if not value.strip():
        raise DataError(f"{location}: {name} is an empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{location}: {name} holds half a surrogate pair, which is no character") from None
    return value


def _words(value: Any, location: str, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a list of texts")
    return tuple(_text(element, location, f"{name}[{i}]") for i, element in enumerate(value))


def _label_text(value: Any, location: str, name: str) -> str:
    """JSON labels may be numbers or true and false: they are kept as they are written."""
    if not isinstance(value, int | float):
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a label")
    return json.dumps(value)
