"""Tags that mark entities (IOB, IOBES, BILOU): which may follow which, what they mark, how broken ones are mended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

TAG_PATTERN = re.compile(r"O|[BIESLU]-.+")  # a tag of a word outside of everything, or at some place in an entity


def allowed_transitions(labels: Sequence[str]) -> np.ndarray:
    """Which tag may follow which, bool [n + 1, n + 1]; row and column n stand for what is around a sentence.

    I-X, E-X and L-X go on with an entity of type X. In IOBES and BILOU, which mark the end of an entity, one that was
    begun has to go on. Labels that are no tags of entities may follow each other as they like.
    """
    num_labels = len(labels)
    allowed = np.ones((num_labels + 1, num_labels + 1), dtype=bool)
    if not all(map(TAG_PATTERN.fullmatch, labels)):
        return allowed
    marks_ends = any(label[0] in "ESLU" for label in labels)
    states = [*labels, "O"]
    for i, previous in enumerate(states):
        for j, following in enumerate(states):
            continues = following[0] in "IEL"
            matches = previous[0] in "BI" and previous[1:] == following[1:]
            allowed[i, j] = matches if continues else not (marks_ends and previous[0] in "BI")
    return allowed


def first_invalid(tags: Sequence[str]) -> int | None:
    """The place of the first tag that cannot follow the one before it, or None."""
    tag_ids = {tag: i for i, tag in enumerate(dict.fromkeys(tags))}
    allowed = allowed_transitions(list(tag_ids))
    path = [len(tag_ids), *(tag_ids[tag] for tag in tags), len(tag_ids)]
    return next((i for i, step in enumerate(pairwise(path)) if not allowed[step]), None)


def extract_entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first word, last word) of each entity, for IOB1, IOB2, IOBES and BILOU alike.

    conlleval's rules for where one ends and the next starts come to one: two words belong together unless
    their types differ, the first one ends an entity (E, S) or the second one begins one (B, S).
    """
    entities = set()
    start, previous, kind = -1, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, type_ = tag.partition("-")
        if start >= 0 and (type_ != kind or previous in "ESLU" or mark in "BSUO"):
            entities.add((kind, start, i - 1))
            start = -1
        if mark != "O" and start < 0:
            start = i
        previous, kind = mark, type_
    return entities


def repair_tags(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The tags of a whole file, broken sentences written anew: the same entities, as `extract_entities` reads them.

    In IOB1 every entity begins with I, and B is only for one that touches another of its type; such files are as they
    should be.
    """
    tag_set = {tag for tags in sentences for tag in tags}
    repaired = [tuple(tags) for tags in sentences]
    if not all(map(TAG_PATTERN.fullmatch, tag_set)) or _is_iob1(sentences):
        return repaired
    marks = {tag[0] for tag in tag_set}
    end, single = ("L", "U") if marks & set("LU") else ("E", "S") if marks & set("ES") else ("I", "B")
    for i, tags in enumerate(sentences):
        if first_invalid(tags) is not None:
            new_tags = ["O"] * len(tags)
            for kind, first, last in extract_entities(tags):
                new_tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
                new_tags[first], new_tags[last] = f"B-{kind}", f"{end}-{kind}"
                if first == last:
                    new_tags[first] = f"{single}-{kind}"
            repaired[i] = tuple(new_tags)
    return repaired


def _is_iob1(sentences: Sequence[Sequence[str]]) -> bool:
    transitions = [step for tags in sentences for step in zip(("O", *tags), tags)]
    return not any(
        following[0] in "ESLU" or (following[0] == "B" and previous[1:] != following[1:])
        for previous, following in transitions
    )
