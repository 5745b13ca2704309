"""Small files that the commands of docs/coverage.md read, and small models in place of those that they train."""

import itertools
import json
import random
from importlib.util import find_spec
from pathlib import Path

from polyseme.corpus.sources.midi import Note, write_notes
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.tasks.tagging import TaggingTask
from tests.support.small_models import save_small_model
from tests.support.study_data import squad_article, write_study_data
from tests.support.text import ANIMALS, documents, sentence, task_rows
from tests.support.treebank import write_treebank

FAMILIES = ("bert", "gpt2", "gpt", "elmo", "seq2seq", "transformer")
CELLS = ("rnn", "gru", "lstm")


def write_lecture_data(folder: Path) -> None:
    """Write every file that the commands read."""
    write_study_data(folder / "DATA")
    (folder / "DATA/glue").rename(folder / "GLUE")
    (folder / "DATA/wic").rename(folder / "WIC")
    texts = documents(120)
    files = {f"TEXT/{i:03}.txt": text for i, text in enumerate(texts)}
    files["lines.txt"] = "\n".join(text[:200] for text in texts[:12]) + "\n"
    files["university.txt"] = "Johns Hopkins was founded in 1876. " + texts[0]
    rng = random.Random(0)
    for seed, split in enumerate(("train", "dev")):
        sentences = [sentence(rng) for _ in range(24)]
        files[f"{split}.tsv"] = task_rows("classification", 24, seed)
        files[f"pairs-{split}.tsv"] = task_rows("pair_classification", 24, seed)
        rows = [f"{a}\t{b}\t{(len(a) - len(b)) / 9:.2f}" for a, b in itertools.pairwise(sentences)]
        files[f"similarity-{split}.tsv"] = "\n".join(["text\tpair\tlabel", *rows]) + "\n"
        files[f"{split}.conll"] = task_rows("tagging", 24, seed)
        files[f"squad-{split}.json"] = json.dumps({"version": "1.1", "data": [squad_article(sentences)]})
        choices = [{"text": s, "choices": ["A cat.", "A dog."], "label": str(i % 2)} for i, s in enumerate(sentences)]
        files[f"choices-{split}.jsonl"] = _to_jsonl(choices)
    questions = [{"question": f"Which animal is number {i}?", "answer": name} for i, name in enumerate(ANIMALS[:4])]
    files["questions.jsonl"], files["more-questions.jsonl"] = _to_jsonl(questions[:2]), _to_jsonl(questions[2:])
    images = [f"shapes/train/{i:06}.png" for i in range(1, 17)]
    rows = [{"image": name, "question": "what shape is red?", "answer": "ab"[i % 2]} for i, name in enumerate(images)]
    files["image-questions.jsonl"] = _to_jsonl(rows)
    files["translations.jsonl"] = _to_jsonl([{"source": "the cat sat", "answer": "die Katze saß"}] * 2)
    for split, size in (("train", 240), ("test", 3)):
        numbers = range(size)
        files[f"{split}.en"] = "".join(f"the {ANIMALS[i % 12]} sat on mat {i}\n" for i in numbers)
        files[f"{split}.de"] = "".join(f"auf Matte {i} saß {ANIMALS[i % 12]}\n" for i in numbers)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for split, count in (("train", 24), ("dev", 8)):
        write_treebank(folder / f"{split}.conllu", count)
    if find_spec("mido"):
        for seed in range(8):
            notes = [Note(i / 4, i / 4 + 0.2, 48 + i * (seed + 3) % 24, 64) for i in range(60)]
            write_notes(folder / "MIDI" / f"{seed}.mid", notes)


def save_lecture_models(folder: Path) -> None:
    """Write a small model with random weights for each one that a command of the page trains and another reads."""
    for family in FAMILIES:
        save_small_model(folder / family / "model", family, max_len=160)
    for cell in CELLS:
        save_small_model(folder / cell / "model", "rnn_lm", cell=cell)
    save_small_model(folder / "word2vec" / "model", "word2vec")
    tasks: dict[str, TaskConfig] = {
        "bert-labels": ClassificationTask(("land", "water")),
        "bert-entities": TaggingTask(("O", "B-A")),
        "bert-answers": ExtractiveQATask(),
    }
    for name, task in tasks.items():
        save_small_model(folder / name / "model", "bert", task, max_len=64)


def _to_jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
