"""Multiple choice (SWAG, RACE, ARCT, Story Cloze) and extractive question answering (SQuAD, TriviaQA)."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from polyseme.datasets.base import DatasetReader, NamedDataset, split_files
from polyseme.errors import DataError
from polyseme.io.json import parse_json
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.multiple_choice import ChoiceExample, MultipleChoiceTask
from polyseme.tasks.readers.records import detect_record_format
from polyseme.tasks.readers.rows import Columns, JsonRow, RowFormat, RowReader, iter_row_format, lazy_rows

# cells to a text, its choices and the label
ParseFn = Callable[[dict[str, str]], tuple[str, Sequence[str], str | None]]


def _table_reader(columns: Sequence[str], label: str, parse: ParseFn) -> DatasetReader:
    """Build a reader of a table with named columns, of which unlabeled files may lack the label."""

    def build(location: str, cells: dict[str, str]) -> ChoiceExample:
        return _choice_example(location, *parse(cells))

    def read(path: Path, needs_labels: bool) -> Iterator[RowReader]:
        names = {name: name for name in (*columns, label)}
        row_format = RowFormat(names, () if needs_labels else (label,), build)
        format = detect_record_format(path, Columns()).replace("text", "tsv")
        return iter_row_format(path, Columns(), format, lambda _: row_format)

    return read


def _choice_example(location: str, text: str, choices: Sequence[str], label: str | None) -> ChoiceExample:
    if not text.strip() or not all(choice.strip() for choice in choices):
        raise DataError(f"{location}: a text or a choice is empty")
    if label is not None and label not in map(str, range(len(choices))):
        raise DataError(f"{location}: the label is {label!r}, not one of 0 to {len(choices) - 1}")
    return ChoiceExample(location, text, tuple(choices), label)


_SWAG_ENDINGS = [f"ending{i}" for i in range(4)]
_STORY = [f"InputSentence{i}" for i in range(1, 5)]
_STORY_ENDINGS = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]


def _parse_swag(cells: dict[str, str]) -> tuple[str, Sequence[str], str | None]:
    """Parse SWAG: sent1 is the text, and a choice is sent2 followed by an ending."""
    return cells["sent1"], [f"{cells['sent2']} {cells[name]}" for name in _SWAG_ENDINGS], cells.get("label")


def _parse_arct(cells: dict[str, str]) -> tuple[str, Sequence[str], str | None]:
    """Parse ARCT: reason and claim are the text, and the choices are two warrants."""
    choices = [cells["warrant0"], cells["warrant1"]]
    return f"{cells['reason']} {cells['claim']}", choices, cells.get("correctLabelW0orW1")


def _parse_story(cells: dict[str, str]) -> tuple[str, Sequence[str], str | None]:
    """Parse Story Cloze: four sentences and two endings, labeled 1 or 2."""
    label = cells.get("AnswerRightEnding")
    text, choices = " ".join(cells[name] for name in _STORY), [cells[name] for name in _STORY_ENDINGS]
    return text, choices, {"1": "0", "2": "1"}.get(label or "", label)


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
        choices = [question.replace("_", option) if has_gap else f"{question} {option}" for option in question_options]
        label = None if answer is None else str("ABCD".find(answer) if answer else -1)
        yield _choice_example(location, row.get("article"), choices, label)


_SWAG = _table_reader(["sent1", "sent2", *_SWAG_ENDINGS], "label", _parse_swag)
_ARCT = _table_reader(["warrant0", "warrant1", "reason", "claim"], "correctLabelW0orW1", _parse_arct)
_STORY_CLOZE = _table_reader([*_STORY, *_STORY_ENDINGS], "AnswerRightEnding", _parse_story)
_STORY_FILES = {
    "train": "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
    "dev": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
}
_STORY_NAMES = {"train": ("cloze_test_val__spring2016*.csv",), "dev": ("cloze_test_test__spring2016*.csv",)}
_SHIFTS_FILES = {"train": "new_wiki_v1.0.json", "dev": "nyt_v1.0.json", "test": "amazon_reviews_v1.0.json"}
_QA = "which words of the text answer the question?"
_SQUAD_FILES, _SQUAD_2_FILES = (split_files(f"{{}}-v{version}.json", "train", "dev") for version in ("1.1", "2.0"))
_TRIVIAQA_FILES = split_files("squad-wikipedia-{}-4096.json")
_choice = partial(NamedDataset, MultipleChoiceTask, "accuracy")
_question = partial(NamedDataset, ExtractiveQATask, "f1", format=Columns())
DATASETS: dict[str, NamedDataset] = {
    "swag": _choice("how does the scene continue?", "swag", _SWAG, split_files("{}.csv", dev="val")),
    "race": _choice("which option is correct, according to the article?", "RACE", _read_race, split_files("{}")),
    "arct": _choice("which warrant connects the reason to the claim?", "arct", _ARCT, split_files("{}-full.txt")),
    "story-cloze": _choice(
        "which ending is correct?", "story_cloze", _STORY_CLOZE, _STORY_FILES, other_names=_STORY_NAMES
    ),
    "squad/1.1": _question(_QA, "squad", splits=_SQUAD_FILES),
    "squad/2.0": _question(f"{_QA} Or is there no answer?", "squad", splits=_SQUAD_2_FILES),
    "squad-shifts": _question(f"{_QA} Trained on Wikipedia, evaluated on news", "squad-shifts", splits=_SHIFTS_FILES),
    "triviaqa": _question(f"{_QA} In SQuAD's format", "triviaqa", splits=_TRIVIAQA_FILES),
}
