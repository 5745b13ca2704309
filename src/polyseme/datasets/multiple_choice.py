"""Multiple choice (SWAG, RACE, ARCT, Story Cloze) and extractive question answering (SQuAD, TriviaQA)."""

from __future__ import annotations

import csv
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from polyseme.datasets.base import JsonRow, NamedDataset, task_reader
from polyseme.errors import DataError, suggest
from polyseme.io.json import parse_json
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import ChoiceExample, MultipleChoiceTask
from polyseme.tasks.readers.rows import RowReader, lazy_rows, read_lines


def _read_table(path: Path, is_csv: bool, required_columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location and cells by column name of each row of a CSV or tab-separated file; {} if malformed."""
    lines = read_lines(path)
    reader = (
        csv.reader((line + "\n" for line in lines), strict=True) if is_csv else (line.split("\t") for line in lines)
    )
    line_number = 1
    header: list[str] = []
    try:
        for line_number, cells in enumerate(reader, 1):
            location = f"{path}:{reader.line_num if is_csv else line_number}"  # type: ignore[union-attr]
            if not header:
                header = cells
                for column in required_columns:
                    if column not in header:
                        raise DataError(f"{location}: there is no column {column!r}; {suggest(column, header)}")
            elif len(cells) != len(header):
                yield location, {}
            else:
                yield location, dict(zip(header, cells))
    except csv.Error as error:
        raise DataError(f"{path}:{line_number}: not valid CSV: {error}") from None


def _choice_example(
    location: str, row: dict[str, str], text: str, choices: tuple[str, ...], label: str | None
) -> ChoiceExample:
    if not row:
        raise DataError(f"{location}: another number of columns than in the first line")
    if not text.strip() or not all(choice.strip() for choice in choices):
        raise DataError(f"{location}: a text or a choice is empty")
    if label is not None and label not in map(str, range(len(choices))):
        raise DataError(f"{location}: the label is {label!r}, not one of 0 to {len(choices) - 1}")
    return ChoiceExample(location, text, choices, label)


def _read_swag(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read SWAG: sent1 is the text, and a choice is sent2 followed by an ending."""
    endings = [f"ending{i}" for i in range(4)]
    required_columns = ["sent1", "sent2", *endings, *(["label"] if needs_labels else [])]
    for location, row in _read_table(path, True, required_columns):
        choices = tuple(f"{row['sent2']} {row[name]}" for name in endings) if row else ()
        yield partial(_choice_example, location, row, row.get("sent1", ""), choices, row.get("label"))


def _read_arct(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read ARCT: reason and claim are the text, and the choices are two warrants."""
    required_columns = ["warrant0", "warrant1", "reason", "claim", *(["correctLabelW0orW1"] if needs_labels else [])]
    for location, row in _read_table(path, False, required_columns):
        choices = (row.get("warrant0", ""), row.get("warrant1", ""))
        text = f"{row.get('reason', '')} {row.get('claim', '')}"
        yield partial(_choice_example, location, row, text, choices, row.get("correctLabelW0orW1"))


def _read_story_cloze(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read Story Cloze: four sentences and two endings, labeled 1 or 2."""
    sentence_columns = [f"InputSentence{i}" for i in range(1, 5)]
    ending_columns = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]
    for location, row in _read_table(
        path, True, [*sentence_columns, *ending_columns, *(["AnswerRightEnding"] if needs_labels else [])]
    ):
        label = {"1": "0", "2": "1"}.get(row.get("AnswerRightEnding", ""), row.get("AnswerRightEnding"))
        text = " ".join(row.get(name, "") for name in sentence_columns)
        yield partial(_choice_example, location, row, text, tuple(row.get(name, "") for name in ending_columns), label)


def _read_race(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read RACE: one JSON file per article, in folders (middle, high) or in the distributed archive."""
    for location, content in _iter_articles(path):
        yield from lazy_rows(_race_examples, JsonRow(location, parse_json(content, location), needs_labels))


def _iter_articles(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".json")):
            yield str(file), file.read_bytes()
        return
    archives = sorted(p for p in path.parent.glob("*") if p.name.lower().startswith("race.tar"))
    if not archives:
        raise DataError(f"there is neither a folder {path} nor race.tar.gz beside it")
    with tarfile.open(archives[0]) as archive:
        # read all before yielding: a compressed archive can only be read from front to back
        articles = [
            (member.name, stream.read())
            for member in archive
            if path.name in Path(member.name).parts[:-1] and (stream := archive.extractfile(member))
        ]
    for name, content in sorted(articles):
        yield f"{archives[0]}, {name}", content


def _race_examples(row: JsonRow) -> Iterator[ChoiceExample]:
    """Yield an example per question; a choice is the question with an option in its gap (`_`) or appended."""
    questions, options = row.get("questions", list), row.get("options", list)
    answers = row.get("answers", list) if row.needs_labels or "answers" in row.values else [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise DataError(f"{row.location}: {len(questions)} questions, {len(options)} lists of options")
    for i, (question, question_options, answer) in enumerate(zip(questions, options, answers)):
        location = f"{row.location}, question {i}"
        has_gap = question.count("_") == 1
        choices = tuple(
            question.replace("_", option) if has_gap else f"{question} {option}" for option in question_options
        )
        label = None if answer is None else str("ABCD".find(answer) if answer else -1)
        yield _choice_example(location, {"question": question}, row.get("article"), choices, label)


_SQUAD_SHIFTS_FILES = {"train": "new_wiki_v1.0.json", "dev": "nyt_v1.0.json", "test": "amazon_reviews_v1.0.json"}
_TRIVIAQA_FILES = {name: f"squad-wikipedia-{name}-4096.json" for name in ("train", "dev", "test")}
_QA_READER = task_reader(ExtractiveQATask)
_QA_DESCRIPTION = "which words of the text answer the question?"
DATASETS: dict[str, NamedDataset] = {
    "swag": NamedDataset(
        MultipleChoiceTask,
        "accuracy",
        "how does the scene continue?",
        "swag",
        _read_swag,
        {"train": "train.csv", "dev": "val.csv", "test": "test.csv"},
    ),
    "race": NamedDataset(
        MultipleChoiceTask,
        "accuracy",
        "which option is correct, according to the article?",
        "RACE",
        _read_race,
        {"train": "train", "dev": "dev", "test": "test"},
    ),
    "arct": NamedDataset(
        MultipleChoiceTask,
        "accuracy",
        "which warrant connects the reason to the claim?",
        "arct",
        _read_arct,
        {"train": "train-full.txt", "dev": "dev-full.txt", "test": "test-full.txt"},
    ),
    "story-cloze": NamedDataset(
        MultipleChoiceTask,
        "accuracy",
        "which ending is correct?",
        "story_cloze",
        _read_story_cloze,
        {
            "train": "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
            "dev": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
        },
    ),
    "squad/1.1": NamedDataset(
        ExtractiveQATask,
        "f1",
        _QA_DESCRIPTION,
        "squad",
        _QA_READER,
        {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
    ),
    "squad/2.0": NamedDataset(
        ExtractiveQATask,
        "f1",
        f"{_QA_DESCRIPTION} Or is there no answer?",
        "squad",
        _QA_READER,
        {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
    ),
    "squad-shifts": NamedDataset(
        ExtractiveQATask,
        "f1",
        f"{_QA_DESCRIPTION} Trained on Wikipedia, evaluated on news",
        "squad-shifts",
        _QA_READER,
        _SQUAD_SHIFTS_FILES,
    ),
    "triviaqa": NamedDataset(
        ExtractiveQATask, "f1", f"{_QA_DESCRIPTION} In SQuAD's format", "triviaqa", _QA_READER, _TRIVIAQA_FILES
    ),
}
