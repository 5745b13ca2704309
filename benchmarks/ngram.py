"""N-gram models compared with KenLM and NLTK: speed of counting and scoring, memory, and perplexity.

    python benchmarks/ngram.py [--data ../shared/data/wikitext-2] [--order 5] [--lmplz PATH] [--save F.md]

Text is split at spaces, as in WikiText, and all training words are in the vocabulary. Both sides get the same
sentences: ours as ids, KenLM's `lmplz` as text. Times are processor time and include reading the text and writing the
ARPA file or our arrays. The test set is scored in one call on ids (ours), sentence by sentence with KenLM's Python
module, and on a sample with NLTK, which is slow. Without the data, random words are used. Libraries that are not
installed are skipped.
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
    """Read a split of WikiText, or generate random sentences."""
    path = folder / f"wiki.{part}.raw.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [[w for w in line.split() if w not in MARKS] for line in file if line.split()]
    rng = random.Random(part)
    return [[f"w{int(30_000 * rng.random() ** 4)}" for _ in range(rng.randint(3, 40))] for _ in range(20_000)]


def ids_of(sentences: Sentences, ids: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return concatenated ids and the length of each sentence."""
    unknown = ids["<unk>"]
    flat = np.array([ids.get(word, unknown) for sentence in sentences for word in sentence])
    return flat, np.array(list(map(len, sentences)))


def streams(words: NgramVocab, flat: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield blocks of sentences enclosed in BOS and EOS."""
    step = max(BLOCK_SIZE // max(int(lengths.mean()), 1), 1)
    ends = np.cumsum(lengths)
    for first in range(0, len(lengths), step):
        part = lengths[first : first + step]
        end = int(ends[first + len(part) - 1])
        yield words.add_bos_eos(flat[end - int(part.sum()) : end], part)


def cpu_seconds(children: bool = False) -> float:
    """Return the processor time used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def anonymous() -> float:
    """Return the memory of this process in MB, without mapped files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024


def train_ours(
    words: NgramVocab, flat: np.ndarray, lengths: np.ndarray, order: int, work: Path
) -> tuple[NgramTrie, float, float]:
    """Count and estimate; return the model, the processor time and the memory."""
    before = cpu_seconds()
    counts = count_ngrams(streams(words, flat, lengths), words, order, work)
    model, _ = estimate_kneser_ney(counts, words, work)
    (work / "saved").mkdir()
    model.save(work / "saved")
    return model, cpu_seconds() - before, anonymous()


def lmplz(program: str, sentences: Sentences, order: int, work: Path) -> tuple[Path, float, float]:
    """Run KenLM's `lmplz`; return the ARPA file, the processor time and the peak memory."""
    text, arpa = work / "text", work / "lmplz.arpa"
    text.write_text("\n".join(" ".join(sentence) for sentence in sentences) + "\n", encoding="utf-8")
    before = cpu_seconds(children=True)
    with open(text, "rb") as source, open(arpa, "wb") as target:
        call = [program, "-o", str(order), "-S", "512M", "-T", str(work), "--discount_fallback"]
        subprocess.run(call, stdin=source, stdout=target, stderr=subprocess.DEVNULL, check=True)
    return arpa, cpu_seconds(children=True) - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def kenlm_scores(arpa: Path, test: Sentences) -> tuple[float, float]:
    """Return the total log10 probability of the test set, and the time without reading the model."""
    import kenlm

    model = kenlm.Model(str(arpa))
    lines = [" ".join(sentence) for sentence in test]
    before = cpu_seconds()
    return sum(map(model.score, lines)), cpu_seconds() - before


def nltk_speed(train: Sentences, test: Sentences, order: int) -> tuple[float, float]:
    """Return words/s of fitting 1,000 sentences and of scoring ten words, each of which visits all n-grams."""
    from nltk.lm import KneserNeyInterpolated
    from nltk.lm.preprocessing import padded_everygram_pipeline

    train = train[:1000]
    before = cpu_seconds()
    grams, vocabulary = padded_everygram_pipeline(order, train)
    model = KneserNeyInterpolated(order)
    model.fit(grams, vocabulary)
    fitted = cpu_seconds() - before
    words = [word for sentence in test for word in sentence][: 10 + order]
    before = cpu_seconds()
    for i in range(order, len(words)):
        model.score(words[i], words[i - order + 1 : i])
    return sum(map(len, train)) / fitted, 10 / (cpu_seconds() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/wikitext-2"))
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--lmplz", default=shutil.which("lmplz") or "")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    train, test = read(args.data, "train"), read(args.data, "test")
    names = [*MARKS, *dict.fromkeys(word for sentence in train for word in sentence)]
    tokenizer = Tokenizer(build_word_level(names, lowercase=False))
    words, ids = NgramVocab.from_tokenizer(tokenizer), {name: i for i, name in enumerate(names)}
    (flat, lengths), (new, new_lengths) = ids_of(train, ids), ids_of(test, ids)
    events = len(new) + len(new_lengths)
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model, seconds, memory = train_ours(words, flat, lengths, args.order, work)
        stream = words.add_bos_eos(new, new_lengths)
        before = cpu_seconds()
        total = float(model.log10_probs(stream).sum())
        scored = events / (cpu_seconds() - before)
        rows.append(_row("polyseme", len(flat) / seconds, f"{memory:,.0f}", scored, 10 ** (-total / events)))
        if args.lmplz:
            start = time.perf_counter()
            arpa, seconds, memory = lmplz(args.lmplz, train, args.order, work)
            note = f"lmplz ({time.perf_counter() - start:.1f} s), kenlm.Model"
        if importlib.util.find_spec("kenlm"):
            if args.lmplz:
                theirs, score_seconds = kenlm_scores(arpa, test)
                speed = len(flat) / seconds
                rows.append(_row(note, speed, f"{memory:,.0f}", events / score_seconds, 10 ** (-theirs / events)))
            write_arpa(work / "ours.arpa", model, tokenizer)
            theirs, score_seconds = kenlm_scores(work / "ours.arpa", test)
            rows.append(_row("kenlm.Model on our ARPA file", 0, "", events / score_seconds, 10 ** (-theirs / events)))
        if importlib.util.find_spec("nltk"):
            fit_rate, score_rate = nltk_speed(train, test, args.order)
            rows.append(_row("NLTK, one discount", fit_rate, "", score_rate, 0))
    text = header(f"N-grams up to {args.order}, {len(flat):,} words of {len(names):,} kinds, processor time") + "\n"
    text += table(["", "count words/s", "MB", "score words/s", "perplexity"], rows)
    text += "\n\nMB: ours, at the end and without mapped files; lmplz, the peak with a limit of 512 MB.\n"
    print(text)
    if args.save:
        args.save.write_text(text, encoding="utf-8")


def _row(name: str, counted: float, memory: str, scored: float, perplexity: float) -> list[object]:
    shown = f"{perplexity:.2f}" if perplexity else ""
    return [name, f"{counted:,.0f}" if counted else "", memory, f"{scored:,.0f}", shown]


if __name__ == "__main__":
    main()
