"""Text in many languages that lies on most machines: the messages of programs, translated, in `.mo` files.

The format is that of the GNU gettext manual, "The Format of GNU MO Files".
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from polyseme.corpus.sources.lines import MAX_ROW_BYTES, Document, ReadResult, bad_input, replace_surrogates
from polyseme.errors import DataError, suggest
from polyseme.io.compression import CorruptFileError, read_decompressed

_CHARSET = re.compile(rb"charset=([\w.:-]+)")


def find_catalogs(lang: str = "") -> list[tuple[str, Path]]:
    """The catalogues on this machine and their languages, by name; only those of `lang` (de, pt_BR) if told."""
    catalog_paths: dict[tuple[str, str], Path] = {}
    folders = _catalog_folders()
    for folder in folders:
        for path in folder.glob("*/LC_MESSAGES/*.mo"):
            if path.is_file() and path.stat().st_size:
                catalog_paths.setdefault((path.parts[-3], path.name), path)
    if not catalog_paths:
        raise DataError(f"there is no catalog of gettext in {', '.join(map(str, folders))}")
    locale_name = lang.replace("-", "_")
    catalogs = [
        (parse_language(name[0]), path)
        for name, path in sorted(catalog_paths.items())
        if locale_name in ("", *_locale_names(name[0]))
    ]
    if not catalogs:
        available = {name for locale, _ in catalog_paths for name in _locale_names(locale)}
        raise DataError(f"gettext has no catalog in {lang!r}: {suggest(locale_name, available)}")
    return catalogs


def _catalog_folders() -> list[Path]:
    """Where catalogues lie, those asked for first."""
    data_dirs = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    requested = [folder for folder in os.environ.get("TEXTDOMAINDIR", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix, "share"), Path(sys.base_prefix, "share"), *map(Path, data_dirs.split(os.pathsep))]
    return list(dict.fromkeys([*map(Path, requested), *(prefix / "locale" for prefix in prefixes)]))


def parse_language(locale: str) -> str:
    """de for de_AT, sr for sr@latin."""
    return re.split(r"[_@.]", locale, maxsplit=1)[0]


def _locale_names(locale: str) -> tuple[str, str]:
    return locale, parse_language(locale)


def language_from_path(path: Path) -> str:
    """The language of a catalogue by the folder it lies in; empty if that does not tell."""
    return parse_language(path.parts[-3]) if len(path.parts) > 2 and path.parts[-2] == "LC_MESSAGES" else ""


def read_messages(path: Path) -> list[tuple[str, str]]:
    """Each message and its translation. Of plural forms the first belongs to the singular, the others do not."""
    pairs = []
    for entry in _read_entries(path, str(path)):
        if isinstance(entry, DataError):
            raise entry
        pairs.append(entry)
    return pairs


def read_translations(path: Path, name: str) -> Iterator[ReadResult]:
    """The translations of a catalogue as one document: one a line, and those of several lines as paragraphs."""
    parts: list[str] = []
    previous_is_paragraph = False
    for entry in _read_entries(path, name):
        if isinstance(entry, DataError):
            yield entry
        elif message := entry[1].strip():
            is_paragraph = "\n" in message
            if parts:
                parts.append("\n\n" if is_paragraph or previous_is_paragraph else "\n")
            parts.append(message)
            previous_is_paragraph = is_paragraph
    if parts:
        yield Document("".join(parts), name)


def _read_entries(path: Path, name: str) -> Iterator[tuple[str, str] | DataError]:
    """Messages and translations as `read_messages` gives them; an error for each that cannot be read."""
    content = bytearray()
    try:
        for block in read_decompressed(path):
            content += block
            if len(content) > MAX_ROW_BYTES:
                yield bad_input(f"{name}: longer than {MAX_ROW_BYTES >> 20} MB")
                return
    except CorruptFileError:
        yield bad_input(f"{name} is cut off or damaged: it cannot be unpacked")
        return
    except DataError as error:
        yield error
        return
    pairs, error_text = _parse_mo(bytes(content))
    charset_match = next((_CHARSET.search(translation) for original, translation in pairs if not original), None)
    charset = charset_match[1].decode() if charset_match else "utf-8"
    for number, (original, translation) in enumerate(pairs, 1):
        if not original:
            continue
        try:
            ids = original.decode(charset).rpartition("\x04")[2].split("\0")  # before \x04 stands a context
            forms = translation.decode(charset).split("\0")
        except LookupError:
            yield bad_input(f"{name}: there is no encoding {charset!r}")
            return
        except (UnicodeError, ValueError):
            yield bad_input(f"{name} message {number}: not {charset} text")
            continue
        for form_index, form in enumerate(forms):
            if form:
                yield replace_surrogates(ids[min(form_index, len(ids) - 1)]), replace_surrogates(form)
    if error_text:
        yield bad_input(f"{name} {error_text}")


def _parse_mo(content: bytes) -> tuple[list[tuple[bytes, bytes]], str]:
    """What the two tables of a catalogue point at, and what is wrong with the rest."""
    if not content:
        return [], "is empty"
    byte_order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(content[:4], "")
    if not byte_order:
        return [], "is no catalog of gettext"
    pairs: list[tuple[bytes, bytes]] = []
    total_length = 0
    try:
        revision, count, *tables = struct.unpack_from(f"{byte_order}4I", content, 4)
        if revision >> 16 > 1:
            return [], f"is a catalog of the unknown revision {revision >> 16}"
        for index in range(count):
            pair = []
            for table in tables:
                length, offset = struct.unpack_from(f"{byte_order}2I", content, table + 8 * index)
                total_length += length
                if offset + length > len(content) or total_length > 4 * len(content):
                    raise struct.error
                pair.append(content[offset : offset + length])
            pairs.append((pair[0], pair[1]))
    except struct.error:
        return pairs, f"is cut off or damaged: it cannot be read beyond message {len(pairs)}"
    return pairs, ""
