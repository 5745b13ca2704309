"""Small data sets of all tasks that studies use, in their layout as distributed."""

import json
import random
from pathlib import Path

from tests.support.text import ANIMALS, sentence, write_glue

NUM_ROWS = 12
FILE_NAMES = {
    "train": ("train_5500.label", "wnut17train.conll", "new_wiki_v1.0.json"),
    "dev": ("TREC_10.label", "emerging.dev.conll", "nyt_v1.0.json"),
}


def write_study_data(folder: Path) -> None:
    """Write every data set of the catalog's studies."""
    rng = random.Random(1)
    texts = [sentence(rng) for _ in range(2 * NUM_ROWS)]
    splits = {"train": texts[:NUM_ROWS], "dev": texts[NUM_ROWS:]}
    write_glue(folder / "glue", NUM_ROWS)
    short = [f"The {animal} saw the {animal}." for animal in ANIMALS]
    files = {"held-out.txt": " ".join(short)}
    for paradigm, word in (("agreement", "see"), ("order", "sat")):
        pair = {"sentence_good": f"the cat {word}s the dog", "sentence_bad": f"the cat the dog {word}", "UID": paradigm}
        files[f"blimp/data/{paradigm}.jsonl"] = (json.dumps(pair) + "\n") * 3
    for split, names in FILE_NAMES.items():
        rows = splits[split]
        files[f"trec/{names[0]}"] = "".join(
            f"{'NUM:dist' if i % 2 else 'ENTY:animal'} {t}\n" for i, t in enumerate(rows)
        )
        files[f"wnut17/{names[1]}"] = "\n".join(_format_words(t, "{word}\t{tag}\n") for t in rows)
        files[f"squad-shifts/{names[2]}"] = json.dumps({"version": "1.1", "data": [squad_article(rows)]})
        columns = "{number}\t{word}\t_\t{pos}\t_\t_\t0\t_\t_\t_\n"
        files[f"ud-ewt/en_ewt-ud-{split}.conllu"] = "\n".join(_format_words(t, columns) for t in rows) + "\n"
        wic = "".join(f"the\tN\t0-0\t{a}\t{b}\n" for a, b in zip(rows, reversed(rows)))
        files |= {f"wic/{split}/{split}.data.txt": wic, f"wic/{split}/{split}.gold.txt": "T\nF\n" * (NUM_ROWS // 2)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _format_words(text: str, columns: str) -> str:
    words = text.rstrip(".").split()
    tags = ["B-animal" if word in ANIMALS else "O" for word in words]
    rows = zip(range(1, len(words) + 1), words, tags)
    return "".join(columns.format(number=i, word=w, tag=t, pos="NOUN" if t != "O" else "X") for i, w, t in rows)


def squad_article(texts: list[str]) -> dict:
    paragraphs = []
    for i, text in enumerate(texts):
        answer = next(word for word in text.rstrip(".").split() if word in ANIMALS)
        question = {"id": str(i), "question": "Which animal?"}
        question["answers"] = [{"text": answer, "answer_start": text.index(answer)}]
        paragraphs.append({"context": text, "qas": [question]})
    return {"title": "animals", "paragraphs": paragraphs}
