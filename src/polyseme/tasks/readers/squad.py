"""Questions whose answer is a stretch of a text, as SQuAD 1.1 and 2.0 distribute them: one JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.errors import UserError, nearest
from polyseme.io.files import unpacked
from polyseme.tasks.examples import Answer, Example


def squad_units(path: Path, need_labels: bool) -> Iterator[Callable[[], Example]]:
    """Each question of a file, not yet read. A question has an id, which stands where others have a line."""
    try:
        content = json.loads(b"".join(unpacked(path)).decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}{line}: malformed JSON: {error}") from None
    for i, article in enumerate(_list(content, "data", str(path))):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{path}, data {i}")):
            where = f"{path}, data {i}, paragraph {j}"
            context = _get(paragraph, "context", where)
            if not isinstance(context, str) or not context.strip():
                raise UserError(f"{where}: the context is {str(context)[:40]!r}, not a text")
            for question in _list(paragraph, "qas", where):
                yield partial(_question, where, context, question, need_labels)


def _question(where: str, context: str, asked: Any, need_labels: bool) -> Example:
    id_ = str(_get(asked, "id", where))
    where = f"{where}, question {id_}"
    question = _get(asked, "question", where)
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where} is {str(question)[:40]!r}, not a text")
    answers: tuple[Answer, ...] | None = None
    if asked.get("is_impossible") is True:
        answers = ()
    elif "answers" in asked:
        answers = tuple(_answer(given, where) for given in _list(asked, "answers", where))
    if (answers == () and "is_impossible" not in asked) or (need_labels and answers is None):
        if need_labels:
            raise UserError(f"{where}: there is no answer, and nothing says that there is none (is_impossible)")
        answers = None
    return Example(where, context, question, answers=answers, id=id_)


def _answer(given: Any, where: str) -> Answer:
    text, start = _get(given, "text", where), given.get("answer_start", -1)
    if not isinstance(text, str) or not isinstance(start, int):
        raise UserError(f"{where}: the answer is {str(given)[:60]!r}, not a text and its first character")
    return text, start


def sound_answers(example: Example) -> list[Answer]:
    """The answers that do stand where they are said to stand."""
    text = example.text or ""
    return [(said, at) for said, at in example.answers or () if said and at >= 0 and text.startswith(said, at)]


def trainable(examples: Sequence[Example]) -> list[Example]:
    """Those that say truly where their answer stands, or that there is none."""
    return [e for e in examples if not e.answers or sound_answers(e)]


def wrong_offsets(examples: Sequence[Example]) -> tuple[int, int]:
    """How many answers do not stand at their offset, and how many questions have no other."""
    wrong = sum(len(e.answers or ()) - len(sound_answers(e)) for e in examples)
    return wrong, len(examples) - len(trainable(examples))


def _get(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected a JSON object, found {str(record)[:40]!r}")
    if key not in record:
        raise UserError(f"{where}: there is no key {key!r}; {nearest(key, record)}")
    return record[key]


def _list(record: Any, key: str, where: str) -> list[Any]:
    found = _get(record, key, where)
    if not isinstance(found, list):
        raise UserError(f"{where}: {key} is {str(found)[:40]!r}, not a list")
    return found
