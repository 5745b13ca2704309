"""Word-vector benchmarks: files of analogy questions and of rated word pairs, and rank correlation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyseme.errors import DataError
from polyseme.io.atomic import wrap_os_errors


def spearman(one: np.ndarray, two: np.ndarray) -> float:
    """The correlation of ranks, equal values sharing the mean of theirs; 0 where all values are equal."""
    first, second = (_ranks(x) - (len(x) - 1) / 2 for x in (one, two))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = (ends - (counts + 1) / 2)[where]
    return means


def read_similarity_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two words and a number a line, parted by tabs, spaces or commas; a first line without a number is a header.

    So WordSim-353, SimLex-999 and MEN are distributed; of SimLex's own file with more columns, the fourth counts.
    """
    pairs = []
    for line_number, line in enumerate(_read_lines(path), 1):
        fields = line.replace(",", "\t").split("\t") if "\t" in line or "," in line else line.split()
        if not line.strip():
            continue
        value = fields[3 if len(fields) > 4 else 2] if len(fields) > 2 else ""
        try:
            pairs.append((fields[0].strip(), fields[1].strip(), float(value)))
        except (ValueError, IndexError):
            if line_number > 1:
                raise DataError(
                    f"{path} line {line_number}: expected two words and a number, not {line.strip()!r}"
                ) from None
    if not pairs:
        raise DataError(f"{path} has no pairs of words")
    return pairs


def read_analogy_questions(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Four words a line, under lines such as `: capital-common-countries` that name their section."""
    questions_by_section: dict[str, list[tuple[str, str, str, str]]] = {}
    section = "all"
    for line_number, line in enumerate(_read_lines(path), 1):
        words = line.split()
        if words[:1] == [":"] or line.startswith(":"):
            section = line[1:].strip()
        elif len(words) == 4:
            questions_by_section.setdefault(section, []).append((words[0], words[1], words[2], words[3]))
        elif words:
            raise DataError(f"{path} line {line_number}: a question is four words, not {len(words)}: {line.strip()!r}")
    if not questions_by_section:
        raise DataError(f"{path} has no questions")
    return questions_by_section


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with wrap_os_errors(path):
            return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8") from None
