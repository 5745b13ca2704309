"""Minimal pairs: an acceptable and an unacceptable sentence, as in BLiMP (Warstadt et al. 2020)."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.specs import STDIN
from polyseme.tasks.readers.columns import Columns, missing_role
from polyseme.tasks.readers.records import RECORD_FORMATS, data_suffix, detect_record_format, open_records, parse_input
from polyseme.tasks.readers.rows import JsonRow, iter_records, parse_texts, read_rows

FORMATS = {suffix: format for suffix, format in RECORD_FORMATS.items() if format != "text"}  # by suffix
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
    location: str = field(default="", compare=False)  # the file and row


def read_minimal_pairs(source: str | Path, skip_bad: bool = False) -> list[MinimalPair]:
    """Read pairs from JSON lines, CSV, TSV or Parquet, or from all files of a folder (of BLiMP, that with `data`).

    A row has `sentence_good` and `sentence_bad` (BLiMP), or `good` and `bad`: sentences; or with a `template`, the
    words that fill its gap (`___` or a mask token); or with a `region`, lists of regions, of which the one with this
    index, counted from 0, is compared, with the space before it. `UID` or `paradigm`, and `linguistics_term` or
    `phenomenon`, group the pairs; without a paradigm, that is the phenomenon, or else the name of the file. Other names
    of the two columns follow the path: `FILE::text=acceptable,pair=unacceptable`.
    """
    path, columns = parse_input(source, Columns())
    columns.reject(path, "minimal pairs", "label", "id")
    pairs: list[MinimalPair] = []
    for file in _find_files(path):
        format = detect_record_format(file, columns, FORMATS)
        if format in ("", "text"):
            name = STDIN if str(source).partition("::")[0] == STDIN else file
            advice = f"choose its format with {name}::format=NAME ({', '.join(sorted(set(FORMATS.values())))})"
            raise DataError(f"{name}: minimal pairs are rows with a good and a bad sentence: {advice}")
        records = open_records(file, columns, format)
        if records.is_table:
            for role, name in zip(("text", "pair"), _sentence_names(records.names, columns)):
                if name not in records.names:
                    raise missing_role(f"{file}:1", role, name, records.names)
        build = partial(_parse_pair, file, columns, records.is_table)
        pairs += read_rows(file, iter_records(records.rows, build), skip_bad)
    return pairs


def _find_files(path: Path) -> Iterator[Path]:
    """Yield a file, or those of a folder: of JSON lines if there are any, else tables."""
    if not path.exists():
        raise DataError(f"{path} is missing")
    if not path.is_dir():
        yield path
        return
    folder = path / "data" if (path / "data").is_dir() else path
    files = sorted(file for file in folder.iterdir() if data_suffix(file) in FORMATS)
    if not files:
        raise DataError(f"{folder} has no files of minimal pairs ({', '.join(FORMATS)})")
    yield from [file for file in files if FORMATS[data_suffix(file)] == "jsonl"] or files


def _sentence_names(names: Collection[str], columns: Columns) -> tuple[str, str]:
    """Return the columns or keys of the acceptable and the unacceptable sentence."""
    prefix = "sentence_" if "sentence_good" in names else ""
    return columns.text or f"{prefix}good", columns.pair or f"{prefix}bad"


def _parse_pair(file: Path, columns: Columns, is_table: bool, values: dict[str, Any], location: str) -> MinimalPair:
    names = _sentence_names(values, columns)
    values = {name: value for name, value in values.items() if value is not None or name in names}
    if is_table:
        values = _parse_cells(values, names, location)
    row = JsonRow(location, values)
    phenomenon = str(values.get("linguistics_term", values.get("phenomenon", "")))
    paradigm = values.get("UID", values.get("paradigm", phenomenon or file.name.partition(".")[0]))
    group = str(paradigm), MERGED_PHENOMENA.get(phenomenon, phenomenon)
    if "region" in values and "template" in values:
        raise DataError(f"{location}: a row has a region or a template, not both")
    if "region" in values:
        (good, good_span), (bad, bad_span) = (_select_region(row, name) for name in names)
        return MinimalPair(good, bad, *group, (good_span, bad_span), location)
    good, bad = (row.get(name) for name in names)
    if "template" in values:
        good, bad = (_fill_gap(row, word) for word in (good, bad))
    return MinimalPair(good, bad, *group, location=location)


def _parse_cells(values: dict[str, Any], names: Collection[str], location: str) -> dict[str, Any]:
    """Return a row of a table as a JSON object: without empty cells, and with numbers and lists where they belong."""
    row = {name: value for name, value in values.items() if value != "" or name in names}
    if isinstance(region := row.get("region"), str) and region.strip().isdigit():
        row["region"] = int(region)
    if "region" in row:
        row |= {name: list(parse_texts(row[name], location, name)) for name in names}
    return row


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
    is_index = not isinstance(region, bool) and 0 <= region < len(regions)
    if not all(isinstance(text, str) for text in regions) or not is_index:
        raise DataError(f"{row.location}: region is {region}, expected an index into {name}, a list of texts")
    before = "".join(text.strip() + " " for text in regions[:region] if text.strip())
    critical = regions[region].strip()
    if not critical:
        raise DataError(f"{row.location}: the critical region {region} of {name} is empty")
    after = "".join(" " + text.strip() for text in regions[region + 1 :] if text.strip())
    # some tokenizers have the space in the first token of a word, and some as a token of its own: it counts in all
    return before + critical + after, (len(before.rstrip()), len(before) + len(critical))
