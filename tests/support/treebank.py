"""A small treebank in CoNLL-U, generated."""

import random
from pathlib import Path

from tests.support.text import ADJECTIVES, ANIMALS, PLACES, VERBS

# form, part of speech, head (from 1), relation of each word of a sentence
Row = tuple[str, str, int, str]


def tree_rows(rng: random.Random) -> list[Row]:
    """Return the words of a random sentence about two animals."""
    subject, patient, place = rng.choice(ANIMALS), rng.choice(ANIMALS), rng.choice(PLACES)
    return [
        ("the", "DET", 3, "det"),
        (rng.choice(ADJECTIVES), "ADJ", 3, "amod"),
        (subject, "NOUN", 4, "nsubj"),
        (rng.choice(VERBS), "VERB", 0, "root"),
        ("the", "DET", 6, "det"),
        (patient, "NOUN", 4, "obj"),
        ("in", "ADP", 9, "case"),
        ("the", "DET", 9, "det"),
        (place, "NOUN", 4, "obl"),
        (".", "PUNCT", 4, "punct"),
    ]


def write_treebank(path: Path, count: int, seed: int = 0) -> Path:
    """Write random sentences with their trees."""
    rng = random.Random(seed)
    blocks = []
    for number in range(count):
        lines = [
            f"{i}\t{form}\t{form}\t{tag}\t_\t_\t{head}\t{relation}\t_\t_"
            for i, (form, tag, head, relation) in enumerate(tree_rows(rng), 1)
        ]
        blocks.append("\n".join([f"# sent_id = {number}", *lines]))
    path.write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
    return path
