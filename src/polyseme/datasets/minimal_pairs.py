"""Minimal pairs: an acceptable and an unacceptable sentence, as in BLiMP (Warstadt et al. 2020)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.json import parse_json
from polyseme.tasks.readers.rows import JSON_LINES_SUFFIXES, JsonRow, data_suffix, read_lines, read_rows

GAP = re.compile(r"_{2,}|\[MASK\]|<mask>|\*mask\*")  # in templates of agreement tests
# The files of BLiMP set these five paradigms apart; the paper's tables count them with argument structure.
MERGED_PHENOMENA = {"s-selection": "argument_structure"}
Span = tuple[int, int]


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences, the first of which a model should prefer.

    If there are spans, only their characters are compared: the critical region of each sentence, given the rest.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str = ""
    spans: tuple[Span, Span] | None = None


def read_minimal_pairs(path: Path, skip_bad: bool = False) -> list[MinimalPair]:
    """Read pairs from a file of JSON lines, or from all of a folder (for BLiMP, the one that contains `data`).

    A row has `sentence_good` and `sentence_bad` (BLiMP), or `good` and `bad`: sentences; or with a `template`, the
    words that fill its gap (`___` or a mask token); or with a `region`, lists of regions, of which the one with this
    index, counted from 0, is compared. `UID` or `paradigm`, and `linguistics_term` or `phenomenon`, group the pairs.
    """
    pairs: list[MinimalPair] = []
    for file in _find_files(path):
        rows = (partial(_parse_pair, file, i, line) for i, line in enumerate(read_lines(file), 1))
        pairs += read_rows(file, rows, skip_bad)
    return pairs


def _find_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    folder = path / "data" if (path / "data").is_dir() else path
    files = sorted(file for file in folder.iterdir() if data_suffix(file) in JSON_LINES_SUFFIXES)
    if not files:
        raise DataError(f"{folder} has no files of JSON lines ({', '.join(JSON_LINES_SUFFIXES)})")
    yield from files


def _parse_pair(file: Path, line_number: int, line: str) -> MinimalPair:
    location = f"{file}:{line_number}"
    row = JsonRow(location, parse_json(line, location))
    keys = row.values if isinstance(row.values, dict) else {}
    names = ("sentence_good", "sentence_bad") if "sentence_good" in keys else ("good", "bad")
    paradigm = keys.get("UID", keys.get("paradigm", file.name.partition(".")[0]))
    phenomenon = keys.get("linguistics_term", keys.get("phenomenon", ""))
    group = str(paradigm), MERGED_PHENOMENA.get(str(phenomenon), str(phenomenon))
    if "region" in keys:
        (good, good_span), (bad, bad_span) = (_select_region(row, name) for name in names)
        return MinimalPair(good, bad, *group, (good_span, bad_span))
    good, bad = (row.get(name) for name in names)
    if "template" in keys:
        good, bad = (_fill_gap(row, word) for word in (good, bad))
    return MinimalPair(good, bad, *group)


def _fill_gap(row: JsonRow, word: str) -> str:
    template: str = row.get("template")
    if len(GAP.findall(template)) != 1:
        raise DataError(
            f"{row.location}: template has {len(GAP.findall(template))} gaps (___), expected 1: {template!r}"
        )
    return GAP.sub(lambda _: word, template)


def _select_region(row: JsonRow, name: str) -> tuple[str, Span]:
    """Join the regions of a sentence by spaces; return it, and where the critical region is."""
    regions: list[Any] = row.get(name, list)
    region: int = row.get("region", int)
    if not all(isinstance(text, str) for text in regions) or not 0 <= region < len(regions):
        raise DataError(f"{row.location}: region is {region}, expected an index into {name}, a list of texts")
    before = "".join(text.strip() + " " for text in regions[:region] if text.strip())
    critical = regions[region].strip()
    if not critical:
        raise DataError(f"{row.location}: the critical region {region} of {name} is empty")
    after = "".join(" " + text.strip() for text in regions[region + 1 :] if text.strip())
    return before + critical + after, (len(before), len(before) + len(critical))
