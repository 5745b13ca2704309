"""easy-VQA: questions about images of one colored shape, as PyPI's `easy-vqa` distributes them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset
from polyseme.errors import DataError
from polyseme.io.json import read_json
from polyseme.tasks.readers.rows import RowReader
from polyseme.tasks.visual_qa import ImageQuestion, VisualQATask


def _read_questions(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Read a list of [question, answer, number of the image]; images are in the folder next to it."""
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    questions = read_json(path)
    if not isinstance(questions, list):
        raise DataError(f"{path} is not a list of questions")
    return (partial(_parse, path, number, question) for number, question in enumerate(questions, 1))


def _parse(path: Path, number: int, question: Any) -> ImageQuestion:
    types = list(map(type, question)) if isinstance(question, list) else []
    if types != [str, str, int]:
        raise DataError(
            f"{path}:{number}: {str(question)[:60]} is not a question, an answer and the number of an image"
        )
    text, answer, image = question
    return ImageQuestion(f"{path}:{number}", text, None, answer, image=str(path.parent / "images" / f"{image}.png"))


DATASETS: dict[str, NamedDataset] = {
    "easy-vqa": NamedDataset(
        VisualQATask,
        "accuracy",
        "questions about images of one colored shape, 13 answers; its test questions are the dev examples",
        "data",
        _read_questions,
        {"train": "train/questions.json", "dev": "test/questions.json"},
    ),
}
