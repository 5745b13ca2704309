"""Questions whose answer is a span of a text, in the JSON format of SQuAD 1.1 and 2.0."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError, suggest
from polyseme.io.compression import read_decompressed
from polyseme.tasks.readers.rows import RowReader

GoldAnswer = tuple[str, int]  # a text, and the character where it starts in its context; -1 if unknown
Build = Callable[[str, str, str, tuple[GoldAnswer, ...] | None, str], Any]  # location, context, question, answers, id


def iter_questions(path: Path, needs_labels: bool, build: Build) -> Iterator[RowReader]:
    """Yield readers of the questions of a file. Errors name the id of the question instead of a line."""
    try:
        content = json.loads(b"".join(read_decompressed(path)).decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: malformed JSON: {error}") from None
    for i, article in enumerate(_list(content, "data", str(path))):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{path}, data {i}")):
            location = f"{path}, data {i}, paragraph {j}"
            context = _text(paragraph, "context", location)
            for question in _list(paragraph, "qas", location):
                yield partial(_question, location, context, question, needs_labels, build)


def _question(location: str, context: str, record: Any, needs_labels: bool, build: Build) -> Any:
    id_ = str(_get(record, "id", location))
    location = f"{location}, question {id_}"
    question = _text(record, "question", location)
    answers: tuple[GoldAnswer, ...] | None = None
    if record.get("is_impossible") is True:
        answers = ()
    elif "answers" in record:
        answers = tuple(_answer(answer, location) for answer in _list(record, "answers", location))
    if (answers == () and "is_impossible" not in record) or (needs_labels and answers is None):
        if needs_labels:
            raise DataError(f"{location}: it has no answer and is not marked as impossible (is_impossible)")
        answers = None
    return build(location, context, question, answers, id_)


def _answer(record: Any, location: str) -> GoldAnswer:
    text, start = _get(record, "text", location), record.get("answer_start", -1)
    if not isinstance(text, str) or not isinstance(start, int):
        raise DataError(f"{location}: the answer is {str(record)[:60]!r}, not a text and its first character")
    return text, start


def _get(record: Any, key: str, location: str) -> Any:
    if not isinstance(record, dict):
        raise DataError(f"{location}: expected a JSON object, found {str(record)[:40]!r}")
    if key not in record:
        raise DataError(f"{location}: there is no key {key!r}; {suggest(key, record)}")
    return record[key]


def _text(record: Any, key: str, location: str) -> str:
    value = _get(record, key, location)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{location}: the {key} is {str(value)[:40]!r}, not a text")
    return value


def _list(record: Any, key: str, location: str) -> list[Any]:
    value = _get(record, key, location)
    if not isinstance(value, list):
        raise DataError(f"{location}: {key} is {str(value)[:40]!r}, not a list")
    return value
