"""`.po` files: messages and their translations as translators write them (the GNU gettext manual, "PO Files")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from polyseme.corpus.sources.lines import read_lines
from polyseme.errors import DataError

_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*)?"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|.)")
_ESCAPED_CHARS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_po(path: Path) -> list[tuple[str, str]]:
    """Each message and its translation, as `messages` gives those of a `.mo`; fuzzy and untranslated ones are none."""
    return list(_read_entries(path))


def _read_entries(path: Path) -> Iterator[tuple[str, str]]:
    entry: dict[str, str] = {}
    field, fuzzy = "", False
    for numbered_line in read_lines(path, str(path)):
        if isinstance(numbered_line, DataError):
            raise numbered_line
        number, line = numbered_line[0], numbered_line[1].strip()
        if not line or line.startswith("#"):
            if "msgstr" in entry or "msgstr[0]" in entry:
                yield from _entry_pairs(entry, fuzzy)
                entry, fuzzy = {}, False
            fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        match = _LINE.fullmatch(line)
        if match is None or not (match[1] or field):
            raise DataError(f"{path} line {number}: {line[:40]!r} is no line of a .po file")
        if match[1]:
            if match[1] in ("msgid", "msgctxt") and ("msgstr" in entry or "msgstr[0]" in entry):
                yield from _entry_pairs(entry, fuzzy)
                entry, fuzzy = {}, False
            field = match[1]
            if field in entry:
                raise DataError(f"{path} line {number}: {field} stands twice in one entry")
        entry[field] = entry.get(field, "") + _ESCAPE.sub(_unescape, match[3])
    yield from _entry_pairs(entry, fuzzy)


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] == "x" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPED_CHARS.get(escape, escape)


def _entry_pairs(entry: dict[str, str], fuzzy: bool) -> Iterator[tuple[str, str]]:
    """Of plural forms the first belongs to the singular, the others do not."""
    message = entry.get("msgid", "")
    if fuzzy or not message:  # the empty message is the header
        return
    for name, text in entry.items():
        if name.startswith("msgstr") and text:
            is_singular = name in ("msgstr", "msgstr[0]")
            yield message if is_singular else entry.get("msgid_plural", message), text
