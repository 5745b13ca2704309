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

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.corpus.dedup.external_sort import ExternalSorter, is_in_sorted
from polyseme.errors import ConfigError, require_package, suggest

DEFAULT_STEPS = "nfc,control"
MAX_EXAMPLES, EXCERPT_CHARS = 5, 120
_DEFAULT_VALUES: dict[str, Any] = {
    "nfc": True, "control": True, "boilerplate": 10, "min_chars": 200, "max_chars": 1_000_000, "language": 0.5,
}  # fmt: skip
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\ufeff]")
_LINE_BREAK = re.compile("\r\n|[\r\x0b\x0c\x85]")
_WORD_CHAR = re.compile(r"[^\W_]")
SAMPLE_CHARS = 300  # of a long text; enough to classify all of 600 English passages correctly
_NUM_SAMPLES = 3
_MIN_LETTERS = 20  # no detection below this length
_NO_LETTERS = re.compile(r"[\d_\s!-/:-@\[-`{-~]+")
_NO_LANGUAGE = "zxx"  # the model's label for text without language: numbers, code
# Codes that differ in region, script or age rather than in content are treated as one language.
_LANGUAGE_ALIASES = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("hr", "sr", "bs", "srl"), "sh"),
    **dict.fromkeys(("arz", "ary", "arb"), "ar"),
    **dict.fromkeys(("yue", "wuu", "cmn"), "zh"),
    **dict.fromkeys(("ms", "in", "zsm"), "id"),
    **{"iw": "he", "hbo": "he", "fil": "tl", "uzs": "uz", "sdh": "ku", "gug": "gn", "pes": "fa", "prs": "fa"},
}


@dataclass(frozen=True)
class CleaningConfig:
    """Settings of the cleaning steps; 0 and False disable a step."""

    nfc: bool = False
    control: bool = False
    boilerplate: int = 0
    min_chars: int = 0
    max_chars: int = 0
    language: float = 0.0

    def __str__(self) -> str:
        """Format the enabled steps so that `parse_cleaning_steps` can read them."""
        steps = [(name, value) for name, value in vars(self).items() if value]
        return ",".join(name if value is True else f"{name}={value}" for name, value in steps) or "none"


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
            advice = suggest(name, [*_DEFAULT_VALUES, "none"])
            raise ConfigError(f"unknown cleaning step {name!r} in {text!r}: {advice}")
        if name in settings:
            raise ConfigError(f"cleaning step {name!r} occurs twice in {text!r}")
        settings[name] = _parse_value(name, value) if equals else _DEFAULT_VALUES[name]
    config = CleaningConfig(**settings)
    if config.max_chars and config.min_chars > config.max_chars:
        raise ConfigError(f"min_chars is {config.min_chars}, more than max_chars, {config.max_chars}, in {text!r}")
    return config


def _parse_value(name: str, value: str) -> Any:
    default = _DEFAULT_VALUES[name]
    if isinstance(default, bool):
        raise ConfigError(f"cleaning step {name!r} takes no value, but is set to {value!r}")
    min_value = 2 if name == "boilerplate" else 1
    try:
        number = type(default)(value)
    except ValueError:
        number = -1
    if not (0 < number <= 1 if name == "language" else min_value <= number <= 1 << 60):
        expected = "a probability above 0 and at most 1" if name == "language" else f"an integer, {min_value} or more"
        raise ConfigError(f"{name}={value}: the cleaning step {name!r} takes {expected}, such as {name}={default}")
    return number


class CleaningStats:
    """Statistics of each step: documents changed and removed, characters removed (`nfc` may add some), examples."""

    def __init__(self) -> None:
        self.by_step: dict[str, dict[str, Any]] = {
            name: {"changed": 0, "removed": 0, "characters": 0, "examples": []} for name in _DEFAULT_VALUES
        }

    def record(self, step: str, location: str, before: str, after: str = "", example: str = "") -> None:
        """Count a document that a step changed, or removed if nothing is left; `example` replaces the excerpt."""
        row, is_removed = self.by_step[step], not after or after.isspace()
        row["removed" if is_removed else "changed"] += 1
        row["characters"] += len(before) - (0 if is_removed else len(after))
        if len(row["examples"]) < MAX_EXAMPLES:
            text = (example or _excerpt_change(before, after))[:EXCERPT_CHARS]
            # Lone surrogates cannot be written to a file.
            row["examples"].append({"location": location, "text": text.encode("utf-8", "replace").decode("utf-8")})


def merge_cleaning_stats(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merge the statistics (`by_step`) of consecutive groups of documents into those of all documents."""
    merged = CleaningStats().by_step
    for part in parts:
        for name, row in part.items():
            for counter in ("changed", "removed", "characters"):
                merged[name][counter] += row[counter]
            merged[name]["examples"] = [*merged[name]["examples"], *row["examples"]][:MAX_EXAMPLES]
    return merged


class Cleaner:
    """Cleans documents one by one. Without `boilerplate_hashes` (of repeated lines) the boilerplate step is skipped.

    `hash_key` is the one that `boilerplate_hashes` were computed with.
    """

    def __init__(self, config: CleaningConfig, boilerplate_hashes: np.ndarray | None = None, hash_key: bytes = b""):
        self.config, self._hash_key = config, hash_key
        self._boilerplate_hashes = np.empty(0, dtype=np.uint64) if boilerplate_hashes is None else boilerplate_hashes
        self._transforms: dict[str, Callable[[str], str]] = {}
        if config.nfc:
            self._transforms["nfc"] = _normalize_nfc
        if config.control:
            self._transforms["control"] = partial(_strip_control, normalize=config.nfc)
        if config.boilerplate and len(self._boilerplate_hashes):
            self._transforms["boilerplate"] = self._strip_boilerplate
        self._detector = LanguageDetector() if config.language else None

    def clean(self, text: str, lang: str, location: str, stats: CleaningStats) -> str | None:
        """Return the cleaned text, or None if it is removed, and update `stats`. `location` is used in examples."""
        for name, apply_step in self._transforms.items():
            new_text = apply_step(text)
            if new_text != text:
                stats.record(name, location, text, new_text)
                if not new_text or new_text.isspace():
                    return None
                text = new_text
        config, num_characters, excerpt = self.config, len(text), text[:EXCERPT_CHARS]
        if num_characters < config.min_chars:
            stats.record("min_chars", location, text, example=excerpt)
        elif config.max_chars and num_characters > config.max_chars:
            stats.record("max_chars", location, text, example=excerpt)
        elif self._detector and (detection := self._detector.detect_mismatch(text, lang, config.language)):
            stats.record("language", location, text, example=f"{detection[0]} {detection[1]:.2f}: {excerpt}")
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
        line_numbers, hashes = _hash_lines(lines, self._hash_key)
        boilerplate = set(np.array(line_numbers)[is_in_sorted(hashes, self._boilerplate_hashes)].tolist())
        return "\n".join(line for number, line in enumerate(lines) if number not in boilerplate)


def _excerpt_change(before: str, after: str) -> str:
    """Return the first line that a step changed, starting shortly before the change."""
    position = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    if position == len(after) and before[position : position + 1] == "\n":  # the next line was removed
        position += 1
    start, end = before.rfind("\n", 0, position) + 1, before.find("\n", position)
    return before[max(start, position - EXCERPT_CHARS // 4) : None if end < 0 else end]


def _normalize_nfc(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _strip_control(text: str, normalize: bool) -> str:
    if not _CONTROL.search(text):
        return text
    new_text = _CONTROL.sub("", _LINE_BREAK.sub("\n", text))
    return _normalize_nfc(new_text) if normalize else new_text  # what was separated may compose now


def _hash_lines(lines: list[str], key: bytes) -> tuple[list[int], np.ndarray]:
    """Return the numbers of the lines that contain a word, and a hash of each line without surrounding white space.

    Eight bytes are too few against someone who searches for a line with the hash of any line of a large corpus, so the
    hash is salted with a key (of up to 16 bytes) that `prepare` derives from all of its input.
    """
    line_numbers, digests = [], []
    for number, line in enumerate(lines):
        line = line.strip()
        if line and (line[0].isalnum() or _WORD_CHAR.search(line)):
            line_numbers.append(number)
            digests.append(blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8, salt=key).digest())
    return line_numbers, np.frombuffer(b"".join(digests), dtype="<u8")


def hash_distinct_lines(text: str, key: bytes = b"") -> np.ndarray:
    """Return the sorted uint64 hashes of the distinct lines of a document that contain a word."""
    return np.unique(_hash_lines(text.split("\n"), key)[1])


def find_repeated_lines(
    hash_arrays: Iterable[np.ndarray], min_count: int, work_dir: Path, memory_bytes: int = 64 << 20
) -> np.ndarray:
    """Return the sorted hashes that occur at least `min_count` times, using about `memory_bytes` bytes of memory."""
    repeated_hashes = [np.empty(0, np.uint64)]
    with ExternalSorter(work_dir / "lines.runs", memory_bytes) as sorter:
        for hashes in hash_arrays:
            sorter.add(hashes)
        repeated_hashes += [hashes[counts >= min_count] for hashes, counts in sorter.sorted_counts()]
    return np.concatenate(repeated_hashes)


class LanguageDetector:
    """Detects the language of a text and its probability; ("", 0.0) if the text is too short."""

    def __init__(self) -> None:
        self._model = _load_model()
        self._supported = {normalize_language(label) for label in self._model.labels if label != _NO_LANGUAGE}

    def __call__(self, text: str) -> tuple[str, float]:
        letters = _NO_LETTERS.sub(" ", sample_text(text))
        if len(letters) < _MIN_LETTERS:
            return "", 0.0
        detected_lang, probability = self._model.classify(letters)
        return ("", 0.0) if detected_lang == _NO_LANGUAGE else (str(detected_lang), float(probability))

    def supports(self, lang: str) -> bool:
        """Return whether the model knows a language."""
        return normalize_language(lang) in self._supported

    def detect_mismatch(self, text: str, lang: str, min_probability: float) -> tuple[str, float] | None:
        """Return the detected language and its probability if it is not `lang`; None if `lang` is not supported."""
        if not self.supports(lang):
            return None
        detected_lang, probability = self(text)
        is_same = not detected_lang or normalize_language(detected_lang) == normalize_language(lang)
        return None if is_same or probability < min_probability else (detected_lang, probability)


def normalize_language(code: str) -> str:
    """Return the language of a code that may have a region or script, e.g. `pt_BR`, `zh-Hans`."""
    base_code = re.split("[-_.@]", code.strip().lower())[0]
    return _LANGUAGE_ALIASES.get(base_code, base_code)


def sample_text(text: str) -> str:
    """Return the beginning, middle and end of a long text; a short text unchanged."""
    if len(text) <= SAMPLE_CHARS:
        return text
    length = SAMPLE_CHARS // _NUM_SAMPLES
    starts = [(len(text) - length) * index // (_NUM_SAMPLES - 1) for index in range(_NUM_SAMPLES)]
    return " ".join(text[start : start + length] for start in starts)


@cache
def _load_model() -> Any:
    langid = require_package("py3langid.langid", "language detection")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
