"""Text sources: files and folders of any format, standard input, and text installed on this machine.

A source is written as `PATH` or `PATH::lang=de,weight=2,text=title+body,split=blank,format=jsonl`. PATH may also be `-`
(standard input), `python-docs` (documentation of Python packages) or `gettext` (translated program messages).
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polyseme.corpus.sources import gettext_catalogs, midi, python_docs
from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.corpus.sources.readers import (
    COLUMN_FORMATS,
    FORMATS,
    PYTHON_DOCS,
    SPLITS,
    SUFFIX_FORMATS,
    SourceFile,
    detect_format,
)
from polyseme.errors import ConfigError, DataError, require_package, suggest
from polyseme.io.atomic import sha256
from polyseme.io.binary_files import describe_skipped, require_text
from polyseme.io.compression import COMPRESSED_SUFFIXES
from polyseme.io.lines import make_printable
from polyseme.io.specs import STDIN, check_conflicts, split_spec, spool_stdin

logger = logging.getLogger(__name__)

GETTEXT = "gettext"
MAX_WEIGHT = 1000
MAX_REPORTED_ROWS = 100  # bad rows listed with their message; all are counted


@dataclass(frozen=True)
class CorpusSource:
    """One source as the user specified it. Empty `lang` and `format` are detected, or set to defaults."""

    path: str  # a file, a folder, "-" (standard input), "python-docs" or "gettext"
    lang: str = ""
    weight: float = 1.0
    text: str = "text"  # column or key of the text; "a+b" joins two with a line break
    split: str = "file"  # how to split plain text into documents: "file", "blank" (lines) or "line"
    format: str = ""


_OPTIONS = tuple(option.name for option in fields(CorpusSource) if option.name != "path")


def parse_source(text: str, defaults: CorpusSource | None = None) -> CorpusSource:
    """Parse `PATH::name=value,…`; other options come from `defaults`, except that a text column of these must agree."""
    defaults = defaults or CorpusSource("")
    path, options = split_spec(text, _OPTIONS)
    settings: dict[str, Any] = dict(options)
    check_conflicts(text, options, {"text_column": "" if defaults.text == CorpusSource.text else defaults.text})
    if "weight" in settings:
        try:
            settings["weight"] = float(settings["weight"])
        except ValueError:
            raise ConfigError(f"{text}: weight is {settings['weight']!r}, not a number") from None
    return _check_source(replace(defaults, path=path, **settings))


def _check_source(source: CorpusSource) -> CorpusSource:
    if not 0 < source.weight <= MAX_WEIGHT:
        limits = f"it must be greater than 0 and at most {MAX_WEIGHT}"
        raise ConfigError(f"{source.path}: weight is {source.weight}; {limits}")
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


@dataclass
class SkippedInput:
    """Counts of skipped input: blank documents, documents without a token, and rows that could not be read."""

    num_blank: int = 0
    num_empty: int = 0
    empty_locations: list[str] = field(default_factory=list)
    num_bad: int = 0
    bad_row_messages: list[str] = field(default_factory=list)

    def add(self, other: "SkippedInput") -> None:
        """Add the counts of `other`."""
        for name, value in vars(other).items():
            total = getattr(self, name) + value
            setattr(self, name, total[:MAX_REPORTED_ROWS] if isinstance(total, list) else total)

    def check(self, document: ReadResult, skip_bad: bool) -> Document | None:
        """Return a document that has text, or count what has none. An error is raised unless `skip_bad`."""
        if isinstance(document, DataError):
            if not skip_bad:
                raise document
            self.add(SkippedInput(num_bad=1, bad_row_messages=[str(document)]))
            return None
        if not document.text or document.text.isspace():
            self.num_blank += 1
            return None
        return document


@dataclass(eq=False)
class SourceReader:
    """The documents of all sources in a fixed order. Iterating starts at the beginning and counts skipped items."""

    sources: list[CorpusSource]
    files: list[SourceFile]
    skip_bad: bool = False
    skipped: SkippedInput = field(default_factory=SkippedInput)
    skipped_files: list[str] = field(default_factory=list)  # empty, of unknown format, or unreadable folders
    spool_dir: Any = None  # TemporaryDirectory with the copy of standard input

    def read(self, start: ReadPosition = START) -> Iterator[tuple[ReadPosition, ReadResult]]:
        """Yield every item from `start` on, with the position after it. Files before `start` are not opened."""
        for file_index in range(start.file_index, len(self.files)):
            num_skipped = start.item_index if file_index == start.file_index else 0
            for item_index, document in enumerate(self.files[file_index].read(), 1):
                if item_index > num_skipped:
                    yield ReadPosition(file_index, item_index), document

    def documents(self) -> Iterator[tuple[SourceFile, Document]]:
        """Yield every document that has text, with its file."""
        self.skipped = SkippedInput()
        for position, entry in self.read():
            if document := self.skipped.check(entry, self.skip_bad):
                yield self.files[position.file_index], document

    def __iter__(self) -> Iterator[Document]:
        return (document for _, document in self.documents())

    def log_skipped(self) -> None:
        """Log how many rows and files were skipped, with an example of each."""
        if num_bad := self.skipped.num_bad:
            logger.warning(f"{num_bad:,} bad rows were skipped, the first: {self.skipped.bad_row_messages[0]}")
        if self.skipped_files:
            logger.warning(describe_skipped(self.skipped_files))

    def check_unchanged(self) -> None:
        """Raise a `DataError` if a file has changed since the first call."""
        for file, stat in zip(self.files, self._stats):
            if _stat_file(file) != stat:
                raise DataError(f"{file.path} changed while it was read: start again")

    @cached_property
    def _stats(self) -> list[tuple[int, int] | None]:
        return [_stat_file(file) for file in self.files]

    @cached_property
    def file_facts(self) -> list[dict[str, Any]]:
        """Path, format and hash of each file. Two runs with equal facts read the same documents."""
        self.check_unchanged()
        rows = []
        for file in self.files:
            facts: dict[str, Any] = {"path": make_printable(str(file.path)), "source_index": file.source_index}
            facts["format"] = file.format
            if file.format == PYTHON_DOCS:
                facts["version"] = python_docs.describe_version()
            else:
                facts |= {"bytes": file.local_path.stat().st_size, "sha256": sha256(file.local_path)}
            rows.append(facts)
        return rows

    @property
    def estimated_characters(self) -> int | None:
        """Rough number of characters to read, from the file sizes; None if unknown."""
        if any(file.format == PYTHON_DOCS for file in self.files):
            return None
        paths = [file.local_path for file in self.files]
        compressed = (*COMPRESSED_SUFFIXES, ".parquet")
        return sum(path.stat().st_size * (3 if path.suffix.lower() in compressed else 1) for path in paths)


def open_sources(
    paths: Sequence[str | Path | CorpusSource],
    text_column: str = "",
    split: str = "",
    skip_bad: bool = False,
    *,
    lang: str = "en",
    format: str = "",
    allow_large: bool = False,
    spool_dir: Path | None = None,
    exclude_dir: Path | None = None,
    default_split: str = "file",
) -> SourceReader:
    """Find the files of all sources without reading them.

    `text_column`, `split`, `format` and `lang` are the defaults for sources that do not set them; `lang` does not
    select among the languages of `gettext`. `default_split` is how plain text is split if no `split` is chosen; unlike
    `split`, it may have no effect. A compressed file that expands more than a thousandfold is an error unless
    `allow_large`. Standard input is copied to `spool_dir` (by default a temporary folder), because
    it is read more than once. `exclude_dir` is skipped inside source folders, as are corpora.
    """
    split = split or default_split
    defaults = _check_source(CorpusSource("", text=text_column or "text", split=split, format=format))
    sources: list[CorpusSource] = []
    for source in paths:
        if isinstance(source, CorpusSource):
            sources.append(_check_source(source))
        else:
            sources.append(parse_source(str(source), defaults))
    if not sources:
        raise ConfigError("no source of text: give at least one")
    if [source.path for source in sources].count(STDIN) > 1:
        raise ConfigError("standard input (-) can be a source only once")
    reader = SourceReader(sources, [], skip_bad)
    for index, source in enumerate(sources):
        file = SourceFile(index, source.path, source.lang or lang, source.format or "text", source.text, source.split)
        file = replace(file, allow_large=allow_large)
        if source.path == STDIN:
            if spool_dir is None:
                reader.spool_dir = tempfile.TemporaryDirectory(prefix="polyseme-")
                spool_dir = Path(reader.spool_dir.name)
            reader.files.append(replace(file, spooled_path=spool_stdin(spool_dir)))
        else:
            reader.files += _list_files(file, source, exclude_dir, reader.skipped_files)
        if not isinstance(paths[index], CorpusSource):  # the options of an object may be those of a manifest
            _check_effects(source, defaults, [file for file in reader.files if file.source_index == index])
    formats = {file.format for file in reader.files}
    if text_column and formats.isdisjoint(COLUMN_FORMATS):
        raise ConfigError(f"`text_column` is {text_column!r}, but no source has columns: leave it out")
    if split != default_split and "text" not in formats:
        raise ConfigError(f"`split` is {split!r}, but no source is plain text: leave it out")
    if format and format not in formats:
        raise ConfigError(f"`format` is {format!r}, but it applies to no source: leave it out")
    if "parquet" in formats:
        require_package("pyarrow", "reading Parquet files")
    if "midi" in formats:
        midi.require_mido()
    if any(file.local_path.suffix.lower() == ".zst" for file in reader.files):
        require_package("pyarrow", "reading files that end in .zst")
    return reader


def _check_effects(source: CorpusSource, defaults: CorpusSource, files: Sequence[SourceFile]) -> None:
    """Raise an error if an option of a source applies to none of its files."""
    uses = {"text": COLUMN_FORMATS, "split": ("text",), "format": (source.format,)}
    for name, formats in uses.items():
        value = getattr(source, name)
        if value != getattr(defaults, name) and not any(file.format in formats for file in files):
            shown = ", ".join(sorted({file.format for file in files}))
            raise ConfigError(f"{source.path}: {name}={value} has no effect on its format, {shown}: leave it out")


def _list_files(
    template: SourceFile, source: CorpusSource, exclude_dir: Path | None, skipped_files: list[str]
) -> list[SourceFile]:
    """Return the files of a source other than standard input, in reading order."""
    path = Path(source.path)
    if source.path == PYTHON_DOCS:
        return [replace(template, format=PYTHON_DOCS)]
    if source.path == GETTEXT:
        catalogs = gettext_catalogs.find_catalogs(source.lang)
        return [replace(template, path=path, lang=lang, format="mo") for lang, path in catalogs]
    if path.is_dir():
        files = _find_files(path, source.format, exclude_dir, skipped_files)
    elif path.is_file():
        files = [path]
    else:
        if path.is_symlink() and not path.exists():
            raise DataError(f"{path} is a link to {os.readlink(path)}, which does not exist")
        if path.exists():
            raise DataError(f"{path} is neither a file nor a folder: pipe it into standard input and read -")
        siblings = os.listdir(path.parent) if path.parent.is_dir() else []
        raise DataError(f"{path} does not exist: {suggest(path.name, [*siblings, PYTHON_DOCS, GETTEXT])}")
    source_files = []
    for file in files:
        format = source.format or detect_format(file) or "text"
        require_text(file, format)
        if not source.format and file.suffix.lower() in (".html", ".htm"):
            raise DataError(f"{file} is an HTML page, whose tags would be read: convert it to text, or set format=text")
        catalog_lang = gettext_catalogs.language_from_path(file) if format == "mo" else ""
        lang = source.lang or catalog_lang or template.lang
        source_files.append(replace(template, path=file, lang=lang, format=format))
    return source_files


def _stat_file(file: SourceFile) -> tuple[int, int] | None:
    if file.format == PYTHON_DOCS:
        return None
    try:
        stat = file.local_path.stat()
    except OSError as error:
        raise DataError(f"cannot read {file.path}: {error.strerror}") from None
    return stat.st_size, stat.st_mtime_ns


def _find_files(folder: Path, format: str, exclude_dir: Path | None, skipped_files: list[str]) -> list[Path]:
    """Return the files below a folder in a known format, or all if `format` is set; add others to `skipped_files`."""
    paths = []
    for path in _walk_folder(folder, exclude_dir, skipped_files):
        if (format or detect_format(path)) and path.is_file() and path.stat().st_size:
            paths.append(path)
        else:
            skipped_files.append(str(path))
    if not paths:
        known_suffixes = f"{' '.join(SUFFIX_FORMATS)}, plain or with {' '.join(COMPRESSED_SUFFIXES)}"
        raise DataError(f"{folder} contains no text" + ("" if format else f" in files that end in {known_suffixes}"))
    return sorted(paths, key=lambda path: path.relative_to(folder).parts)


def _walk_folder(folder: Path, exclude_dir: Path | None, skipped_files: list[str]) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden, except those of corpora and of `exclude_dir`.

    Links to folders are followed last, and no folder is read twice, so that a link may lead to a folder around it.
    Folders that cannot be read, such as `lost+found`, are added to `skipped_files`.
    """

    def skip(error: OSError) -> None:
        skipped_files.append(f"{error.filename} ({error.strerror})")

    read_folders = {exclude_dir.resolve()} if exclude_dir else set[Path]()
    starts = [folder]
    for start in starts:
        for directory, folders, names in os.walk(start, onerror=skip):
            path = Path(directory)
            is_corpus = any((path / name).exists() for name in ("shard-00000.tokens.npy", ".work/plan.json"))
            if is_corpus or (resolved := path.resolve()) in read_folders:
                folders.clear()
                continue
            read_folders.add(resolved)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            starts += [path / name for name in folders if (path / name).is_symlink()]
            yield from (path / name for name in names if not name.startswith("."))
