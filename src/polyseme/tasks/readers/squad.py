"""Questions whose answer is a span of a text, in the JSON format of SQuAD 1.1 and 2.0."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import DataError
from polyseme.io.compression import read_decompressed
from polyseme.io.json import parse_json
from polyseme.tasks.base import Example
from polyseme.tasks.readers.rows import JsonRow, RowReader, parse_text, value_or_raise

GoldAnswer = tuple[str, int]  # a text, and the character where it starts in its context; -1 if unknown


@dataclass(frozen=True)
class QuestionExample(Example):
    """A question about a text; an empty tuple of answers means that the text has none."""

    context: str
    question: str
    answers: tuple[GoldAnswer, ...] | None = None
    id: str = ""

    @property
    def gold(self) -> tuple[str, ...] | None:
        return None if self.answers is None else tuple(text for text, _ in self.answers)

    @property
    def valid_answers(self) -> list[GoldAnswer]:
        """The answers that the context has at their offset."""
        answers = self.answers or ()
        return [(text, at) for text, at in answers if text and at >= 0 and self.context.startswith(text, at)]

    @property
    def is_trainable(self) -> bool:
        """Whether the offset of an answer is correct, or there is no answer to find."""
        return not self.answers or bool(self.valid_answers)

    @property
    def char_span(self) -> tuple[int, int] | None:
        """The characters of the first valid answer; (0, 0) if there is none to find."""
        if self.answers == ():
            return (0, 0)
        return next(((start, start + len(text)) for text, start in self.valid_answers), None)


def iter_questions(path: Path, needs_labels: bool) -> Iterator[RowReader]:
    """Yield readers of the questions of a file. Errors name the id of the question instead of a line."""
    data = b"".join(read_decompressed(path))
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of the syntax, the encoding, or an integer of too many digits
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: malformed JSON: {error}") from None
    for article in JsonRow(str(path), content, needs_labels).children("data"):
        for paragraph in _children_or_error(article, "paragraphs"):
            yield from _iter_paragraph(paragraph)


def _children_or_error(row: JsonRow, name: str) -> list[JsonRow | DataError]:
    """Return the objects of a nested list; or the error, so that a bad part of a file can be skipped."""
    try:
        return [*row.children(name)]
    except DataError as error:
        return [error]


def _iter_paragraph(paragraph: JsonRow | DataError) -> Iterator[RowReader]:
    try:
        context = value_or_raise(paragraph).get("context")
    except DataError as error:
        yield partial(value_or_raise, error)
        return
    for question in _children_or_error(value_or_raise(paragraph), "qas"):
        yield partial(_parse_question, context, question)


def _parse_question(context: str, row_or_error: JsonRow | DataError) -> QuestionExample:
    row: JsonRow = value_or_raise(row_or_error)
    id_ = str(row.get("id", object))
    row = replace(row, location=f"{row.location}, question {id_}")
    question = row.get("question")
    answers: tuple[GoldAnswer, ...] | None = None
    if row.values.get("is_impossible") is True:
        answers = ()
    elif "answers" in row.values:
        answers = tuple(map(_parse_answer, row.children("answers")))
    if (answers == () and "is_impossible" not in row.values) or (row.needs_labels and answers is None):
        if row.needs_labels:
            raise DataError(f"{row.location}: it has no answer and is not marked as impossible (is_impossible)")
        answers = None
    return QuestionExample(row.location, context, question, answers, id_)


def _parse_answer(row: JsonRow) -> GoldAnswer:
    text, start = row.get("text", object), row.values.get("answer_start", -1)
    if not isinstance(text, str) or not isinstance(start, int):
        raise DataError(f"{row.location}: the answer is {str(row.values)[:60]!r}, not a text and its first character")
    return text, start


def parse_answers(value: Any, context: str, location: str, name: str) -> tuple[GoldAnswer, ...] | None:
    """Return the answers in a record, None if there are none: texts, or objects with `text` and `answer_start`.

    They may also be one object with a list of each, as `datasets` stores SQuAD. A text without a start is looked up in
    the context.
    """
    if isinstance(value, str):  # a cell of a table
        value = parse_json(value, location) if value.startswith("[") else [value] if value.strip() else None
    elif isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        value = [texts] if isinstance(texts, str) else texts
        if isinstance(value, list) and isinstance(starts, list) and len(starts) == len(value):
            value = [{"text": text, "answer_start": start} for text, start in zip(value, starts)]
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise DataError(f"{location}: {name} is {str(value)[:40]!r}, not a list of texts")
    answers = []
    for i, element in enumerate(value):
        text, start = element, None
        if isinstance(element, Mapping):
            text, start = element.get("text"), element.get("answer_start")
        text = parse_text(text, location, f"{name}[{i}]")
        if start is not None and not isinstance(start, int):
            raise DataError(
                f"{location}: answer_start of {name}[{i}] is {str(start)[:40]!r}, not a number of characters"
            )
        answers.append((text, context.find(text) if start is None else start))
    return tuple(answers)
