"""Tags that mark entities (IOB, IOBES, BILOU): which may follow which, what they mark, how broken ones are mended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

CHUNK = re.compile(r"O|[BIESLU]-.+")  # a tag of a word outside of everything, or at some place in an entity


def legal_steps(labels: Sequence[str]) -> np.ndarray:
    """Which tag may follow which, bool [n + 1, n + 1]; row and column n stand for what is around a sentence.

    I-X, E-X and L-X go on with an entity of type X. In IOBES and BILOU, which mark the end of an entity, one that was
    begun has to go on. Labels that are no tags of entities may follow each other as they like.
    """
    number = len(labels)
    found = np.ones((number + 1, number + 1), dtype=bool)
    if not all(map(CHUNK.fullmatch, labels)):
        return found
    closes = any(label[0] in "ESLU" for label in labels)
    ends = [*labels, "O"]
    for i, before in enumerate(ends):
        for j, after in enumerate(ends):
            goes_on = after[0] in "IEL"
            fits = before[0] in "BI" and before[1:] == after[1:]
            found[i, j] = fits if goes_on else not (closes and before[0] in "BI")
    return found


def broken(tags: Sequence[str]) -> int | None:
    """The place of the first tag that cannot follow the one before it, or None."""
    numbers = {tag: i for i, tag in enumerate(dict.fromkeys(tags))}
    legal = legal_steps(list(numbers))
    path = [len(numbers), *(numbers[tag] for tag in tags), len(numbers)]
    return next((i for i, step in enumerate(pairwise(path)) if not legal[step]), None)


def chunks(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first word, last word) of each entity, for IOB1, IOB2, IOBES and BILOU alike.

    conlleval's rules for where one ends and the next starts come to one: two words belong together unless
    their types differ, the first one ends an entity (E, S) or the second one begins one (B, S).
    """
    found = set()
    start, before, kind = -1, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, type_ = tag.partition("-")
        if start >= 0 and (type_ != kind or before in "ESLU" or mark in "BSUO"):
            found.add((kind, start, i - 1))
            start = -1
        if mark != "O" and start < 0:
            start = i
        before, kind = mark, type_
    return found


def mended(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The tags of a whole file, broken sentences written anew: the same entities, as `chunks` reads them.

    In IOB1 every entity begins with I, and B is only for one that touches another of its type; such files are as they
    should be.
    """
    kinds = {tag for tags in sentences for tag in tags}
    found = [tuple(tags) for tags in sentences]
    if not all(map(CHUNK.fullmatch, kinds)) or _is_iob1(sentences):
        return found
    marks = {tag[0] for tag in kinds}
    end, single = ("L", "U") if marks & set("LU") else ("E", "S") if marks & set("ES") else ("I", "B")
    for i, tags in enumerate(sentences):
        if broken(tags) is not None:
            new = ["O"] * len(tags)
            for kind, first, last in chunks(tags):
                new[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
                new[first], new[last] = f"B-{kind}", f"{end}-{kind}"
                if first == last:
                    new[first] = f"{single}-{kind}"
            found[i] = tuple(new)
    return found


def _is_iob1(sentences: Sequence[Sequence[str]]) -> bool:
    steps = [step for tags in sentences for step in zip(("O", *tags), tags)]
    return not any(after[0] in "ESLU" or (after[0] == "B" and before[1:] != after[1:]) for before, after in steps)
