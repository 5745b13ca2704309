"""Semantic roles: tagging with one word marked, the predicate. Its arguments as brackets in a column, as CoNLL-2005 and
CoNLL-2012 write them, and what they are worth, as the CoNLL-2005 script srl-eval counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from polyseme.errors import DataError
from polyseme.nn.heads.tag_schemes import extract_entities
from polyseme.tasks.examples import Example

BRACKET_PATTERN = re.compile(r"((?:\([^*()\s]+)*)\*((?:[^*()\s]*\))*)")  # "(A0*", "*", "*)", "(V*)"; of old, "*A0)"
Argument = tuple[str, tuple[tuple[int, int], ...]]  # a role, and the stretches of words that have it


def brackets_to_tags(cells: Sequence[str], locations: Sequence[str]) -> tuple[str, ...]:
    """A column of brackets as B, I and O. Tags cannot say one argument inside another, which is an error here."""
    tags, inside = [], ""
    for cell, location in zip(cells, locations, strict=True):
        bracket_match = BRACKET_PATTERN.fullmatch(cell)
        if bracket_match is None:
            raise DataError(f"{location}: {cell[:40]!r} is no argument: one is written (A0* … *), or * for none")
        opened_roles, num_closed = re.findall(r"[^(]+", bracket_match[1]), bracket_match[2].count(")")
        if len(opened_roles) + bool(inside) > 1:
            raise DataError(f"{location}: {cell[:40]!r} opens an argument inside another")
        tags.append(f"B-{opened_roles[0]}" if opened_roles else f"I-{inside}" if inside else "O")
        inside = opened_roles[0] if opened_roles else inside
        if num_closed > bool(inside):
            raise DataError(f"{location}: {cell[:40]!r} closes an argument that is not open")
        inside = "" if num_closed else inside
    if inside:
        raise DataError(f"{locations[-1]}: the argument {inside} is never closed")
    return tuple(tags)


def tags_to_brackets(tags: Sequence[str]) -> list[str]:
    """The reverse of `brackets_to_tags`."""
    opens, closes = {}, set()
    for role, first, last in extract_entities(tags):
        opens[first] = role
        closes.add(last)
    return [(f"({opens[i]}" if i in opens else "") + "*" + (")" if i in closes else "") for i in range(len(tags))]


def extract_arguments(tags: Sequence[str | None]) -> set[Argument]:
    """All but the predicate itself (V). A stretch C-X goes on with the last argument X before it; without one it is an
    argument X of its own."""
    argument_spans: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}
    for role, first, last in sorted(extract_entities([tag or "O" for tag in tags]), key=lambda chunk: chunk[1]):
        name = role.removeprefix("C-")
        if name == role or name not in latest:
            latest[name] = []
            argument_spans.append((name, latest[name]))
        latest[name].append((first, last))
    return {(role, tuple(spans)) for role, spans in argument_spans if role != "V"}


def srl_scores(examples: Sequence[Example], predicted_tags: Sequence[Any]) -> dict[str, float]:
    """Precision, recall and F1 of arguments, right if role and all stretches are; and the share of predicates of which
    every argument is."""
    num_correct = num_predicted = num_gold = num_perfect = 0
    for example, tags in zip(examples, predicted_tags, strict=True):
        gold_arguments, predicted_arguments = extract_arguments(example.tags or ()), extract_arguments(tags)
        num_correct, num_predicted, num_gold = (
            num_correct + len(gold_arguments & predicted_arguments),
            num_predicted + len(predicted_arguments),
            num_gold + len(gold_arguments),
        )
        num_perfect += gold_arguments == predicted_arguments
    return {
        "precision": num_correct / max(num_predicted, 1),
        "recall": num_correct / max(num_gold, 1),
        "f1": 2 * num_correct / max(num_predicted + num_gold, 1),
        "perfect": num_perfect / max(len(examples), 1),
    }


def format_props(examples: Sequence[Example], tags: Sequence[Sequence[str]], include_words: bool) -> str:
    """A file of columns: the words, if they are asked for, the predicates, and the arguments of each.

    Examples of one sentence stand side by side and have one place (`where`); one without a predicate has no column.
    """
    sentences = []
    for _, group in groupby(zip(examples, tags, strict=True), key=lambda pair: pair[0].location):
        sentence_examples = list(group)
        predicate_columns = [
            (e.predicate, tags_to_brackets(word_tags)) for e, word_tags in sentence_examples if e.predicate is not None
        ]
        predicate_columns.sort(key=lambda pair: pair[0][0])
        names = {place: name for (place, name), _ in predicate_columns}
        rows = [
            [names.get(i, "-"), *(cells[i] for _, cells in predicate_columns)]
            for i in range(len(sentence_examples[0][0].words or ()))
        ]
        if include_words:
            rows = [
                [re.sub(r"\s", "\u00a0", word), *row] for word, row in zip(sentence_examples[0][0].words or (), rows)
            ]
        sentences.append("".join("\t".join(row) + "\n" for row in rows))
    return "\n".join(sentences)
