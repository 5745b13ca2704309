"""Reader of gettext catalogs: translated program messages in many languages, installed on most machines as `.mo` files.

The format is described in the GNU gettext manual, "The Format of GNU MO Files".
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.errors import DataError, suggest
from polyseme.io.compression import CorruptFileError, read_decompressed
from polyseme.io.lines import MAX_ROW_BYTES, bad_input
from polyseme.text.pipelines import replace_surrogates

_CHARSET = re.compile(rb"charset=([\w.:-]+)")


def find_catalogs(lang: str = "") -> list[tuple[str, Path]]:
    """Return languages and paths of the catalogs on this machine, sorted; only those of `lang` (de, pt_BR) if set."""
    catalog_paths: dict[tuple[str, str], Path] = {}
    folders = _catalog_folders()
    for folder in folders:
        for path in folder.glob("*/LC_MESSAGES/*.mo"):
            if path.is_file() and path.stat().st_size:
                catalog_paths.setdefault((path.parts[-3], path.name), path)
    if not catalog_paths:
        raise DataError(f"there are no gettext catalogs in {', '.join(map(str, folders))}")
    locale_name = lang.replace("-", "_")
    catalogs = [
        (parse_language(name[0]), path)
        for name, path in sorted(catalog_paths.items())
        if locale_name in ("", *_locale_names(name[0]))
    ]
    if not catalogs:
        available = {name for locale, _ in catalog_paths for name in _locale_names(locale)}
        raise DataError(f"there is no gettext catalog for {lang!r}: {suggest(locale_name, available)}")
    return catalogs


def _catalog_folders() -> list[Path]:
    """Return the folders that may contain catalogs, those of TEXTDOMAINDIR first."""
    data_dirs = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    requested = [folder for folder in os.environ.get("TEXTDOMAINDIR", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix, "share"), Path(sys.base_prefix, "share"), *map(Path, data_dirs.split(os.pathsep))]
    return list(dict.fromkeys([*map(Path, requested), *(prefix / "locale" for prefix in prefixes)]))


def parse_language(locale: str) -> str:
    """Return the language of a locale: de for de_AT, sr for sr@latin."""
    return re.split(r"[_@.]", locale, maxsplit=1)[0]


def _locale_names(locale: str) -> tuple[str, str]:
    return locale, parse_language(locale)


def language_from_path(path: Path) -> str:
    """Return the language of a catalog in `<locale>/LC_MESSAGES/`; empty for other folders."""
    return parse_language(path.parts[-3]) if len(path.parts) > 2 and path.parts[-2] == "LC_MESSAGES" else ""


def read_messages(path: Path) -> list[tuple[str, str]]:
    """Return messages with their translations. The first plural form translates the singular, the others the plural."""
    pairs = []
    for entry in _read_entries(path, str(path)):
        if isinstance(entry, DataError):
            raise entry
        pairs.append(entry)
    return pairs


def read_translations(path: Path, name: str) -> Iterator[ReadResult]:
    """Read the translations of a catalog as one document: one per line, multi-line ones as paragraphs."""
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
    """Yield messages with their translations, and an error for each that cannot be read."""
    content = bytearray()
    try:
        for block in read_decompressed(path):
            content += block
            if len(content) > MAX_ROW_BYTES:
                yield bad_input(f"{name}: longer than {MAX_ROW_BYTES >> 20} MB")
                return
    except CorruptFileError:
        yield bad_input(f"{name} is truncated or damaged: cannot decompress it")
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
            ids = original.decode(charset).rpartition("\x04")[2].split("\0")  # a context precedes \x04
            forms = translation.decode(charset).split("\0")
        except LookupError:
            yield bad_input(f"{name}: unknown encoding {charset!r}")
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
    """Return the pairs that the two tables of a catalog point at, and a description of the first error."""
    if not content:
        return [], "is empty"
    byte_order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(content[:4], "")
    if not byte_order:
        return [], "is not a gettext catalog"
    pairs: list[tuple[bytes, bytes]] = []
    total_length = 0
    try:
        revision, count, *tables = struct.unpack_from(f"{byte_order}4I", content, 4)
        if revision >> 16 > 1:
            return [], f"has the unknown catalog revision {revision >> 16}"
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
        return pairs, f"is truncated or damaged: cannot read it beyond message {len(pairs)}"
    return pairs, ""
