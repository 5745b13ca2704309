"""Generated text, pairs, music and labeled examples for the regression baseline: the same bytes at every run."""

from __future__ import annotations

import json
import random
from pathlib import Path

ANIMALS = ["cat", "dog", "fish", "bird", "wolf", "bear", "frog", "hare", "mole", "newt", "seal", "swan"]
VERBS = ["sees", "hears", "follows", "likes", "finds", "chases", "feeds", "leads"]
ADJECTIVES = ["old", "young", "grey", "brown", "quiet", "loud", "small", "unseen", "naïve", "röte"]
PLACES = ["river", "forest", "meadow", "mountain", "garden", "island", "café"]
SYLLABLES = ["ka", "lo", "mi", "tre", "sun", "vor", "pel", "dra", "esh", "wick", "ton", "ra", "quo", "fen", "zy"]
QUESTIONS = ["The old cat sees", "In the garden the wolf"]
EVENTS = ["vel20 on60 shift25 off60 on64 shift50 off64", "on48 on55 shift13 vel12 on67 shift99 off48 off55"]
LINES = [
    "The old cat sees the dog.",
    "A naïve newt feeds 3 swans in the café!",
    "the quiet karatre follows the small frog in the garden.",
]


def sentence(draw: random.Random) -> str:
    """A sentence with words that are common, rare, accented, or numbers."""
    rare = "".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))
    subject, thing = (f"the {draw.choice(ADJECTIVES)} {draw.choice(ANIMALS)}" for _ in range(2))
    more = draw.choice([f" with {draw.randint(2, 1900)} friends", f", said {rare.capitalize()}", f" and a {rare}", ""])
    text = f"{subject} {draw.choice(VERBS)} {thing} in the {draw.choice(PLACES)}{more}{draw.choice('...!?')}"
    return text[0].upper() + text[1:]


def text(path: Path, documents: int = 90, seed: int = 0) -> Path:
    """Documents of several sentences, with blank lines between them."""
    draw = random.Random(seed)
    found = [" ".join(sentence(draw) for _ in range(draw.randint(5, 9))) for _ in range(documents)]
    path.write_text("\n\n".join(found) + "\n", encoding="utf-8")
    return path


def lines(path: Path, found: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in found), encoding="utf-8")
    return path


def parallel(folder: Path, number: int = 300, seed: int = 1) -> tuple[Path, Path]:
    """A toy language: every word is spelled backwards, and the adjective follows its noun."""
    draw, sides = random.Random(seed), ([], [])
    for _ in range(number):
        words = [draw.choice(ADJECTIVES), draw.choice(ANIMALS), draw.choice(VERBS), draw.choice(PLACES)]
        words = words[: draw.randint(2, 4)]
        sides[0].append(" ".join(words))
        sides[1].append(" ".join(f"{word[::-1]}o" for word in [words[1], words[0], *words[2:]]))
    return lines(folder / "pairs.en", sides[0]), lines(folder / "pairs.xx", sides[1])


def music(folder: Path, pieces: int = 16, notes: int = 60, seed: int = 2) -> Path:
    """Piano pieces as MIDI files, with chords, rests, changing loudness and a pedal."""
    import mido

    folder.mkdir()
    for number in range(pieces):
        draw, file = random.Random(100 * seed + number), mido.MidiFile(ticks_per_beat=480)
        track = mido.MidiTrack()
        file.tracks.append(track)
        track.append(mido.MetaMessage("set_tempo", tempo=500_000))
        pitch = draw.randint(48, 72)
        for place in range(notes):
            pitch = min(max(pitch + draw.choice([-5, -2, -1, 1, 2, 4]), 30), 90)
            chord = [pitch, pitch + 4] if draw.random() < 0.2 else [pitch]
            if place % 20 == 5:
                track.append(mido.Message("control_change", control=64, value=127 if place % 40 == 5 else 0))
            loud, rest = draw.randint(40, 110), draw.choice([0, 0, 60, 240])
            for i, key in enumerate(chord):
                track.append(mido.Message("note_on", note=key, velocity=loud, time=0 if i else rest))
            for i, key in enumerate(chord):
                track.append(mido.Message("note_off", note=key, time=0 if i else draw.choice([120, 240, 480])))
        file.save(folder / f"piece-{number:02}.mid")
    return folder


# --- labeled examples ------------------------------------------------------------------------------------------------


def labeled(folder: Path, kind: str, count: int = 12) -> tuple[Path, Path]:
    """The training and the dev file of a task."""
    written = []
    for seed, part in enumerate(("train", "dev")):
        path = folder / f"{part}.{ {'choice': 'jsonl', 'tagging': 'conll', 'span': 'json'}.get(kind, 'tsv') }"
        if kind in ("coreference", "roles"):
            path = folder / f"{part}.conll"
        path.write_text(MAKERS[kind](random.Random(seed), count), encoding="utf-8")
        written.append(path)
    return written[0], written[1]


def _classification(draw: random.Random, count: int) -> str:
    return "text\tlabel\n" + "".join(f"{sentence(draw)}\t{('water', 'land')[i % 2]}\n" for i in range(count))


def _pair(draw: random.Random, count: int) -> str:
    labels = ("yes", "no", "maybe")
    rows = (f"{sentence(draw)[:24].strip()}\t{sentence(draw)[:20].strip()}\t{labels[i % 3]}\n" for i in range(count))
    return "text\tpair\tlabel\n" + "".join(rows)


def _regression(draw: random.Random, count: int) -> str:
    rows = [sentence(draw) for _ in range(count)]
    return "text\tlabel\n" + "".join(f"{row}\t{row.count('e') / 2}\n" for row in rows)


def _choice(draw: random.Random, count: int) -> str:
    rows = []
    for i in range(count):
        size = draw.randint(2, 4)
        row = {
            "text": f"{draw.randint(2, 900)} and the {draw.choice(ADJECTIVES)}",
            "choices": draw.sample(ANIMALS, size),
            "label": i % size,
        }
        rows.append(json.dumps(row) + "\n")
    return "".join(rows)


def _tagging(draw: random.Random, count: int) -> str:
    found = []
    for _ in range(count):
        words = sentence(draw).lower().rstrip(".!?").split()
        tags = ["O"] * len(words)
        for i, word in enumerate(words):
            if word in ANIMALS:
                tags[i - 1 : i + 1] = ["B-A", "I-A"]
            elif word in PLACES:
                tags[i] = "B-P"
        found.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags)))
    return "\n".join(found)


def _span(draw: random.Random, count: int) -> str:
    """Questions in SQuAD's JSON, some without an answer, some with a context of several windows."""
    paragraphs = []
    for i in range(count):
        context = " ".join(sentence(draw) for _ in range(1 + 3 * (i % 4 == 0)))
        known = [word for word in PLACES if word in context]
        answers = [{"text": known[0], "answer_start": context.index(known[0])}] if i % 5 else []
        question = {"id": f"q{i}", "question": "In which place?", "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [question]})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


def _coreference(draw: random.Random, count: int) -> str:
    """Documents in the columns of CoNLL-2012: a woman and a man, called by their names or by pronouns."""
    rows = []
    for i in range(count // 2):
        people = {"she": draw.choice(["Ann", "Eve"]), "he": draw.choice(["Bob", "Tom"])}
        rows.append(f"#begin document (bc/x/00/x_{i:04}); part 000")
        for _ in range(draw.randint(2, 4)):
            cells = []
            for word in ("saw", "."):
                who = draw.choice(["she", "he"])
                cells += [(draw.choice([who, people[who]]), f"({int(who == 'he')})"), (word, "-")]
            speaker = draw.choice(["A", "B"])
            for place, (word, chain) in enumerate(cells):
                rows.append(f"bc/x/00/x_{i:04} 0 {place} {word} NN * - - - {speaker} * {chain}")
            rows.append("")
        rows.append("#end document")
    return "\n".join(rows) + "\n"


def _roles(draw: random.Random, count: int) -> str:
    """Semantic roles: a word, a column without content, the predicate, its arguments."""
    found = []
    for _ in range(count):
        before, verb, behind = draw.choice(ANIMALS), draw.choice(VERBS), draw.choice(ANIMALS)
        found.append(f"the\t-\t-\t(A0*\n{before}\t-\t-\t*)\n{verb}\t-\tsee\t(V*)\n{behind}\t-\t-\t(A1*)\n")
    return "\n".join(found)


MAKERS = {
    "classification": _classification, "pair": _pair, "regression": _regression, "choice": _choice,
    "tagging": _tagging, "span": _span, "coreference": _coreference, "roles": _roles,
}  # fmt: skip
