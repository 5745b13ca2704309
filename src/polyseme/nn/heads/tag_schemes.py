"""Entity tag schemes (IOB, IOBES, BILOU): allowed transitions, entity extraction, repair of invalid sequences."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

TAG_PATTERN = re.compile(r"O|[BIESLU]-.+")


def allowed_transitions(labels: Sequence[str]) -> np.ndarray:
    """Return which tag may follow which, bool [n + 1, n + 1]; row and column n stand for the sentence boundaries.

    I-X, E-X and L-X continue an entity of type X. In IOBES and BILOU, which mark the end of an entity, an open entity
    has to continue. Labels that are not entity tags may follow each other freely.
    """
    allowed = np.ones((len(labels) + 1,) * 2, dtype=bool)
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
    """Return the index of the first tag that cannot follow the one before it, or None."""
    tag_ids = {tag: i for i, tag in enumerate(dict.fromkeys(tags))}
    allowed = allowed_transitions(list(tag_ids))
    path = [len(tag_ids), *(tag_ids[tag] for tag in tags), len(tag_ids)]
    return next((i for i, step in enumerate(pairwise(path)) if not allowed[step]), None)


def extract_entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) of each entity, for IOB1, IOB2, IOBES and BILOU.

    conlleval's rules amount to one: two adjacent words are in the same entity unless their types differ, the first one
    ends an entity (E, S, L, U) or the second one begins one (B, S, U).
    """
    entities = set()
    start, previous_prefix, entity_type = -1, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, tag_type = tag.partition("-")
        if start >= 0 and (tag_type != entity_type or previous_prefix in "ESLU" or prefix in "BSUO"):
            entities.add((entity_type, start, i - 1))
            start = -1
        if prefix != "O" and start < 0:
            start = i
        previous_prefix, entity_type = prefix, tag_type
    return entities


def repair_tags(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the tags of a whole file with invalid sentences rewritten: the entities of `extract_entities`, valid tags.

    In IOB1 an entity begins with I, and with B only directly after another one of its type; files in IOB1 are returned
    unchanged.
    """
    tag_set = {tag for tags in sentences for tag in tags}
    repaired = [tuple(tags) for tags in sentences]
    if not all(map(TAG_PATTERN.fullmatch, tag_set)):
        return repaired
    steps = (step for tags in sentences for step in zip(("O", *tags), tags))
    if not any(b[0] in "ESLU" or (b[0] == "B" and a[1:] != b[1:]) for a, b in steps):
        return repaired
    prefixes = {tag[0] for tag in tag_set}
    end, single = ("L", "U") if prefixes & set("LU") else ("E", "S") if prefixes & set("ES") else ("I", "B")
    for i, tags in enumerate(sentences):
        if first_invalid(tags) is not None:
            new_tags = ["O"] * len(tags)
            for entity_type, first, last in extract_entities(tags):
                new_tags[first : last + 1] = [f"I-{entity_type}"] * (last + 1 - first)
                new_tags[first], new_tags[last] = f"B-{entity_type}", f"{end}-{entity_type}"
                if first == last:
                    new_tags[first] = f"{single}-{entity_type}"
            repaired[i] = tuple(new_tags)
    return repaired
