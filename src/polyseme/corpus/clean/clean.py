"""Cleaning as small named steps, with a count and examples of what each took away.

    nfc           composed characters (Unicode NFC)
    control       control characters go, but for line break and tab; line breaks of all systems become \\n.
                  Byte order marks and soft hyphens go too: they say how to read or break a text, not what it
                  says. Joiners, non-joiners and marks of direction stay: words and emoji need them.
    boilerplate   lines that stand in so many documents: cookie notices, footers
    short, long   documents with fewer, with more characters than that
    language      documents in another language than their source's, with at least that probability

They run in this order, and each sees what those before it left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.clean.language import Identifier
from polyseme.corpus.dedup.external_sort import Runs
from polyseme.errors import UserError, nearest

DEFAULT = "nfc,control"
EXAMPLES, EXCERPT = 5, 120
_VALUES: dict[str, Any] = {
    "nfc": True, "control": True, "boilerplate": 10, "short": 200, "long": 1_000_000, "language": 0.5,
}  # fmt: skip
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\ufeff]")
_BREAK = re.compile("\r\n|[\r\x0b\x0c\x85]")
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Steps:
    """Which steps run; 0 and False are off."""

    nfc: bool = False
    control: bool = False
    boilerplate: int = 0
    short: int = 0
    long: int = 0
    language: float = 0.0

    @property
    def counts_lines(self) -> bool:
        """Whether the lines of all documents must be counted before the first is cleaned."""
        return self.boilerplate > 0

    def to_json(self) -> dict[str, Any]:
        return {name: value for name in _VALUES if (value := getattr(self, name))}

    def __str__(self) -> str:
        """What `parse_steps` reads."""
        found = self.to_json()
        return ",".join(name if value is True else f"{name}={value}" for name, value in found.items()) or "none"


def parse_steps(text: str) -> Steps:
    """Steps from their names and limits, such as `nfc,control,short=200`; `none` for none."""
    if text.strip() == "none":
        return Steps()
    given: dict[str, Any] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if name == "none":
            raise UserError(f"none stands alone, not among other steps as in {text!r}")
        if name not in _VALUES:
            raise UserError(f"there is no cleaning step {name!r} in {text!r}: {nearest(name, [*_VALUES, 'none'])}")
        if name in given:
            raise UserError(f"the cleaning step {name!r} is given twice in {text!r}")
        given[name] = _value(name, value) if equals else _VALUES[name]
    steps = Steps(**given)
    if steps.long and steps.short > steps.long:
        raise UserError(f"no document has at least {steps.short} and at most {steps.long} characters: {text!r}")
    return steps


def _value(name: str, value: str) -> Any:
    if isinstance(_VALUES[name], bool):
        raise UserError(f"the cleaning step {name!r} takes no value, not {value!r}")
    kind, least, most = (float, 0.0, 1.0) if name == "language" else (int, 2 if name == "boilerplate" else 1, 1 << 60)
    try:
        number = kind(value)
    except ValueError:
        number = -1
    if not least <= number <= most or not number:
        fitting = "a probability above 0 and at most 1" if kind is float else f"a whole number, {least} or more"
        raise UserError(f"{name}={value}: the cleaning step {name!r} takes {fitting}, such as {name}={_VALUES[name]}")
    return number


class Tally:
    """What each step did: documents changed and removed, characters fewer, and the first examples.

    Over all steps the characters are those that came in less those that went out; `nfc` may add some. Tallies
    of stretches of documents, added up in their order, are the tally of all.
    """

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, Any]] = {
            field.name: {"changed": 0, "removed": 0, "characters": 0, "examples": []} for field in fields(Steps)
        }

    def note(self, step: str, characters: int, removed: bool, where: str, example: Callable[[], str]) -> None:
        """One document that a step changed or removed; `example` is asked only while examples are wanted."""
        row = self.steps[step]
        row["removed" if removed else "changed"] += 1
        row["characters"] += characters
        if len(row["examples"]) < EXAMPLES:
            text = example()[:EXCERPT].encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be written
            row["examples"].append({"where": where, "text": text})

    def add(self, other: Tally) -> None:
        for name, row in self.steps.items():
            more = other.steps[name]
            for count in ("changed", "removed", "characters"):
                row[count] += more[count]
            row["examples"] = [*row["examples"], *more["examples"]][:EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        return self.steps

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Tally:
        tally = cls()
        for name, row in value.items():
            tally.steps[name] = {**row, "examples": list(row["examples"])}
        return tally


class Cleaner:
    """Cleans documents one by one. `boilerplate` is what `repeated_lines` found, None while it is not known.

    The lines to be counted are those of `rewrite` without it.
    """

    def __init__(self, steps: Steps, boilerplate: np.ndarray | None = None):
        self.steps = steps
        self._lines = np.empty(0, dtype=np.uint64) if boilerplate is None else boilerplate
        changes: dict[str, Callable[[str], str]] = {}
        if steps.nfc:
            changes["nfc"] = _compose
        if steps.control:
            changes["control"] = _strip_control_composed if steps.nfc else _strip_control
        if steps.boilerplate and len(self._lines):
            changes["boilerplate"] = self._strip_lines
        self._changes = changes
        self._identifier = Identifier() if steps.language else None

    def clean(self, text: str, lang: str, where: str, tally: Tally) -> str | None:
        """The text as it is kept, or None; both are counted. `where` names the document in examples."""
        for name, change in self._changes.items():
            after = change(text)
            if after == text:
                continue
            gone = not after or after.isspace()
            tally.note(name, len(text) - (0 if gone else len(after)), gone, where, partial(_shown, text, after))
            if gone:
                return None
            text = after
        steps, size = self.steps, len(text)
        if size < steps.short:
            tally.note("short", size, True, where, lambda: text)
        elif steps.long and size > steps.long:
            tally.note("long", size, True, where, lambda: text)
        elif self._identifier and (found := self._identifier.wrong(text, lang, steps.language)):
            tally.note("language", size, True, where, lambda: f"{found[0]} {found[1]:.2f}: {text[:EXCERPT]}")
        else:
            return text
        return None

    def rewrite(self, text: str) -> str:
        """A document that `clean` keeps, as it returns it."""
        for change in self._changes.values():
            text = change(text)
        return text

    def _strip_lines(self, text: str) -> str:
        lines = text.split("\n")
        places, hashes = _hash_lines(lines)
        found = np.minimum(np.searchsorted(self._lines, hashes), len(self._lines) - 1)
        hits = np.flatnonzero(self._lines[found] == hashes)
        if not len(hits):
            return text
        gone = {places[hit] for hit in hits.tolist()}
        return "\n".join(line for place, line in enumerate(lines) if place not in gone)


def _shown(before: str, after: str) -> str:
    """The line of a text that a step changed first, from a little before the change."""
    place = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    if place == len(after) and before[place : place + 1] == "\n":  # the line behind it went
        place += 1
    start, end = before.rfind("\n", 0, place) + 1, before.find("\n", place)
    return before[max(start, place - EXCERPT // 4) : None if end < 0 else end]


def _compose(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _strip_control(text: str) -> str:
    return _CONTROL.sub("", _BREAK.sub("\n", text)) if _CONTROL.search(text) else text


def _strip_control_composed(text: str) -> str:
    """What stood apart may compose now, so that `nfc` would not hold without another look."""
    after = _strip_control(text)
    return text if after is text else _compose(after)


def _hash_lines(lines: list[str]) -> tuple[list[int], np.ndarray]:
    """The places of lines with a word, and a hash of each without the white space around it."""
    places, digests = [], []
    for place, line in enumerate(lines):
        line = line.strip()
        if line and (line[0].isalnum() or _WORD.search(line)):
            places.append(place)
            digests.append(blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return places, np.frombuffer(b"".join(digests), dtype="<u8")


def line_hashes(text: str) -> np.ndarray:
    """The distinct lines of a document as sorted uint64 hashes; lines without a word have none."""
    return np.unique(_hash_lines(text.split("\n"))[1])


def repeated_lines(parts: Iterable[np.ndarray], at_least: int, work: Path, memory: int = 64 << 20) -> np.ndarray:
    """The hashes that the parts hold at least so often together, sorted; about `memory` bytes at once."""
    found = [np.empty(0, dtype=np.uint64)]
    last, count = np.uint64(0), 0  # of the greatest hash so far: more of it may follow
    with Runs(work / "lines.runs", memory) as runs:
        for part in parts:
            runs.add(part)
        for piece in runs.merged():
            if not len(piece):
                continue
            starts = np.flatnonzero(np.append(True, piece[1:] != piece[:-1]))
            values, counts = piece[starts], np.diff(np.append(starts, len(piece)))
            if values[0] == last:
                counts[0] += count
            elif count >= at_least:
                found.append(np.array([last], dtype=np.uint64))
            last, count = values[-1], int(counts[-1])
            found.append(values[:-1][counts[:-1] >= at_least])
        if count >= at_least:
            found.append(np.array([last], dtype=np.uint64))
    return np.concatenate(found)
