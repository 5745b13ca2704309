"""Generated English-like text and labeled examples."""

import random
from pathlib import Path

ANIMALS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
VERBS = ["sees", "hears", "follows", "likes", "finds", "chases", "feeds", "leads"]
ADJECTIVES = ["old", "young", "grey", "brown", "quiet", "loud", "small", "unseen"]
PLACES = ["river", "forest", "meadow", "mountain", "garden", "island"]


def sentence(rng: random.Random) -> str:
    """Return a random sentence about two animals."""
    subject, patient = (f"the {rng.choice(ADJECTIVES)} {rng.choice(ANIMALS)}" for _ in range(2))
    return f"{subject} {rng.choice(VERBS)} {patient} in the {rng.choice(PLACES)}.".capitalize()


def documents(count: int = 36, seed: int = 0) -> list[str]:
    """Return documents of five to nine sentences."""
    rng = random.Random(seed)
    return [" ".join(sentence(rng) for _ in range(rng.randint(5, 9))) for _ in range(count)]


def task_rows(task: str, count: int, seed: int) -> str:
    """Return labeled examples as the contents of a file: CoNLL columns for tagging, else TSV with a header."""
    rng = random.Random(seed)
    if task == "tagging":
        sentences = [sentence(rng).lower().rstrip(".").split() for _ in range(count)]
        return "\n".join("".join(f"{w}\t{'B-A' if w in ANIMALS else 'O'}\n" for w in words) for words in sentences)
    rows = ["text\tpair\tlabel" if task == "pair_classification" else "text\tlabel"]
    for i in range(count):
        first, second = sentence(rng), sentence(rng)
        if task == "regression":
            rows.append(f"{first}\t{first.count('e') / 2}")
        elif task == "pair_classification":
            rows.append(f"{first[:20].strip()}\t{second[:24].strip()}\t{'yes' if 'fish' in second else 'no'}")
        else:
            rows.append(f"{first}\t{'water' if i % 2 else 'land'}")
    return "\n".join(rows) + "\n"


def write_glue(folder: Path, num_rows: int = 12) -> None:
    """Write small GLUE data sets in their distributed formats: MRPC as published by Microsoft, with its dev ids."""
    rng = random.Random(0)
    first, second = ([sentence(rng) for _ in range(2 * num_rows)] for _ in range(2))
    scores = [f"{rng.uniform(0, 5):.3f}" for _ in first]
    pairs = list(enumerate(zip(first, second)))
    tables = {
        "CoLA": ("", [f"gj04\t{i % 2}\t{'' if i % 2 else '*'}\t{s}" for i, s in enumerate(first)]),
        "SST-2": ("sentence\tlabel\n", [f'" {s} \t{i % 2}' for i, s in enumerate(first)]),
        "STS-B": (
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
            [f"{i}\tnews\tx\t2012\t1\tnone\tnone\t{a}\t{b}\t{scores[i]}" for i, (a, b) in pairs],
        ),
        "WNLI": ("index\tsentence1\tsentence2\tlabel\n", [f"{i}\t{a}\t{b}\t{i % 2}" for i, (a, b) in pairs]),
    }
    for name, (header, lines) in tables.items():
        (folder / name).mkdir(parents=True)
        for split, rows in (("train", lines[:num_rows]), ("dev", lines[num_rows:])):
            (folder / name / f"{split}.tsv").write_text(header + "\n".join(rows))
    (folder / "MRPC").mkdir()
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    lines = [header, *(f'{i % 2}\t{i}\t{100 + i}\t{a}\t" {b}' for i, (a, b) in pairs)]
    (folder / "MRPC/msr_paraphrase_train.txt").write_text("\n".join(lines), encoding="utf-8-sig", newline="\r\n")
    (folder / "MRPC/dev_ids.tsv").write_text("".join(f"{i}\t{100 + i}\n" for i in range(5)))
