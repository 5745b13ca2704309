"""SuperGLUE (Wang et al. 2019b): JSON lines, one task of each kind; and Word in Context as it was first distributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyseme.datasets.base import DataSet, Row, json_lines
from polyseme.errors import UserError
from polyseme.tasks.examples import Example, Unit, read_lines
from polyseme.tasks.metrics.standard import question_scores

PARTS = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
CAUSES = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _pair(first: str, second: str) -> Any:
    def make(row: Row) -> list[Example]:
        return [Example(row.where, row.get(first), row.get(second), label=row.label(), id=row.id())]

    return make


def _copa(row: Row) -> list[Example]:
    asked = row.get("question")
    if asked not in CAUSES:
        raise UserError(f"{row.where}: question is {asked!r}, neither cause nor effect")
    choices = (row.get("choice1"), row.get("choice2"))
    return [
        Example(row.where, f"{row.get('premise')} {CAUSES[asked]}", label=row.label(), choices=choices, id=row.id())
    ]


def _multirc(row: Row) -> Iterator[Example]:
    """A pair for each answer of each question: the passage, then question and answer. The id is that of passage,
    question and answer."""
    passage = row.inner("passage")
    text = passage.get("text")
    for question in passage.rows("questions"):
        asked = question.get("question")
        for answer in question.rows("answers"):
            both = f"{asked} {answer.get('text')}"
            id_ = f"{row.id()}-{question.id()}-{answer.id()}"
            yield Example(answer.where, text, both, label=answer.label(), id=id_)


def _multirc_extra(examples: Sequence[Example], said: Sequence[Any]) -> dict[str, float]:
    """The share of questions of which every answer is judged rightly; `f1` is over all answers (F1a)."""
    right: dict[str, bool] = {}
    for example, label in zip(examples, said, strict=True):
        question = example.id.rpartition("-")[0]
        right[question] = right.get(question, True) and label == example.label
    return {"exact": sum(right.values()) / max(len(right), 1)}


def _record(row: Row) -> Iterator[Example]:
    """A choice for each query among the entities of the passage. Any whose text is among the answers is right; the
    first of them is what is learnt."""
    passage = row.inner("passage")
    text = passage.get("text")
    spans = [(e.get("start", int), e.get("end", int)) for e in passage.rows("entities")]
    names = tuple(dict.fromkeys(text[start : end + 1] for start, end in spans))
    for asked in row.rows("qas"):
        query = asked.get("query")
        if "@placeholder" not in query:
            raise UserError(f"{asked.where}: there is no @placeholder in the query")
        golds: tuple[str, ...] = ()
        if row.need_labels or "answers" in asked.values:
            golds = tuple(dict.fromkeys(a.get("text") for a in asked.rows("answers")))
        label = next((str(i) for i, name in enumerate(names) if name in golds), None)
        if row.need_labels and label is None:
            raise UserError(f"{asked.where}: no entity of the passage is an answer")
        both = f"{text.replace('@highlight', '')} {query}"
        yield Example(asked.where, both, label=label, choices=names, accepted=golds, id=asked.id())


def _record_extra(examples: Sequence[Example], said: Sequence[Any]) -> dict[str, float]:
    """Exact and F1 of the entity, the best over a query's answers, by SQuAD's rules."""
    texts = [(e.choices or ())[int(i)] for e, i in zip(examples, said, strict=True)]
    exact, f1 = question_scores([e.accepted for e in examples], texts)
    return {"exact": float(exact.mean()), "f1": float(f1.mean())}


def _wic(row: Row) -> list[Example]:
    text = f"{row.get('word')}: {row.get('sentence1')}"
    return [Example(row.where, text, row.get("sentence2"), label=row.label(), id=row.id())]


def _wsc(row: Row) -> list[Example]:
    """The text with the pronoun between stars, and what it may stand for."""
    target = row.inner("target")
    words = row.get("text").split(" ")
    at, said = target.get("span2_index", int), target.get("span2_text")
    size = len(said.split(" "))
    if not 0 <= at <= len(words) - size:
        raise UserError(f"{row.where}: span2_index is {at}, and the text has {len(words)} words")
    marked = [*words[:at], "*", *words[at : at + size], "*", *words[at + size :]]
    return [Example(row.where, " ".join(marked), target.get("span1_text"), label=row.label(), id=row.id())]


def _wic_lines(path: Path, need_labels: bool) -> Iterator[Unit]:
    """word, part of speech, places, two sentences; T or F stand in a file of their own."""
    rows = read_lines(path)
    gold: list[str | None] = [None] * len(rows)
    if need_labels:
        other = path.with_name(path.name.replace(".data.", ".gold."))
        gold = [*read_lines(other)]
        if len(gold) != len(rows):
            raise UserError(f"{path} has {len(rows)} lines, but {other} has {len(gold)}")
    for number, (line, label) in enumerate(zip(rows, gold), 1):
        yield partial(_wic_line, f"{path}:{number}", line, label)


def _wic_line(where: str, line: str, label: str | None) -> Example:
    cells = line.split("\t")
    if len(cells) != 5:
        raise UserError(f"{where}: {len(cells)} columns, not 5")
    if label is not None and label not in ("T", "F"):
        raise UserError(f"{where}: the label is {label!r}, neither T nor F")
    return Example(where, f"{cells[0]}: {cells[3]}", cells[4], label=label)


def _set(kind: Any, metric: str, about: str, folder: str, make: Any, extra: Any = None) -> DataSet:
    return DataSet(kind, metric, about, folder, json_lines(make), PARTS, extra)


FOLLOWS = "does the second text follow from the first?"
SETS: dict[str, DataSet] = {
    "superglue/boolq": _set(
        "pair", "accuracy", "is the answer yes, by the passage?", "BoolQ", _pair("passage", "question")
    ),
    "superglue/cb": _set("pair", "macro_f1", FOLLOWS, "CB", _pair("premise", "hypothesis")),
    "superglue/copa": _set("choice", "accuracy", "which is the likelier cause or effect?", "COPA", _copa),
    "superglue/multirc": _set(
        "pair", "f1", "is this one of the right answers, by the passage?", "MultiRC", _multirc, _multirc_extra
    ),
    "superglue/record": _set(
        "choice", "f1", "which of the passage's entities is missing?", "ReCoRD", _record, _record_extra
    ),
    "superglue/rte": _set("pair", "accuracy", FOLLOWS, "RTE", _pair("premise", "hypothesis")),
    "superglue/wic": _set("pair", "accuracy", "does the word mean the same in both sentences?", "WiC", _wic),
    "superglue/wsc": _set("pair", "accuracy", "does the pronoun stand for this?", "WSC", _wsc),
    "wic": DataSet(
        "pair",
        "accuracy",
        "does the word mean the same in both sentences?",
        "wic",
        _wic_lines,
        {name: f"{name}/{name}.data.txt" for name in ("train", "dev", "test")},
    ),
}
