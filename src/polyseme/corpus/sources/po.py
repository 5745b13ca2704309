"""`.po` files: messages and their translations as translators write them (the GNU gettext manual, "PO Files")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from polyseme.corpus.sources.lines import lines
from polyseme.errors import UserError

_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*)?"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|.)")
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_po(path: Path) -> list[tuple[str, str]]:
    """Each message and its translation, as `messages` gives those of a `.mo`; fuzzy and untranslated ones are none."""
    return list(_entries(path))


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    entry: dict[str, str] = {}
    field, fuzzy = "", False
    for found in lines(path, str(path)):
        if isinstance(found, UserError):
            raise found
        number, line = found[0], found[1].strip()
        if not line or line.startswith("#"):
            if "msgstr" in entry or "msgstr[0]" in entry:
                yield from _pairs(entry, fuzzy)
                entry, fuzzy = {}, False
            fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        match = _LINE.fullmatch(line)
        if match is None or not (match[1] or field):
            raise UserError(f"{path} line {number}: {line[:40]!r} is no line of a .po file")
        if match[1]:
            if match[1] in ("msgid", "msgctxt") and ("msgstr" in entry or "msgstr[0]" in entry):
                yield from _pairs(entry, fuzzy)
                entry, fuzzy = {}, False
            field = match[1]
            if field in entry:
                raise UserError(f"{path} line {number}: {field} stands twice in one entry")
        entry[field] = entry.get(field, "") + _ESCAPE.sub(_plain, match[3])
    yield from _pairs(entry, fuzzy)


def _plain(match: re.Match[str]) -> str:
    sign = match[1]
    if sign[0] == "x" and len(sign) > 1:
        return chr(int(sign[1:], 16))
    return chr(int(sign, 8)) if sign[0] in "01234567" else _SIGNS.get(sign, sign)


def _pairs(entry: dict[str, str], fuzzy: bool) -> Iterator[tuple[str, str]]:
    """Of plural forms the first belongs to the singular, the others do not."""
    message = entry.get("msgid", "")
    if fuzzy or not message:  # the empty message is the header
        return
    for name, text in entry.items():
        if name.startswith("msgstr") and text:
            single = name in ("msgstr", "msgstr[0]")
            yield message if single else entry.get("msgid_plural", message), text
