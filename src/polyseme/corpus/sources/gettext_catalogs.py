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

from polyseme.corpus.sources.lines import LONGEST_ROW, Document, Found, bad, characters
from polyseme.errors import UserError, nearest
from polyseme.io.files import Damaged, unpacked

_CHARSET = re.compile(rb"charset=([\w.:-]+)")


def catalogues(lang: str = "") -> list[tuple[str, Path]]:
    """The catalogues on this machine and their languages, by name; only those of `lang` (de, pt_BR) if told."""
    found: dict[tuple[str, str], Path] = {}
    folders = _folders()
    for folder in folders:
        for path in folder.glob("*/LC_MESSAGES/*.mo"):
            if path.is_file() and path.stat().st_size:
                found.setdefault((path.parts[-3], path.name), path)
    if not found:
        raise UserError(f"there is no catalogue of gettext in {', '.join(map(str, folders))}")
    told = lang.replace("-", "_")
    chosen = [(language(name[0]), path) for name, path in sorted(found.items()) if told in ("", *_names(name[0]))]
    if not chosen:
        there = {name for locale, _ in found for name in _names(locale)}
        raise UserError(f"gettext has no catalogue in {lang!r}: {nearest(told, there)}")
    return chosen


def _folders() -> list[Path]:
    """Where catalogues lie, those asked for first."""
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    asked = [folder for folder in os.environ.get("TEXTDOMAINDIR", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix, "share"), Path(sys.base_prefix, "share"), *map(Path, data.split(os.pathsep))]
    return list(dict.fromkeys([*map(Path, asked), *(prefix / "locale" for prefix in prefixes)]))


def language(locale: str) -> str:
    """de for de_AT, sr for sr@latin."""
    return re.split(r"[_@.]", locale, maxsplit=1)[0]


def _names(locale: str) -> tuple[str, str]:
    return locale, language(locale)


def language_of(path: Path) -> str:
    """The language of a catalogue by the folder it lies in; empty if that does not tell."""
    return language(path.parts[-3]) if len(path.parts) > 2 and path.parts[-2] == "LC_MESSAGES" else ""


def messages(path: Path) -> list[tuple[str, str]]:
    """Each message and its translation. Of plural forms the first belongs to the singular, the others do not."""
    found = []
    for entry in _entries(path, str(path)):
        if isinstance(entry, UserError):
            raise entry
        found.append(entry)
    return found


def read(path: Path, name: str) -> Iterator[Found]:
    """The translations of a catalogue as one document: one a line, and those of several lines as paragraphs."""
    text: list[str] = []
    spaced = False
    for entry in _entries(path, name):
        if isinstance(entry, UserError):
            yield entry
        elif message := entry[1].strip():
            paragraph = "\n" in message
            if text:
                text.append("\n\n" if paragraph or spaced else "\n")
            text.append(message)
            spaced = paragraph
    if text:
        yield Document("".join(text), name)


def _entries(path: Path, name: str) -> Iterator[tuple[str, str] | UserError]:
    """Messages and translations as `messages` gives them; an error for each that cannot be read."""
    data = bytearray()
    try:
        for block in unpacked(path):
            data += block
            if len(data) > LONGEST_ROW:
                yield bad(f"{name}: longer than {LONGEST_ROW >> 20} MB")
                return
    except Damaged:
        yield bad(f"{name} is cut off or damaged: it cannot be unpacked")
        return
    except UserError as error:
        yield error
        return
    pairs, wrong = _strings(bytes(data))
    head = next((_CHARSET.search(translated) for original, translated in pairs if not original), None)
    charset = head[1].decode() if head else "utf-8"
    for number, (original, translated) in enumerate(pairs, 1):
        if not original:
            continue
        try:
            ids = original.decode(charset).rpartition("\x04")[2].split("\0")  # before \x04 stands a context
            forms = translated.decode(charset).split("\0")
        except LookupError:
            yield bad(f"{name}: there is no encoding {charset!r}")
            return
        except (UnicodeError, ValueError):
            yield bad(f"{name} message {number}: not {charset} text")
            continue
        for place, form in enumerate(forms):
            if form:
                yield characters(ids[min(place, len(ids) - 1)]), characters(form)
    if wrong:
        yield bad(f"{name} {wrong}")


def _strings(data: bytes) -> tuple[list[tuple[bytes, bytes]], str]:
    """What the two tables of a catalogue point at, and what is wrong with the rest."""
    if not data:
        return [], "is empty"
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4], "")
    if not order:
        return [], "is no catalogue of gettext"
    pairs: list[tuple[bytes, bytes]] = []
    size = 0
    try:
        revision, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
        if revision >> 16 > 1:
            return [], f"is a catalogue of the unknown revision {revision >> 16}"
        for place in range(count):
            pair = []
            for table in tables:
                length, offset = struct.unpack_from(f"{order}2I", data, table + 8 * place)
                size += length
                if offset + length > len(data) or size > 4 * len(data):
                    raise struct.error
                pair.append(data[offset : offset + length])
            pairs.append((pair[0], pair[1]))
    except struct.error:
        return pairs, f"is cut off or damaged: it cannot be read beyond message {len(pairs)}"
    return pairs, ""
