"""Text sources: files and folders of any format, standard input, and text installed on this machine.

A source is written as `PATH` or `PATH::lang=de,weight=2,key=title+body,split=blank,format=jsonl`. PATH may also be `-`
(standard input), `python-docs` (documentation of Python packages) or `gettext` (translated program messages).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polyseme.corpus.sources import gettext_catalogs, midi, python_docs
from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.corpus.sources.readers import FORMATS, PYTHON_DOCS, SPLITS, SUFFIX_FORMATS, SourceFile, detect_format
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.io.atomic import atomic_write, sha256
from polyseme.io.compression import COMPRESSED_SUFFIXES, require_pyarrow
from polyseme.io.lines import make_printable

STDIN = "-"
GETTEXT = "gettext"
MAX_WEIGHT = 1000
_MAX_REPORTED_ROWS = 100  # bad rows listed with their message; all are counted


@dataclass(frozen=True)
class CorpusSource:
    """One source as the user specified it. Empty `lang` and `format` are detected, or set to defaults."""

    path: str  # a file, a folder, "-" (standard input), "python-docs" or "gettext"
    lang: str = ""
    weight: float = 1.0
    key: str = "text"  # column or key of the text; "a+b" joins two with a line break
    split: str = "file"  # how to split plain text into documents: "file", "blank" (lines) or "line"
    format: str = ""


_OPTIONS = tuple(option.name for option in fields(CorpusSource) if option.name != "path")


def parse_source(text: str, defaults: CorpusSource | None = None) -> CorpusSource:
    """Parse `PATH::name=value,…`; other options come from `defaults`. An existing path that contains `::` is a path."""
    defaults = defaults or CorpusSource("")
    path, separator, options = text.rpartition("::")
    if not separator or os.path.exists(text):
        return _check_source(replace(defaults, path=text))
    settings: dict[str, Any] = {}
    for option in options.split(","):
        name, equals, value = (part.strip() for part in option.partition("="))
        if name not in _OPTIONS:
            raise ConfigError(f"{text}: a source has no option {name!r}; {suggest(name, _OPTIONS)}")
        if not equals or not value or name in settings:
            raise ConfigError(f"{text}: {name} is set " + ("twice" if name in settings else "without a value"))
        settings[name] = value
    if "weight" in settings:
        try:
            settings["weight"] = float(settings["weight"])
        except ValueError:
            raise ConfigError(f"{text}: weight is {settings['weight']!r}, not a number") from None
    return _check_source(replace(defaults, path=path, **settings))


def _check_source(source: CorpusSource) -> CorpusSource:
    if not 0 < source.weight <= MAX_WEIGHT:
        raise ConfigError(
            f"{source.path}: weight is {source.weight}; it must be greater than 0 and at most {MAX_WEIGHT}"
        )
    if source.split not in SPLITS:
        raise ConfigError(f"split is {source.split!r}: {suggest(source.split, SPLITS)}")
    if source.format and source.format not in FORMATS:
        raise ConfigError(f"format is {source.format!r}: {suggest(source.format, FORMATS)}")
    return source


@dataclass(frozen=True, order=True)
class ReadPosition:
    """Index of the next item to read. An item is a document (also a blank one) or an error."""

    file_index: int = 0
    item_index: int = 0


START = ReadPosition()


@dataclass(eq=False)
class SourceReader:
    """The documents of all sources in a fixed order. Iterating starts at the beginning and counts skipped items."""

    sources: list[CorpusSource]
    files: list[SourceFile]
    skip_bad: bool = False
    num_blank: int = 0
    num_bad: int = 0
    bad_row_messages: list[str] = field(default_factory=list)
    skipped_files: list[str] = field(default_factory=list)  # empty or of unknown format
    spool_dir: Any = None  # TemporaryDirectory with the copy of standard input

    def read(self, start: ReadPosition = START) -> Iterator[tuple[ReadPosition, ReadResult]]:
        """Yield every item from `start` on, with the position after it. Files before `start` are not opened."""
        for file_index in range(start.file_index, len(self.files)):
            num_skipped = start.item_index if file_index == start.file_index else 0
            for item_index, document in enumerate(self.files[file_index].read(), 1):
                if item_index > num_skipped:
                    yield ReadPosition(file_index, item_index), document

    def __iter__(self) -> Iterator[Document]:
        self.num_blank = self.num_bad = 0
        self.bad_row_messages = []
        for _, document in self.read():
            if isinstance(document, DataError):
                if not self.skip_bad:
                    raise document
                self.num_bad += 1
                self.bad_row_messages += [str(document)] * (len(self.bad_row_messages) < _MAX_REPORTED_ROWS)
            elif not document.text or document.text.isspace():
                self.num_blank += 1
            else:
                yield document

    def check_unchanged(self) -> None:
        """Raise a `DataError` if a file has changed since the first call."""
        for source_file, stat in zip(self.files, self._stats):
            if _stat_file(source_file) != stat:
                raise DataError(f"{source_file.path} changed while it was read: start again")

    @cached_property
    def _stats(self) -> list[tuple[int, int] | None]:
        return [_stat_file(source_file) for source_file in self.files]

    @cached_property
    def file_facts(self) -> list[dict[str, Any]]:
        """Path, format and hash of each file. Two runs with equal facts read the same documents."""
        self.check_unchanged()
        rows = []
        for source_file in self.files:
            facts: dict[str, Any] = {
                "path": make_printable(str(source_file.path)),
                "source_index": source_file.source_index,
                "format": source_file.format,
            }
            if source_file.format == PYTHON_DOCS:
                facts["version"] = python_docs.describe_version()
            else:
                facts |= {"bytes": source_file.local_path.stat().st_size, "sha256": sha256(source_file.local_path)}
            rows.append(facts)
        return rows

    @property
    def estimated_characters(self) -> int | None:
        """Rough number of characters to read, from the file sizes; None if unknown."""
        if any(source_file.format == PYTHON_DOCS for source_file in self.files):
            return None
        compressed_suffixes = (*COMPRESSED_SUFFIXES, ".parquet")
        sizes = (
            (source_file.local_path.stat().st_size, source_file.local_path.suffix.lower() in compressed_suffixes)
            for source_file in self.files
        )
        return sum(size * 3 if is_compressed else size for size, is_compressed in sizes)


def open_sources(
    paths: Sequence[str | Path | CorpusSource],
    key: str = "text",
    split: str = "file",
    skip_bad: bool = False,
    *,
    lang: str = "en",
    format: str = "",
    spool_dir: Path | None = None,
    exclude_dir: Path | None = None,
) -> SourceReader:
    """Find the files of all sources without reading them.

    `key`, `split`, `format` and `lang` are the defaults for sources that do not set them; `lang` does not select
    among the languages of `gettext`. Standard input is copied to `spool_dir` (by default a temporary folder), because
    it is read more than once. `exclude_dir` is skipped inside source folders, as are corpora.
    """
    defaults = _check_source(CorpusSource("", key=key, split=split, format=format))
    parsed_sources: list[CorpusSource] = []
    for source in paths:
        if isinstance(source, CorpusSource):
            parsed_sources.append(_check_source(source))
        elif isinstance(source, Path):
            parsed_sources.append(replace(defaults, path=str(source)))
        else:
            parsed_sources.append(parse_source(source, defaults))
    if not parsed_sources:
        raise ConfigError("no source of text: give at least one")
    if [parsed_source.path for parsed_source in parsed_sources].count(STDIN) > 1:
        raise ConfigError("standard input (-) can be a source only once")
    reader = SourceReader(parsed_sources, [], skip_bad)
    for number, parsed_source in enumerate(parsed_sources):
        if parsed_source.path == STDIN and spool_dir is None:
            reader.spool_dir = tempfile.TemporaryDirectory(prefix="polyseme-")
            spool_dir = Path(reader.spool_dir.name)
        reader.files += _list_files(number, parsed_source, lang, spool_dir, exclude_dir, reader.skipped_files)
    if any(source.format == "parquet" for source in reader.files):
        require_pyarrow("Parquet files")
    if any(source.format == "midi" for source in reader.files):
        midi.require_mido()
    if any(source.local_path.suffix.lower() == ".zst" for source in reader.files):
        require_pyarrow("files that end in .zst")
    return reader


def _list_files(
    source_index: int,
    source: CorpusSource,
    lang: str,
    spool_dir: Path | None,
    exclude_dir: Path | None,
    skipped_files: list[str],
) -> list[SourceFile]:
    """Return the files of a source, in reading order."""
    template = SourceFile(
        source_index, source.path, source.lang or lang, source.format or "text", source.key, source.split
    )
    path = Path(source.path)
    if source.path == PYTHON_DOCS:
        return [replace(template, format=PYTHON_DOCS)]
    if source.path == GETTEXT:
        catalogs = gettext_catalogs.find_catalogs(source.lang)
        return [replace(template, path=path, lang=lang, format="mo") for lang, path in catalogs]
    if source.path == STDIN:
        assert spool_dir is not None
        return [replace(template, spooled_path=_spool_stdin(spool_dir))]
    if path.is_dir():
        files = _find_files(path, source.format, exclude_dir, skipped_files)
    elif path.is_file():
        files = [path]
    else:
        if path.exists():
            raise DataError(f"{path} is neither a file nor a folder: pipe it into standard input and read -")
        siblings = os.listdir(path.parent) if path.parent.is_dir() else []
        raise DataError(f"{path} does not exist: {suggest(path.name, [*siblings, PYTHON_DOCS, GETTEXT])}")
    source_files = []
    for file in files:
        format = source.format or detect_format(file) or "text"
        file_lang = source.lang or (gettext_catalogs.language_from_path(file) if format == "mo" else "") or lang
        source_files.append(replace(template, path=file, lang=file_lang, format=format))
    return source_files


def _stat_file(source_file: SourceFile) -> tuple[int, int] | None:
    if source_file.format == PYTHON_DOCS:
        return None
    try:
        stat = source_file.local_path.stat()
    except OSError as error:
        raise DataError(f"cannot read {source_file.path}: {error.strerror}") from None
    return stat.st_size, stat.st_mtime_ns


def _find_files(folder: Path, format: str, exclude_dir: Path | None, skipped_files: list[str]) -> list[Path]:
    """Return the files below a folder whose format is known by their name, or all if `format` is set, sorted by path.

    Hidden files are skipped. Empty files and files of unknown format are added to `skipped_files`.
    """
    paths = []
    corpora = [path.parent for path in folder.rglob("shard-00000.tokens.npy")]
    corpora += [exclude_dir] if exclude_dir else []
    for path in folder.rglob("*"):
        is_excluded = any(path.is_relative_to(corpus) for corpus in corpora)
        if is_excluded or path.is_dir() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if (format or detect_format(path)) and path.is_file() and path.stat().st_size:
            paths.append(path)
        else:
            skipped_files.append(str(path))
    if not paths:
        known_suffixes = f"{' '.join(SUFFIX_FORMATS)}, plain or with {' '.join(COMPRESSED_SUFFIXES)}"
        raise DataError(f"{folder} contains no text" + ("" if format else f" in files that end in {known_suffixes}"))
    return sorted(paths, key=lambda path: path.relative_to(folder).parts)


def _spool_stdin(folder: Path) -> Path:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise DataError("standard input (-) is not piped from anything")
    path = folder / "stdin"

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)

    atomic_write(path, write)
    return path
