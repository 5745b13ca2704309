"""Semantic roles: tagging with one word marked, the predicate. Its arguments as brackets in a column, as CoNLL-2005 and
CoNLL-2012 write them, and what they are worth, as the CoNLL-2005 script srl-eval counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from polyseme.errors import UserError
from polyseme.nn.heads.tag_schemes import chunks
from polyseme.tasks.examples import Example

CELL = re.compile(r"((?:\([^*()\s]+)*)\*((?:[^*()\s]*\))*)")  # "(A0*", "*", "*)", "(V*)"; of old, "*A0)"
Argument = tuple[str, tuple[tuple[int, int], ...]]  # a role, and the stretches of words that have it


def tags_of(cells: Sequence[str], where: Sequence[str]) -> tuple[str, ...]:
    """A column of brackets as B, I and O. Tags cannot say one argument inside another, which is an error here."""
    tags, inside = [], ""
    for cell, place in zip(cells, where, strict=True):
        found = CELL.fullmatch(cell)
        if found is None:
            raise UserError(f"{place}: {cell[:40]!r} is no argument: one is written (A0* … *), or * for none")
        opened, closed = re.findall(r"[^(]+", found[1]), found[2].count(")")
        if len(opened) + bool(inside) > 1:
            raise UserError(f"{place}: {cell[:40]!r} opens an argument inside another")
        tags.append(f"B-{opened[0]}" if opened else f"I-{inside}" if inside else "O")
        inside = opened[0] if opened else inside
        if closed > bool(inside):
            raise UserError(f"{place}: {cell[:40]!r} closes an argument that is not open")
        inside = "" if closed else inside
    if inside:
        raise UserError(f"{where[-1]}: the argument {inside} is never closed")
    return tuple(tags)


def cells_of(tags: Sequence[str]) -> list[str]:
    """The reverse of `tags_of`."""
    opens, closes = {}, set()
    for role, first, last in chunks(tags):
        opens[first] = role
        closes.add(last)
    return [(f"({opens[i]}" if i in opens else "") + "*" + (")" if i in closes else "") for i in range(len(tags))]


def arguments(tags: Sequence[str | None]) -> set[Argument]:
    """All but the predicate itself (V). A stretch C-X goes on with the last argument X before it; without one it is an
    argument X of its own."""
    found: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}
    for role, first, last in sorted(chunks([tag or "O" for tag in tags]), key=lambda chunk: chunk[1]):
        name = role.removeprefix("C-")
        if name == role or name not in latest:
            latest[name] = []
            found.append((name, latest[name]))
        latest[name].append((first, last))
    return {(role, tuple(stretches)) for role, stretches in found if role != "V"}


def role_scores(examples: Sequence[Example], said: Sequence[Any]) -> dict[str, float]:
    """Precision, recall and F1 of arguments, right if role and all stretches are; and the share of predicates of which
    every argument is."""
    right = found = wanted = perfect = 0
    for example, tags in zip(examples, said, strict=True):
        true, guess = arguments(example.tags or ()), arguments(tags)
        right, found, wanted = right + len(true & guess), found + len(guess), wanted + len(true)
        perfect += true == guess
    return {
        "precision": right / max(found, 1),
        "recall": right / max(wanted, 1),
        "f1": 2 * right / max(found + wanted, 1),
        "perfect": perfect / max(len(examples), 1),
    }


def role_columns(examples: Sequence[Example], tags: Sequence[Sequence[str]], words: bool) -> str:
    """A file of columns: the words, if they are asked for, the predicates, and the arguments of each.

    Examples of one sentence stand side by side and have one place (`where`); one without a predicate has no column.
    """
    sentences = []
    for _, group in groupby(zip(examples, tags, strict=True), key=lambda pair: pair[0].where):
        asked = list(group)
        of = [(e.mark, cells_of(said)) for e, said in asked if e.mark is not None]
        of.sort(key=lambda pair: pair[0][0])
        names = {place: name for (place, name), _ in of}
        rows = [[names.get(i, "-"), *(cells[i] for _, cells in of)] for i in range(len(asked[0][0].words or ()))]
        if words:
            rows = [[re.sub(r"\s", "\u00a0", word), *row] for word, row in zip(asked[0][0].words or (), rows)]
        sentences.append("".join("\t".join(row) + "\n" for row in rows))
    return "\n".join(sentences)
