"""Multiple choice: SWAG, RACE, argument reasoning, story endings; and questions answered in a text."""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from polyseme.datasets.base import DataSet, Row, each
from polyseme.errors import UserError, nearest
from polyseme.io.files import parse_json
from polyseme.tasks.examples import Example, Unit, read_lines
from polyseme.tasks.readers.squad import squad_units


def _table(path: Path, commas: bool, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows by the names in the header, each with where it stands; quoted CSV, or tabs."""
    lines = read_lines(path)
    reader = (
        csv.reader((line + "\n" for line in lines), strict=True) if commas else (line.split("\t") for line in lines)
    )
    number = 1
    header: list[str] = []
    try:
        for number, cells in enumerate(reader, 1):
            where = f"{path}:{reader.line_num if commas else number}"  # type: ignore[union-attr]
            if not header:
                header = cells
                for name in names:
                    if name not in header:
                        raise UserError(f"{where}: there is no column {name!r}; {nearest(name, header)}")
            elif len(cells) != len(header):
                yield where, {}
            else:
                yield where, dict(zip(header, cells))
    except csv.Error as error:
        raise UserError(f"{path}:{number}: not valid CSV: {error}") from None


def _choice(where: str, cells: dict[str, str], text: str, choices: tuple[str, ...], label: str | None) -> Example:
    if not cells:
        raise UserError(f"{where}: another number of columns than in the first line")
    if not text.strip() or not all(choice.strip() for choice in choices):
        raise UserError(f"{where}: a text or a choice is empty")
    if label is not None and label not in map(str, range(len(choices))):
        raise UserError(f"{where}: the label is {label!r}, not one of 0 to {len(choices) - 1}")
    return Example(where, text, label=label, choices=choices)


def _swag(path: Path, need_labels: bool) -> Iterator[Unit]:
    """sent1 is the text; an ending goes on where sent2 has begun."""
    endings = [f"ending{i}" for i in range(4)]
    needed = ["sent1", "sent2", *endings, *(["label"] if need_labels else [])]
    for where, row in _table(path, True, needed):
        choices = tuple(f"{row['sent2']} {row[name]}" for name in endings) if row else ()
        yield partial(_choice, where, row, row.get("sent1", ""), choices, row.get("label"))


def _arct(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Reason and claim are the text; which of two warrants lets the claim follow?"""
    needed = ["warrant0", "warrant1", "reason", "claim", *(["correctLabelW0orW1"] if need_labels else [])]
    for where, row in _table(path, False, needed):
        choices = (row.get("warrant0", ""), row.get("warrant1", ""))
        text = f"{row.get('reason', '')} {row.get('claim', '')}"
        yield partial(_choice, where, row, text, choices, row.get("correctLabelW0orW1"))


def _story(path: Path, need_labels: bool) -> Iterator[Unit]:
    """Four sentences and two endings; the right one is 1 or 2."""
    names = [f"InputSentence{i}" for i in range(1, 5)]
    ends = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]
    for where, row in _table(path, True, [*names, *ends, *(["AnswerRightEnding"] if need_labels else [])]):
        right = {"1": "0", "2": "1"}.get(row.get("AnswerRightEnding", ""), row.get("AnswerRightEnding"))
        text = " ".join(row.get(name, "") for name in names)
        yield partial(_choice, where, row, text, tuple(row.get(name, "") for name in ends), right)


def _race(path: Path, need_labels: bool) -> Iterator[Unit]:
    """One JSON an article, in folders (middle, high) or in the archive as it is distributed."""
    for name, data in _articles(path):
        yield from each(_article, Row(name, parse_json(data, name), need_labels))


def _articles(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".json")):
            yield str(file), file.read_bytes()
        return
    archives = sorted(p for p in path.parent.glob("*") if p.name.lower().startswith("race.tar"))
    if not archives:
        raise UserError(f"there is neither a folder {path} nor race.tar.gz beside it")
    with tarfile.open(archives[0]) as archive:
        # all of them before the first is given: what is packed can only be read from front to end
        held = [
            (member.name, inner.read())
            for member in archive
            if path.name in Path(member.name).parts[:-1] and (inner := archive.extractfile(member))
        ]
    for name, data in sorted(held):
        yield f"{archives[0]}, {name}", data


def _article(row: Row) -> Iterator[Example]:
    """The article is the text; a choice is the question with an option, in its gap (`_`) or behind it."""
    questions, options = row.get("questions", list), row.get("options", list)
    answers = row.get("answers", list) if row.need_labels or "answers" in row.values else [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise UserError(f"{row.where}: {len(questions)} questions, {len(options)} lists of options")
    for i, (question, given, answer) in enumerate(zip(questions, options, answers)):
        where = f"{row.where}, question {i}"
        gap = question.count("_") == 1
        choices = tuple(question.replace("_", option) if gap else f"{question} {option}" for option in given)
        label = None if answer is None else str("ABCD".find(answer) if answer else -1)
        yield _choice(where, {"question": question}, row.get("article"), choices, label)


_SHIFTS = {"train": "new_wiki_v1.0.json", "dev": "nyt_v1.0.json", "test": "amazon_reviews_v1.0.json"}
_TRIVIA = {name: f"squad-wikipedia-{name}-4096.json" for name in ("train", "dev", "test")}
_ANSWER = "which words of the text answer the question?"
SETS: dict[str, DataSet] = {
    "swag": DataSet(
        "choice",
        "accuracy",
        "how does the scene go on?",
        "swag",
        _swag,
        {"train": "train.csv", "dev": "val.csv", "test": "test.csv"},
    ),
    "race": DataSet(
        "choice",
        "accuracy",
        "which option is right, by the article?",
        "RACE",
        _race,
        {"train": "train", "dev": "dev", "test": "test"},
    ),
    "arct": DataSet(
        "choice",
        "accuracy",
        "which warrant lets the claim follow from the reason?",
        "arct",
        _arct,
        {"train": "train-full.txt", "dev": "dev-full.txt", "test": "test-full.txt"},
    ),
    "story-cloze": DataSet(
        "choice",
        "accuracy",
        "which ending is right?",
        "story_cloze",
        _story,
        {
            "train": "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
            "dev": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
        },
    ),
    "squad/1.1": DataSet(
        "span", "f1", _ANSWER, "squad", squad_units, {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}
    ),
    "squad/2.0": DataSet(
        "span",
        "f1",
        f"{_ANSWER} Or is there no answer?",
        "squad",
        squad_units,
        {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
    ),
    "squad-shifts": DataSet(
        "span", "f1", f"{_ANSWER} Learnt on Wikipedia, measured on news", "squad-shifts", squad_units, _SHIFTS
    ),
    "triviaqa": DataSet("span", "f1", f"{_ANSWER} In SQuAD's form", "triviaqa", squad_units, _TRIVIA),
}
