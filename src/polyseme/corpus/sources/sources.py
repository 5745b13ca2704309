"""Where text comes from: files and folders of any format, standard input, and what lies on every machine.

A source is given as `PATH` or `PATH::lang=de,weight=2,key=title+body,split=blank,format=jsonl`, where PATH may
also be `-`, `python-docs` or `gettext`.
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

from polyseme.corpus.sources import gettext_catalogs as gettext_catalogues
from polyseme.corpus.sources import midi, python_docs
from polyseme.corpus.sources.lines import Document, Found, legible
from polyseme.corpus.sources.readers import ENDINGS, FORMATS, PYTHON_DOCS, SPLITS, Input, format_of
from polyseme.errors import UserError, nearest
from polyseme.io.files import PACKED, arrow, sha256, write_whole

STDIN = "-"
GETTEXT = "gettext"
HEAVIEST = 1000
_SHOWN = 100  # how many bad rows are kept with their message; all are counted


@dataclass(frozen=True)
class Origin:
    """One source as the user gave it. Empty `lang` and `format` are told by the source itself, or are defaults."""

    path: str  # a file, a folder, "-" (standard input), "python-docs" or "gettext"
    lang: str = ""
    weight: float = 1.0
    key: str = "text"  # of the text in rows; "a+b" joins two by a line break
    split: str = "file"  # what a document is in plain text: all of it, what is between blank lines, or a line
    format: str = ""


_OPTIONS = tuple(each.name for each in fields(Origin) if each.name != "path")


def parse_origin(given: str, defaults: Origin | None = None) -> Origin:
    """Read `PATH::name=value,…`; what is not given there is as in `defaults`. A path with `::` that exists wins."""
    defaults = defaults or Origin("")
    path, mark, options = given.rpartition("::")
    if not mark or os.path.exists(given):
        return _checked(replace(defaults, path=given))
    told: dict[str, Any] = {}
    for option in options.split(","):
        name, equals, value = (part.strip() for part in option.partition("="))
        if name not in _OPTIONS:
            raise UserError(f"{given}: a source has no option {name!r}; {nearest(name, _OPTIONS)}")
        if not equals or not value or name in told:
            raise UserError(f"{given}: {name} is given " + ("twice" if name in told else "without a value"))
        told[name] = value
    if "weight" in told:
        try:
            told["weight"] = float(told["weight"])
        except ValueError:
            raise UserError(f"{given}: weight is {told['weight']!r}, not a number") from None
    return _checked(replace(defaults, path=path, **told))


def _checked(origin: Origin) -> Origin:
    if not 0 < origin.weight <= HEAVIEST:
        raise UserError(f"{origin.path}: weight is {origin.weight}; it must be a number above 0, at most {HEAVIEST}")
    if origin.split not in SPLITS:
        raise UserError(f"split is {origin.split!r}: {nearest(origin.split, SPLITS)}")
    if origin.format and origin.format not in FORMATS:
        raise UserError(f"format is {origin.format!r}: {nearest(origin.format, FORMATS)}")
    return origin


@dataclass(frozen=True, order=True)
class Place:
    """The next item to read: a document, blank ones too, or an error."""

    input: int = 0
    item: int = 0


START = Place()


@dataclass(eq=False)
class Sources:
    """Documents in a fixed order. Iterating starts from the beginning, and counts what was passed over."""

    origins: list[Origin]
    inputs: list[Input]
    skip_bad: bool = False
    num_blank: int = 0
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)  # files in folders that are of no known kind, or empty
    spool: Any = None  # the temporary folder of standard input, which goes when this does

    def read(self, start: Place = START) -> Iterator[tuple[Place, Found]]:
        """Every item from a place on, with the place after it. Inputs before it are not opened."""
        for number in range(start.input, len(self.inputs)):
            passed = start.item if number == start.input else 0
            for item, found in enumerate(self.inputs[number].read(), 1):
                if item > passed:
                    yield Place(number, item), found

    def __iter__(self) -> Iterator[Document]:
        self.num_blank = self.num_bad = 0
        self.bad = []
        for _, found in self.read():
            if isinstance(found, UserError):
                if not self.skip_bad:
                    raise found
                self.num_bad += 1
                self.bad += [str(found)] * (len(self.bad) < _SHOWN)
            elif not found.text or found.text.isspace():
                self.num_blank += 1
            else:
                yield found

    def check_unchanged(self) -> None:
        """A `UserError` if a file is not as it was when this was first called."""
        for each, was in zip(self.inputs, self._stats):
            if _stat(each) != was:
                raise UserError(f"{each.path} has changed while it was read: begin again")

    @cached_property
    def _stats(self) -> list[tuple[int, int] | None]:
        return [_stat(each) for each in self.inputs]

    @cached_property
    def fingerprint(self) -> list[dict[str, Any]]:
        """What the documents depend on, file by file: enough to tell whether two runs read the same."""
        self.check_unchanged()
        found = []
        for each in self.inputs:
            facts: dict[str, Any] = {"path": legible(str(each.path)), "origin": each.origin, "format": each.format}
            if each.format == PYTHON_DOCS:
                facts["version"] = python_docs.version()
            else:
                facts |= {"bytes": each.file.stat().st_size, "sha256": sha256(each.file)}
            found.append(facts)
        return found

    @property
    def size(self) -> int | None:
        """Characters to read, roughly, from the sizes of the files; None when nothing tells."""
        if any(each.format == PYTHON_DOCS for each in self.inputs):
            return None
        packed = (*PACKED, ".parquet")
        sizes = ((each.file.stat().st_size, each.file.suffix.lower() in packed) for each in self.inputs)
        return sum(size * 3 if small else size for size, small in sizes)


def open_sources(
    given: Sequence[str | Path | Origin],
    key: str = "text",
    split: str = "file",
    skip_bad: bool = False,
    *,
    lang: str = "en",
    format: str = "",
    spool: Path | None = None,
    leave_out: Path | None = None,
) -> Sources:
    """Find the files, before anything is read. `key`, `split` and `format` are for sources that do not tell.

    `lang` is for those whose language nothing tells; it does not choose among the languages of `gettext`.
    Standard input is copied to `spool` (a temporary folder if None): it is read more than once. `leave_out` is a
    folder that is no source, though it may lie inside one; corpora inside a folder are none either.
    """
    defaults = _checked(Origin("", key=key, split=split, format=format))
    origins: list[Origin] = []
    for each in given:
        if isinstance(each, Origin):
            origins.append(_checked(each))
        elif isinstance(each, Path):
            origins.append(replace(defaults, path=str(each)))
        else:
            origins.append(parse_origin(each, defaults))
    if not origins:
        raise UserError("no source of text was given")
    if [origin.path for origin in origins].count(STDIN) > 1:
        raise UserError("standard input (-) is given more than once")
    sources = Sources(origins, [], skip_bad)
    for number, origin in enumerate(origins):
        if origin.path == STDIN and spool is None:
            sources.spool = tempfile.TemporaryDirectory(prefix="polyseme-")
            spool = Path(sources.spool.name)
        sources.inputs += _inputs(number, origin, lang, spool, leave_out, sources.passed_over)
    if any(each.format == "parquet" for each in sources.inputs):
        arrow("Parquet files")
    if any(each.format == "midi" for each in sources.inputs):
        midi.mido()
    if any(each.file.suffix.lower() == ".zst" for each in sources.inputs):
        arrow("files that end in .zst")
    return sources


def _inputs(
    number: int, origin: Origin, lang: str, spool: Path | None, leave_out: Path | None, passed_over: list[str]
) -> list[Input]:
    """The files of an origin, in reading order."""
    given = Input(number, origin.path, origin.lang or lang, origin.format or "text", origin.key, origin.split)
    path = Path(origin.path)
    if origin.path == PYTHON_DOCS:
        return [replace(given, format=PYTHON_DOCS)]
    if origin.path == GETTEXT:
        found = gettext_catalogues.catalogues(origin.lang)
        return [replace(given, path=path, lang=lang, format="mo") for lang, path in found]
    if origin.path == STDIN:
        assert spool is not None
        return [replace(given, copy=_spooled(spool))]
    if path.is_dir():
        files = _in_folder(path, origin.format, leave_out, passed_over)
    elif path.is_file():
        files = [path]
    else:
        if path.exists():
            raise UserError(f"{path} is neither a file nor a folder: pipe it in and read -")
        there = os.listdir(path.parent) if path.parent.is_dir() else []
        raise UserError(f"there is no {path}: {nearest(path.name, [*there, PYTHON_DOCS, GETTEXT])}")
    inputs = []
    for file in files:
        form = origin.format or format_of(file) or "text"
        told = origin.lang or (gettext_catalogues.language_of(file) if form == "mo" else "") or lang
        inputs.append(replace(given, path=file, lang=told, format=form))
    return inputs


def _stat(each: Input) -> tuple[int, int] | None:
    if each.format == PYTHON_DOCS:
        return None
    try:
        facts = each.file.stat()
    except OSError as error:
        raise UserError(f"cannot read {each.path}: {error.strerror}") from None
    return facts.st_size, facts.st_mtime_ns


def _in_folder(folder: Path, form: str, leave_out: Path | None, passed_over: list[str]) -> list[Path]:
    """Every file below whose name tells its format, or every one if the format is told, in the order of paths.

    Hidden ones are passed over, and so are empty ones and those of no known kind, which are noted.
    """
    found = []
    corpora = [path.parent for path in folder.rglob("shard-00000.tokens.npy")]
    corpora += [leave_out] if leave_out else []
    for path in folder.rglob("*"):
        inside = any(path.is_relative_to(each) for each in corpora)
        if inside or path.is_dir() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if (form or format_of(path)) and path.is_file() and path.stat().st_size:
            found.append(path)
        else:
            passed_over.append(str(path))
    if not found:
        known = f"{' '.join(ENDINGS)}, plain or with {' '.join(PACKED)}"
        raise UserError(f"{folder} has no text" + ("" if form else f" in files that end in {known}"))
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _spooled(folder: Path) -> Path:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise UserError("standard input (-) is not piped from anything")
    path = folder / "stdin"

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)

    write_whole(path, write)
    return path
