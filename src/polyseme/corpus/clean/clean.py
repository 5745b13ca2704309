"""Cleaning as small named steps, with a count and examples of what each took away.

    nfc           composed characters (Unicode NFC)
    control       control characters go, but for line break and tab; line breaks of all systems become \\n.
                  Byte order marks and soft hyphens go too: they say how to read or break a text, not what it
                  says. Joiners, non-joiners and marks of direction stay: words and emoji need them.
    boilerplate   lines that stand in so many documents: cookie notices, footers
    min_chars     documents with fewer characters than that
    max_chars     documents with more
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

from polyseme.corpus.clean.language import LanguageDetector
from polyseme.corpus.dedup.external_sort import ExternalSorter
from polyseme.errors import ConfigError, suggest

DEFAULT_STEPS = "nfc,control"
MAX_EXAMPLES, EXCERPT_CHARS = 5, 120
_DEFAULT_VALUES: dict[str, Any] = {
    "nfc": True, "control": True, "boilerplate": 10, "min_chars": 200, "max_chars": 1_000_000, "language": 0.5,
}  # fmt: skip
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\ufeff]")
_LINE_BREAK = re.compile("\r\n|[\r\x0b\x0c\x85]")
_WORD_CHAR = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class CleaningConfig:
    """Which steps run; 0 and False are off."""

    nfc: bool = False
    control: bool = False
    boilerplate: int = 0
    min_chars: int = 0
    max_chars: int = 0
    language: float = 0.0

    @property
    def needs_line_counts(self) -> bool:
        """Whether the lines of all documents must be counted before the first is cleaned."""
        return self.boilerplate > 0

    def to_json(self) -> dict[str, Any]:
        return {name: value for name in _DEFAULT_VALUES if (value := getattr(self, name))}

    def __str__(self) -> str:
        """What `parse_cleaning_steps` reads."""
        settings = self.to_json()
        return ",".join(name if value is True else f"{name}={value}" for name, value in settings.items()) or "none"


def parse_cleaning_steps(text: str) -> CleaningConfig:
    """Steps from their names and limits, such as `nfc,control,min_chars=200`; `none` for none."""
    if text.strip() == "none":
        return CleaningConfig()
    settings: dict[str, Any] = {}
    for step_text in text.split(","):
        name, equals, value = (part.strip() for part in step_text.partition("="))
        if name == "none":
            raise ConfigError(f"none stands alone, not among other steps as in {text!r}")
        if name not in _DEFAULT_VALUES:
            raise ConfigError(
                f"there is no cleaning step {name!r} in {text!r}: {suggest(name, [*_DEFAULT_VALUES, 'none'])}"
            )
        if name in settings:
            raise ConfigError(f"the cleaning step {name!r} is given twice in {text!r}")
        settings[name] = _parse_value(name, value) if equals else _DEFAULT_VALUES[name]
    config = CleaningConfig(**settings)
    if config.max_chars and config.min_chars > config.max_chars:
        raise ConfigError(
            f"no document has at least {config.min_chars} and at most {config.max_chars} characters: {text!r}"
        )
    return config


def _parse_value(name: str, value: str) -> Any:
    if isinstance(_DEFAULT_VALUES[name], bool):
        raise ConfigError(f"the cleaning step {name!r} takes no value, not {value!r}")
    number_type, min_value, max_value = (
        (float, 0.0, 1.0) if name == "language" else (int, 2 if name == "boilerplate" else 1, 1 << 60)
    )
    try:
        number = number_type(value)
    except ValueError:
        number = -1
    if not min_value <= number <= max_value or not number:
        expected = (
            "a probability above 0 and at most 1" if number_type is float else f"a whole number, {min_value} or more"
        )
        raise ConfigError(
            f"{name}={value}: the cleaning step {name!r} takes {expected}, such as {name}={_DEFAULT_VALUES[name]}"
        )
    return number


class CleaningStats:
    """What each step did: documents changed and removed, characters fewer, and the first examples.

    Over all steps the characters are those that came in less those that went out; `nfc` may add some. Tallies
    of stretches of documents, added up in their order, are the tally of all.
    """

    def __init__(self) -> None:
        self.by_step: dict[str, dict[str, Any]] = {
            field.name: {"changed": 0, "removed": 0, "characters": 0, "examples": []}
            for field in fields(CleaningConfig)
        }

    def record(
        self, step: str, num_characters: int, is_removed: bool, location: str, example: Callable[[], str]
    ) -> None:
        """One document that a step changed or removed; `example` is asked only while examples are wanted."""
        row = self.by_step[step]
        row["removed" if is_removed else "changed"] += 1
        row["characters"] += num_characters
        if len(row["examples"]) < MAX_EXAMPLES:
            text = (
                example()[:EXCERPT_CHARS].encode("utf-8", "replace").decode("utf-8")
            )  # lone surrogates cannot be written
            row["examples"].append({"location": location, "text": text})

    def add(self, other: CleaningStats) -> None:
        for name, row in self.by_step.items():
            other_row = other.by_step[name]
            for counter in ("changed", "removed", "characters"):
                row[counter] += other_row[counter]
            row["examples"] = [*row["examples"], *other_row["examples"]][:MAX_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        return self.by_step

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CleaningStats:
        stats = cls()
        for name, row in value.items():
            stats.by_step[name] = {**row, "examples": list(row["examples"])}
        return stats


class Cleaner:
    """Cleans documents one by one. `boilerplate` is what `find_repeated_lines` found, None while it is not known.

    The lines to be counted are those of `transform` without it.
    """

    def __init__(self, config: CleaningConfig, boilerplate_hashes: np.ndarray | None = None):
        self.config = config
        self._boilerplate_hashes = np.empty(0, dtype=np.uint64) if boilerplate_hashes is None else boilerplate_hashes
        transforms: dict[str, Callable[[str], str]] = {}
        if config.nfc:
            transforms["nfc"] = _normalize_nfc
        if config.control:
            transforms["control"] = _strip_control_and_normalize if config.nfc else _strip_control
        if config.boilerplate and len(self._boilerplate_hashes):
            transforms["boilerplate"] = self._strip_boilerplate
        self._transforms = transforms
        self._identifier = LanguageDetector() if config.language else None

    def clean(self, text: str, lang: str, location: str, stats: CleaningStats) -> str | None:
        """The text as it is kept, or None; both are counted. `location` names the document in examples."""
        for name, apply_step in self._transforms.items():
            new_text = apply_step(text)
            if new_text == text:
                continue
            is_removed = not new_text or new_text.isspace()
            stats.record(
                name,
                len(text) - (0 if is_removed else len(new_text)),
                is_removed,
                location,
                partial(_excerpt_change, text, new_text),
            )
            if is_removed:
                return None
            text = new_text
        config, num_characters = self.config, len(text)
        if num_characters < config.min_chars:
            stats.record("min_chars", num_characters, True, location, lambda: text)
        elif config.max_chars and num_characters > config.max_chars:
            stats.record("max_chars", num_characters, True, location, lambda: text)
        elif self._identifier and (detection := self._identifier.detect_mismatch(text, lang, config.language)):
            stats.record(
                "language",
                num_characters,
                True,
                location,
                lambda: f"{detection[0]} {detection[1]:.2f}: {text[:EXCERPT_CHARS]}",
            )
        else:
            return text
        return None

    def transform(self, text: str) -> str:
        """A document that `clean` keeps, as it returns it."""
        for apply_step in self._transforms.values():
            text = apply_step(text)
        return text

    def _strip_boilerplate(self, text: str) -> str:
        lines = text.split("\n")
        line_numbers, hashes = _hash_lines(lines)
        candidates = np.minimum(np.searchsorted(self._boilerplate_hashes, hashes), len(self._boilerplate_hashes) - 1)
        hits = np.flatnonzero(self._boilerplate_hashes[candidates] == hashes)
        if not len(hits):
            return text
        boilerplate_lines = {line_numbers[hit] for hit in hits.tolist()}
        return "\n".join(line for number, line in enumerate(lines) if number not in boilerplate_lines)


def _excerpt_change(before: str, after: str) -> str:
    """The line of a text that a step changed first, from a little before the change."""
    position = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    if position == len(after) and before[position : position + 1] == "\n":  # the line behind it went
        position += 1
    start, end = before.rfind("\n", 0, position) + 1, before.find("\n", position)
    return before[max(start, position - EXCERPT_CHARS // 4) : None if end < 0 else end]


def _normalize_nfc(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _strip_control(text: str) -> str:
    return _CONTROL.sub("", _LINE_BREAK.sub("\n", text)) if _CONTROL.search(text) else text


def _strip_control_and_normalize(text: str) -> str:
    """What stood apart may compose now, so that `nfc` would not hold without another look."""
    new_text = _strip_control(text)
    return text if new_text is text else _normalize_nfc(new_text)


def _hash_lines(lines: list[str]) -> tuple[list[int], np.ndarray]:
    """The places of lines with a word, and a hash of each without the white space around it."""
    line_numbers, digests = [], []
    for number, line in enumerate(lines):
        line = line.strip()
        if line and (line[0].isalnum() or _WORD_CHAR.search(line)):
            line_numbers.append(number)
            digests.append(blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return line_numbers, np.frombuffer(b"".join(digests), dtype="<u8")


def hash_distinct_lines(text: str) -> np.ndarray:
    """The distinct lines of a document as sorted uint64 hashes; lines without a word have none."""
    return np.unique(_hash_lines(text.split("\n"))[1])


def find_repeated_lines(
    hash_arrays: Iterable[np.ndarray], min_count: int, work_dir: Path, memory_bytes: int = 64 << 20
) -> np.ndarray:
    """The hashes that the parts hold at least so often together, sorted; about `memory_bytes` bytes at once."""
    repeated_hashes = [np.empty(0, dtype=np.uint64)]
    last_hash, last_count = np.uint64(0), 0  # of the greatest hash so far: more of it may follow
    with ExternalSorter(work_dir / "lines.runs", memory_bytes) as sorter:
        for hashes in hash_arrays:
            sorter.add(hashes)
        for chunk in sorter.sorted_chunks():
            if not len(chunk):
                continue
            starts = np.flatnonzero(np.append(True, chunk[1:] != chunk[:-1]))
            values, counts = chunk[starts], np.diff(np.append(starts, len(chunk)))
            if values[0] == last_hash:
                counts[0] += last_count
            elif last_count >= min_count:
                repeated_hashes.append(np.array([last_hash], dtype=np.uint64))
            last_hash, last_count = values[-1], int(counts[-1])
            repeated_hashes.append(values[:-1][counts[:-1] >= min_count])
        if last_count >= min_count:
            repeated_hashes.append(np.array([last_hash], dtype=np.uint64))
    return np.concatenate(repeated_hashes)
