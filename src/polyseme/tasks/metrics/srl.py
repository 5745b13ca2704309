"""Semantic roles: arguments as brackets (CoNLL-2005 and CoNLL-2012), and scores as srl-eval computes them."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from polyseme.errors import DataError
from polyseme.nn.heads.tag_schemes import extract_entities
from polyseme.tasks.metrics.standard import precision_recall_f1

BRACKET_PATTERN = re.compile(r"((?:\([^*()\s]+)*)\*((?:[^*()\s]*\))*)")  # "(A0*", "*", "*)", "(V*)"; formerly "*A0)"
Argument = tuple[str, tuple[tuple[int, int], ...]]  # a role, and its spans of words


def brackets_to_tags(cells: Sequence[str], locations: Sequence[str]) -> tuple[str, ...]:
    """Convert a column of brackets to B, I and O tags; nested arguments, which tags cannot express, are an error."""
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
    """Convert B, I and O tags to a column of brackets."""
    cells = ["*"] * len(tags)
    for role, first, last in extract_entities(tags):
        cells[first] = f"({role}{cells[first]}"
        cells[last] += ")"
    return cells


def extract_arguments(tags: Sequence[str | None]) -> set[Argument]:
    """Return all arguments but the predicate itself (V).

    A span C-X continues the last argument X before it; without one it is an argument X of its own.
    """
    arguments: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}
    for role, first, last in sorted(extract_entities([tag or "O" for tag in tags]), key=itemgetter(1)):
        name = role.removeprefix("C-")
        if name == role or name not in latest:
            latest[name] = []
            arguments.append((name, latest[name]))
        latest[name].append((first, last))
    return {(role, tuple(spans)) for role, spans in arguments if role != "V"}


def srl_scores(gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Return precision, recall and F1 of arguments, correct if role and all spans are, and the share of predicates of
    which every argument is correct."""
    pairs = [(extract_arguments(a), extract_arguments(b)) for a, b in zip(gold, predicted, strict=True)]
    return precision_recall_f1(pairs) | {"perfect": sum(a == b for a, b in pairs) / max(len(pairs), 1)}


def format_props(examples: Sequence[Any], tags: Sequence[Sequence[str]], include_words: bool) -> Iterator[str]:
    """Yield the columns of each sentence: the words if `include_words`, the predicates, and the arguments of each.

    Examples of one sentence are adjacent and have the same location; one without a predicate has no column.
    """
    for _, group in groupby(zip(examples, tags, strict=True), key=lambda pair: pair[0].location):
        pairs = list(group)
        columns = [(e.predicate, tags_to_brackets(word_tags)) for e, word_tags in pairs if e.predicate is not None]
        columns.sort(key=lambda pair: pair[0][0])
        words, names = pairs[0][0].words, {place: name for (place, name), _ in columns}
        rows = [[names.get(i, "-"), *(cells[i] for _, cells in columns)] for i in range(len(words))]
        if include_words:
            rows = [[re.sub(r"\s", "\u00a0", word), *row] for word, row in zip(words, rows)]
        yield "".join("\t".join(row) + "\n" for row in rows)
