"""Reader of `.po` files, translated messages in source form (GNU gettext manual, "PO Files").

The package polib does not serve here: it drops a string with an unclosed quote without an error and does not decode
octal and hexadecimal escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from polyseme.errors import DataError
from polyseme.io.lines import read_lines

_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*)?"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|.)")
_ESCAPED_CHARS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_po(path: Path) -> list[tuple[str, str]]:
    """Return messages with their translations, like `read_messages` for `.mo`. Skips fuzzy and untranslated ones."""
    return list(_read_entries(path))


def _read_entries(path: Path) -> Iterator[tuple[str, str]]:
    entry: dict[str, str] = {}
    field, is_fuzzy = "", False
    for numbered_line in read_lines(path, str(path)):
        if isinstance(numbered_line, DataError):
            raise numbered_line
        number, line = numbered_line[0], numbered_line[1].strip()
        if not line or line.startswith("#"):
            if "msgstr" in entry or "msgstr[0]" in entry:
                yield from _entry_pairs(entry, is_fuzzy)
                entry, is_fuzzy = {}, False
            is_fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        match = _LINE.fullmatch(line)
        if match is None or not (match[1] or field):
            raise DataError(f"{path} line {number}: {line[:40]!r} is not valid in a .po file")
        if match[1]:
            if match[1] in ("msgid", "msgctxt") and ("msgstr" in entry or "msgstr[0]" in entry):
                yield from _entry_pairs(entry, is_fuzzy)
                entry, is_fuzzy = {}, False
            field = match[1]
            if field in entry:
                raise DataError(f"{path} line {number}: {field} occurs twice in one entry")
        entry[field] = entry.get(field, "") + _ESCAPE.sub(_unescape, match[3])
    yield from _entry_pairs(entry, is_fuzzy)


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPED_CHARS.get(escape, escape)


def _entry_pairs(entry: dict[str, str], is_fuzzy: bool) -> Iterator[tuple[str, str]]:
    """Yield the pairs of an entry. The first plural form translates the singular, the others the plural."""
    message = entry.get("msgid", "")
    if is_fuzzy or not message:  # the empty message is the header
        return
    for name, text in entry.items():
        if name.startswith("msgstr") and text:
            is_singular = name in ("msgstr", "msgstr[0]")
            yield message if is_singular else entry.get("msgid_plural", message), text
