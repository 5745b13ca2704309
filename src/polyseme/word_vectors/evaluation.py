"""Word-vector benchmarks: readers of analogy questions and of rated word pairs."""

from pathlib import Path

from polyseme.errors import DataError
from polyseme.io.atomic import wrap_os_errors


def read_similarity_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Read lines of two words and a rating, separated by tabs, spaces or commas; the first line may be a header.

    These are the formats of WordSim-353, SimLex-999 and MEN. In a file of more than four columns, as SimLex's, the
    rating is the fourth.
    """
    pairs = []
    for line_number, line in enumerate(_read_lines(path), 1):
        fields = line.replace(",", "\t").split("\t") if "\t" in line or "," in line else line.split()
        if not line.strip():
            continue
        try:
            pairs.append((fields[0].strip(), fields[1].strip(), float(fields[3 if len(fields) > 4 else 2])))
        except (ValueError, IndexError):
            if line_number > 1:
                expected = f"expected two words and a number, not {line.strip()!r}"
                raise DataError(f"{path} line {line_number}: {expected}") from None
    if not pairs:
        raise DataError(f"{path} has no pairs of words")
    return pairs


def read_analogy_questions(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Read lines of four words, by section; a line such as `: capital-common-countries` starts a section."""
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
        raise DataError(f"{path} is not UTF-8 text") from None
