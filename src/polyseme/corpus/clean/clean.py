"""Cleaning of documents in named steps, with counts and examples of what each step removed.

The steps run in this order, each on the output of the one before:

    nfc           normalize to Unicode NFC
    control       remove control characters except line break and tab; convert all line breaks to \\n. Also removes
                  byte order marks and soft hyphens, which are not content. Joiners, non-joiners and direction marks
                  stay: words and emoji need them.
    boilerplate   remove lines that occur in at least N documents, such as cookie notices and footers
    min_chars     remove documents with fewer characters
    max_chars     remove documents with more characters
    language      remove documents detected, with at least this probability, as another language than their source's
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
    """Settings of the cleaning steps; 0 and False disable a step."""

    nfc: bool = False
    control: bool = False
    boilerplate: int = 0
    min_chars: int = 0
    max_chars: int = 0
    language: float = 0.0

    @property
    def needs_line_counts(self) -> bool:
        """Whether the lines of all documents must be counted before the first document is cleaned."""
        return self.boilerplate > 0

    def to_json(self) -> dict[str, Any]:
        """Return the enabled steps."""
        return {name: value for name in _DEFAULT_VALUES if (value := getattr(self, name))}

    def __str__(self) -> str:
        """Format the steps so that `parse_cleaning_steps` can read them."""
        settings = self.to_json()
        return ",".join(name if value is True else f"{name}={value}" for name, value in settings.items()) or "none"


def parse_cleaning_steps(text: str) -> CleaningConfig:
    """Parse step names and limits such as `nfc,control,min_chars=200`; `none` disables all steps."""
    if text.strip() == "none":
        return CleaningConfig()
    settings: dict[str, Any] = {}
    for step_text in text.split(","):
        name, equals, value = (part.strip() for part in step_text.partition("="))
        if name == "none":
            raise ConfigError(f"'none' cannot be combined with other cleaning steps: {text!r}")
        if name not in _DEFAULT_VALUES:
            raise ConfigError(
                f"unknown cleaning step {name!r} in {text!r}: {suggest(name, [*_DEFAULT_VALUES, 'none'])}"
            )
        if name in settings:
            raise ConfigError(f"cleaning step {name!r} occurs twice in {text!r}")
        settings[name] = _parse_value(name, value) if equals else _DEFAULT_VALUES[name]
    config = CleaningConfig(**settings)
    if config.max_chars and config.min_chars > config.max_chars:
        raise ConfigError(f"min_chars is {config.min_chars}, more than max_chars, {config.max_chars}, in {text!r}")
    return config


def _parse_value(name: str, value: str) -> Any:
    if isinstance(_DEFAULT_VALUES[name], bool):
        raise ConfigError(f"cleaning step {name!r} takes no value, but is set to {value!r}")
    number_type, min_value, max_value = (
        (float, 0.0, 1.0) if name == "language" else (int, 2 if name == "boilerplate" else 1, 1 << 60)
    )
    try:
        number = number_type(value)
    except ValueError:
        number = -1
    if not min_value <= number <= max_value or not number:
        expected = "a probability above 0 and at most 1" if number_type is float else f"an integer, {min_value} or more"
        raise ConfigError(
            f"{name}={value}: the cleaning step {name!r} takes {expected}, such as {name}={_DEFAULT_VALUES[name]}"
        )
    return number


class CleaningStats:
    """Statistics of each step: documents changed and removed, characters removed, and the first examples.

    The characters of all steps add up to the difference between input and output; `nfc` may add characters. The
    statistics of consecutive groups of documents, added in order, equal those of all documents.
    """

    def __init__(self) -> None:
        self.by_step: dict[str, dict[str, Any]] = {
            field.name: {"changed": 0, "removed": 0, "characters": 0, "examples": []}
            for field in fields(CleaningConfig)
        }

    def record(
        self, step: str, num_characters: int, is_removed: bool, location: str, example: Callable[[], str]
    ) -> None:
        """Count a document that a step changed or removed. `example` is called only while examples are needed."""
        row = self.by_step[step]
        row["removed" if is_removed else "changed"] += 1
        row["characters"] += num_characters
        if len(row["examples"]) < MAX_EXAMPLES:
            # Lone surrogates cannot be written to a file.
            text = example()[:EXCERPT_CHARS].encode("utf-8", "replace").decode("utf-8")
            row["examples"].append({"location": location, "text": text})

    def add(self, other: CleaningStats) -> None:
        """Add the statistics of the documents that follow."""
        for name, row in self.by_step.items():
            other_row = other.by_step[name]
            for counter in ("changed", "removed", "characters"):
                row[counter] += other_row[counter]
            row["examples"] = [*row["examples"], *other_row["examples"]][:MAX_EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """Return the statistics by step."""
        return self.by_step

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CleaningStats:
        """Restore what `to_json` returned."""
        stats = cls()
        for name, row in value.items():
            stats.by_step[name] = {**row, "examples": list(row["examples"])}
        return stats


class Cleaner:
    """Cleans documents one by one.

    `boilerplate_hashes` is the output of `find_repeated_lines`. Without it the boilerplate step is skipped, so that
    `transform` returns the lines to count.
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
        """Return the cleaned text, or None if it is removed, and update `stats`. `location` is used in examples."""
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
        """Apply the steps that change text. For a document that `clean` does not remove, returns the same text."""
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
    """Return the first line that a step changed, starting shortly before the change."""
    position = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    if position == len(after) and before[position : position + 1] == "\n":  # the next line was removed
        position += 1
    start, end = before.rfind("\n", 0, position) + 1, before.find("\n", position)
    return before[max(start, position - EXCERPT_CHARS // 4) : None if end < 0 else end]


def _normalize_nfc(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _strip_control(text: str) -> str:
    return _CONTROL.sub("", _LINE_BREAK.sub("\n", text)) if _CONTROL.search(text) else text


def _strip_control_and_normalize(text: str) -> str:
    """Normalize after removing control characters, since characters that they separated may compose now."""
    new_text = _strip_control(text)
    return text if new_text is text else _normalize_nfc(new_text)


def _hash_lines(lines: list[str]) -> tuple[list[int], np.ndarray]:
    """Return the numbers of the lines that contain a word, and a hash of each line without surrounding white space."""
    line_numbers, digests = [], []
    for number, line in enumerate(lines):
        line = line.strip()
        if line and (line[0].isalnum() or _WORD_CHAR.search(line)):
            line_numbers.append(number)
            digests.append(blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return line_numbers, np.frombuffer(b"".join(digests), dtype="<u8")


def hash_distinct_lines(text: str) -> np.ndarray:
    """Return the sorted uint64 hashes of the distinct lines of a document that contain a word."""
    return np.unique(_hash_lines(text.split("\n"))[1])


def find_repeated_lines(
    hash_arrays: Iterable[np.ndarray], min_count: int, work_dir: Path, memory_bytes: int = 64 << 20
) -> np.ndarray:
    """Return the sorted hashes that occur at least `min_count` times, using about `memory_bytes` bytes of memory."""
    repeated_hashes = [np.empty(0, dtype=np.uint64)]
    last_hash, last_count = np.uint64(0), 0  # the largest hash so far, which may continue in the next chunk
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
