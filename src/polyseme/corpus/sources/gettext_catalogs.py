"""Readers of gettext catalogs (`.mo`, `.po`): translated program messages, installed on most machines."""

import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.errors import DataError, suggest
from polyseme.io.lines import bad_input, raise_errors, read_lines, read_small_file, replace_surrogates

_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*)?"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}))+)|\\(.)")  # bytes of text in UTF-8, or a character
_ESCAPED_CHARS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


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
    catalogs = [(locale, parse_language(locale), path) for (locale, _), path in sorted(catalog_paths.items())]
    selected = [(name, path) for locale, name, path in catalogs if locale_name in ("", locale, name)]
    if not selected:
        available = {name for catalog in catalogs for name in catalog[:2]}
        raise DataError(f"there is no gettext catalog for {lang!r}: {suggest(locale_name, available)}")
    return selected


def _catalog_folders() -> list[Path]:
    """Return the folders that may contain catalogs, those of TEXTDOMAINDIR first."""
    data_dirs = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    requested = [folder for folder in os.environ.get("TEXTDOMAINDIR", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix, "share"), Path(sys.base_prefix, "share"), *map(Path, data_dirs.split(os.pathsep))]
    return list(dict.fromkeys([*map(Path, requested), *(prefix / "locale" for prefix in prefixes)]))


def parse_language(locale: str) -> str:
    """Return the language of a locale: de for de_AT, sr for sr@latin."""
    return re.split(r"[_@.]", locale, maxsplit=1)[0]


def language_from_path(path: Path) -> str:
    """Return the language of a catalog in `<locale>/LC_MESSAGES/`; empty for other folders."""
    return parse_language(path.parts[-3]) if len(path.parts) > 2 and path.parts[-2] == "LC_MESSAGES" else ""


def read_messages(path: Path) -> list[tuple[str, str]]:
    """Return messages with their translations. The first plural form translates the singular, the others the plural."""
    return list(raise_errors(_read_entries(path, str(path))))


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
    try:
        content = read_small_file(path, name)
    except DataError as error:
        yield error
        return
    pairs, error_text = _parse_mo(content)
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


def read_po(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the translated messages of a `.po` file, except fuzzy ones. polib would hide errors (decision 032)."""
    entry: dict[str, str] = {}
    field, is_fuzzy = "", False
    for number, line in raise_errors(read_lines(path, str(path))):
        line = line.strip()
        match, is_comment = _LINE.fullmatch(line), not line or line.startswith("#")
        starts_entry = is_comment or (match and match[1] in ("msgid", "msgctxt"))
        if starts_entry and ("msgstr" in entry or "msgstr[0]" in entry):
            yield from _entry_pairs(entry, is_fuzzy)
            entry, is_fuzzy = {}, False
        if is_comment:
            is_fuzzy |= line.startswith("#,") and "fuzzy" in line
            is_fuzzy &= not line.startswith("#~")  # an obsolete entry, which ends here
            continue
        if match is None or not (match[1] or field):
            raise DataError(f"{path} line {number}: {line[:40]!r} is not valid in a .po file")
        if match[1]:
            field = match[1]
            if field in entry:
                raise DataError(f"{path} line {number}: {field} occurs twice in one entry")
        entry[field] = entry.get(field, "") + _ESCAPE.sub(_unescape_po, match[3])
    yield from _entry_pairs(entry, is_fuzzy)


def _unescape_po(match: re.Match[str]) -> str:
    if match[2]:
        return _ESCAPED_CHARS.get(match[2], match[2])
    numbers = match[1].split("\\")[1:]
    return bytes(int(n[1:], 16) if n[0] == "x" else int(n, 8) & 255 for n in numbers).decode(errors="replace")


def _entry_pairs(entry: dict[str, str], is_fuzzy: bool) -> Iterator[tuple[str, str]]:
    """Yield the pairs of an entry. The first plural form translates the singular, the others the plural."""
    message = entry.get("msgid", "")
    if is_fuzzy or not message:  # the empty message is the header
        return
    for name, text in entry.items():
        if name.startswith("msgstr") and text:
            is_singular = name in ("msgstr", "msgstr[0]")
            yield message if is_singular else entry.get("msgid_plural", message), text
