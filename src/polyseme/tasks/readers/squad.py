"""Questions whose answer is a stretch of a text, as SQuAD 1.1 and 2.0 distribute them: one JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError, suggest
from polyseme.io.compression import read_decompressed
from polyseme.tasks.examples import Example, GoldAnswer


def iter_questions(path: Path, needs_labels: bool) -> Iterator[Callable[[], Example]]:
    """Each question of a file, not yet read. A question has an id, which stands where others have a line."""
    try:
        content = json.loads(b"".join(read_decompressed(path)).decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: malformed JSON: {error}") from None
    for i, article in enumerate(_list(content, "data", str(path))):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{path}, data {i}")):
            location = f"{path}, data {i}, paragraph {j}"
            context = _get(paragraph, "context", location)
            if not isinstance(context, str) or not context.strip():
                raise DataError(f"{location}: the context is {str(context)[:40]!r}, not a text")
            for question in _list(paragraph, "qas", location):
                yield partial(_question, location, context, question, needs_labels)


def _question(location: str, context: str, record: Any, needs_labels: bool) -> Example:
    id_ = str(_get(record, "id", location))
    location = f"{location}, question {id_}"
    question = _get(record, "question", location)
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{location} is {str(question)[:40]!r}, not a text")
    answers: tuple[GoldAnswer, ...] | None = None
    if record.get("is_impossible") is True:
        answers = ()
    elif "answers" in record:
        answers = tuple(_answer(answer, location) for answer in _list(record, "answers", location))
    if (answers == () and "is_impossible" not in record) or (needs_labels and answers is None):
        if needs_labels:
            raise DataError(f"{location}: there is no answer, and nothing says that there is none (is_impossible)")
        answers = None
    return Example(location, context, question, answers=answers, id=id_)


def _answer(record: Any, location: str) -> GoldAnswer:
    text, start = _get(record, "text", location), record.get("answer_start", -1)
    if not isinstance(text, str) or not isinstance(start, int):
        raise DataError(f"{location}: the answer is {str(record)[:60]!r}, not a text and its first character")
    return text, start


def valid_answers(example: Example) -> list[GoldAnswer]:
    """The answers that do stand where they are said to stand."""
    text = example.text or ""
    return [
        (answer_text, start)
        for answer_text, start in example.answers or ()
        if answer_text and start >= 0 and text.startswith(answer_text, start)
    ]


def with_valid_answers(examples: Sequence[Example]) -> list[Example]:
    """Those that say truly where their answer stands, or that there is none."""
    return [e for e in examples if not e.answers or valid_answers(e)]


def count_bad_offsets(examples: Sequence[Example]) -> tuple[int, int]:
    """How many answers do not stand at their offset, and how many questions have no other."""
    num_bad = sum(len(e.answers or ()) - len(valid_answers(e)) for e in examples)
    return num_bad, len(examples) - len(with_valid_answers(examples))


def _get(record: Any, key: str, location: str) -> Any:
    if not isinstance(record, dict):
        raise DataError(f"{location}: expected a JSON object, found {str(record)[:40]!r}")
    if key not in record:
        raise DataError(f"{location}: there is no key {key!r}; {suggest(key, record)}")
    return record[key]


def _list(record: Any, key: str, location: str) -> list[Any]:
    value = _get(record, key, location)
    if not isinstance(value, list):
        raise DataError(f"{location}: {key} is {str(value)[:40]!r}, not a list")
    return value
