"""N-grams: tokens a second of counting and scoring, memory, perplexity; ours against KenLM, or else NLTK, in one run.

    python benchmarks/ngram.py [--data ../shared/data/wikitext-2] [--order 5] [--lmplz PATH] [--save F.md]

Text is cut into words at spaces, as WikiText has it, all of which are known. Both sides get the same sentences: ours
as ids, KenLM's `lmplz` as text, whose reading is counted too, as are the writing of its ARPA file and of our arrays.
Processor time counts. Scoring is of the test set: ours in one call on ids, KenLM's by its Python module, sentence by
sentence, NLTK's on a sample, as it is slow. Without the data, random words stand in. What is not installed is left
out.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from report import header, table

from polyseme.ngram.arpa import write_arpa
from polyseme.ngram.count import BLOCK_SIZE, count_ngrams
from polyseme.ngram.estimate import estimate_kneser_ney
from polyseme.ngram.trie import NgramTrie, NgramVocab
from polyseme.text.pipelines import build_word_level
from polyseme.text.tokenizer import Tokenizer

Sentences = list[list[str]]
MARKS = ("<s>", "</s>", "<unk>")


def read(folder: Path, part: str) -> Sentences:
    path = folder / f"wiki.{part}.raw.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [[w for w in line.split() if w not in MARKS] for line in file if line.split()]
    rng = random.Random(part)
    return [[f"w{int(30_000 * rng.random() ** 4)}" for _ in range(rng.randint(3, 40))] for _ in range(20_000)]


def ids_of(sentences: Sentences, ids: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    unknown = ids["<unk>"]
    flat = np.array([ids.get(word, unknown) for sentence in sentences for word in sentence])
    return flat, np.array(list(map(len, sentences)))


def streams(words: NgramVocab, flat: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    step = max(BLOCK_SIZE // max(int(lengths.mean()), 1), 1)
    ends = np.cumsum(lengths)
    for first in range(0, len(lengths), step):
        part = lengths[first : first + step]
        end = int(ends[first + len(part) - 1])
        yield words.add_bos_eos(flat[end - int(part.sum()) : end], part)


def spent(children: bool = False) -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def anonymous() -> float:
    """Memory of this process in MB that is no file's."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024


def learn(
    words: NgramVocab, flat: np.ndarray, lengths: np.ndarray, order: int, work: Path
) -> tuple[NgramTrie, float, float]:
    before = spent()
    counts = count_ngrams(streams(words, flat, lengths), words, order, work)
    model, _ = estimate_kneser_ney(counts, words, work)
    (work / "saved").mkdir()
    model.save(work / "saved")
    return model, spent() - before, anonymous()


def lmplz(program: str, sentences: Sentences, order: int, work: Path) -> tuple[Path, float, float]:
    text, arpa = work / "text", work / "lmplz.arpa"
    text.write_text("\n".join(" ".join(sentence) for sentence in sentences) + "\n", encoding="utf-8")
    before = spent(children=True)
    with open(text, "rb") as source, open(arpa, "wb") as target:
        call = [program, "-o", str(order), "-S", "512M", "-T", str(work), "--discount_fallback"]
        subprocess.run(call, stdin=source, stdout=target, stderr=subprocess.DEVNULL, check=True)
    return arpa, spent(children=True) - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def kenlm_scores(arpa: Path, test: Sentences) -> tuple[float, float]:
    """The sum of log10 over the test set, and how long it took once the file was read."""
    import kenlm

    model = kenlm.Model(str(arpa))
    lines = [" ".join(sentence) for sentence in test]
    before = spent()
    return sum(map(model.score, lines)), spent() - before


def nltk_speed(train: Sentences, test: Sentences, order: int) -> tuple[float, float]:
    """Words a second of fitting 1,000 sentences and of scoring ten words: it goes through all n-grams for each."""
    from nltk.lm import KneserNeyInterpolated
    from nltk.lm.preprocessing import padded_everygram_pipeline

    train = train[:1000]
    before = spent()
    grams, vocabulary = padded_everygram_pipeline(order, train)
    model = KneserNeyInterpolated(order)
    model.fit(grams, vocabulary)
    fitted = spent() - before
    words = [word for sentence in test for word in sentence][: 10 + order]
    before = spent()
    for i in range(order, len(words)):
        model.score(words[i], words[i - order + 1 : i])
    return sum(map(len, train)) / fitted, 10 / (spent() - before)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--data", type=Path, default=Path("../shared/data/wikitext-2"))
    ask.add_argument("--order", type=int, default=5)
    ask.add_argument("--lmplz", default=shutil.which("lmplz") or "")
    ask.add_argument("--save", type=Path)
    given = ask.parse_args()
    train, test = read(given.data, "train"), read(given.data, "test")
    names = [*MARKS, *dict.fromkeys(word for sentence in train for word in sentence)]
    tokenizer = Tokenizer(build_word_level(names, lowercase=False))
    words, ids = NgramVocab.from_tokenizer(tokenizer), {name: i for i, name in enumerate(names)}
    (flat, lengths), (new, new_lengths) = ids_of(train, ids), ids_of(test, ids)
    events = len(new) + len(new_lengths)
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model, seconds, memory = learn(words, flat, lengths, given.order, work)
        stream = words.add_bos_eos(new, new_lengths)
        before = spent()
        total = float(model.log10_probs(stream).sum())
        scored = events / (spent() - before)
        rows.append(_row("polyseme", len(flat) / seconds, f"{memory:,.0f}", scored, 10 ** (-total / events)))
        if given.lmplz:
            began = time.perf_counter()
            arpa, seconds, memory = lmplz(given.lmplz, train, given.order, work)
            note = f"lmplz ({time.perf_counter() - began:.1f} s), kenlm.Model"
        if importlib.util.find_spec("kenlm"):
            if given.lmplz:
                theirs, took = kenlm_scores(arpa, test)
                speed = len(flat) / seconds
                rows.append(_row(note, speed, f"{memory:,.0f}", events / took, 10 ** (-theirs / events)))
            write_arpa(work / "ours.arpa", model, tokenizer)
            theirs, took = kenlm_scores(work / "ours.arpa", test)
            rows.append(_row("kenlm.Model on our ARPA file", 0, "", events / took, 10 ** (-theirs / events)))
        if importlib.util.find_spec("nltk"):
            fitted, asked = nltk_speed(train, test, given.order)
            rows.append(_row("NLTK, one discount", fitted, "", asked, 0))
    text = header(f"N-grams up to {given.order}, {len(flat):,} words of {len(names):,} kinds, processor time") + "\n"
    text += table(["", "count words/s", "MB", "score words/s", "perplexity"], rows)
    text += (
        "\n\nMB is memory at the end of ours (without mapped files) and the most of lmplz, which was given 512 MB.\n"
    )
    print(text)
    if given.save:
        given.save.write_text(text, encoding="utf-8")


def _row(name: str, counted: float, memory: str, scored: float, perplexity: float) -> list[object]:
    shown = f"{perplexity:.2f}" if perplexity else ""
    return [name, f"{counted:,.0f}" if counted else "", memory, f"{scored:,.0f}", shown]


if __name__ == "__main__":
    main()
