"""Readers of parallel text: pairs of a text and its translation from plain text, TSV, JSON lines and gettext files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyseme.corpus.sources.gettext_catalogs import find_catalogs, read_messages
from polyseme.corpus.sources.po import read_po
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.json import parse_json
from polyseme.io.lines import read_lines

_SUFFIX_FORMATS = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".po": "po", ".mo": "mo"}
_COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True)
class TextPair:
    """A text, its translation, and where they were read."""

    source: str
    target: str
    location: str


def read_pairs(sources: Sequence[str], keys: tuple[str, str] | None = None) -> Iterator[TextPair]:
    """Yield the pairs of all sources. Plain text files come in pairs: line n of one is the translation of line n.

    `keys` are the columns of a TSV file with a header, or the keys of JSON lines. Without them, a TSV file has two
    columns and no header, and JSON lines have the keys `source` and `target`. `gettext::lang=de` reads all message
    catalogs of that language on this machine, with the original messages as the source.
    """
    unpaired_path: Path | None = None
    for source in sources:
        if source.partition("::")[0] == "gettext":
            lang = source.partition("lang=")[2]
            if not lang:
                raise ConfigError(f"{source!r} does not name a language, as in gettext::lang=de")
            for _, path in find_catalogs(lang):
                yield from (TextPair(a, b, str(path)) for a, b in read_messages(path))
            continue
        path = Path(source)
        if not path.is_file():
            raise DataError(f"file {path} does not exist")
        format = _detect_format(path)
        if unpaired_path is not None and format != "lines":
            raise DataError(
                f"{unpaired_path} is plain text, but the next source, {path}, is not: give both sides as plain text"
            )
        if format == "lines":
            if unpaired_path is None:
                unpaired_path = path
                continue
            yield from _read_aligned_lines(unpaired_path, path)
            unpaired_path = None
        elif format == "tsv":
            yield from _read_tsv_pairs(path, keys)
        elif format == "jsonl":
            yield from _read_json_pairs(path, keys or ("source", "target"))
        else:
            translations = read_messages(path) if format == "mo" else read_po(path)
            yield from (TextPair(a, b, str(path)) for a, b in translations)
    if unpaired_path is not None:
        raise DataError(f"{unpaired_path} is a plain text file without a second file that holds its translations")


def _detect_format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _COMPRESSED_SUFFIXES]
    return _SUFFIX_FORMATS.get(suffixes[-1] if suffixes else "", "lines")


def _read_lines_strict(path: Path) -> Iterator[tuple[int, str]]:
    for numbered_line in read_lines(path, str(path)):
        if isinstance(numbered_line, DataError):
            raise numbered_line
        yield numbered_line


def _read_aligned_lines(source_path: Path, target_path: Path) -> Iterator[TextPair]:
    for number, (a, b) in enumerate(
        itertools.zip_longest(_read_lines_strict(source_path), _read_lines_strict(target_path)), 1
    ):
        if a is None or b is None:
            shorter_path, longer_path = (source_path, target_path) if a is None else (target_path, source_path)
            if (a or b or (0, ""))[1] == "":  # an empty line at the end
                continue
            raise DataError(
                f"{shorter_path} ends before line {number}, but {longer_path} does not: their lines must be aligned"
            )
        yield TextPair(a[1], b[1], f"{source_path} line {number}")


def _read_tsv_pairs(path: Path, keys: tuple[str, str] | None) -> Iterator[TextPair]:
    columns, width = (0, 1), 0
    for number, line in _read_lines_strict(path):
        if not line:
            continue
        cells = line.split("\t")
        if not width:
            width = len(cells)
            if keys is not None:
                for key in keys:
                    if key not in cells:
                        raise DataError(f"{path} line 1: no column {key!r}; {suggest(key, cells)}")
                columns = cells.index(keys[0]), cells.index(keys[1])
                continue
            if width != 2:
                raise DataError(
                    f"{path} line {number}: {width} columns, expected 2; set keys to choose two columns by name"
                )
        if len(cells) != width:
            raise DataError(f"{path} line {number}: {len(cells)} columns, but the first line has {width}")
        yield TextPair(cells[columns[0]], cells[columns[1]], f"{path} line {number}")


def _read_json_pairs(path: Path, keys: tuple[str, str]) -> Iterator[TextPair]:
    for number, line in _read_lines_strict(path):
        if not line.strip():
            continue
        location = f"{path} line {number}"
        row = parse_json(line, location)
        row = row.get("translation", row) if isinstance(row, dict) else row
        if not isinstance(row, dict):
            raise DataError(f"{location}: expected a JSON object, not {type(row).__name__}")
        for key in keys:
            if key not in row:
                raise DataError(f"{location}: no key {key!r}; {suggest(key, row)}")
            if not isinstance(row[key], str):
                raise DataError(f"{location}: {key!r} is {type(row[key]).__name__}, not a string")
        yield TextPair(row[keys[0]], row[keys[1]], location)
