"""Near duplicates: documents a second on one core, ours against `datasketch`, on the same documents and shingles.

    python benchmarks/duplicates.py [--data ../shared/data/pretrain] [--documents 20000] [--sample 1000]

Documents are paragraphs grouped to about 500 words, from JSON lines (`.jsonl.xz`) or, without any, random words; one
in five is a copy of an earlier one with some words changed. Processor time counts. Ours is everything from the
texts to who repeats whom, by tables on disk. The peer is `MinHash` of 128 permutations and `MinHashLSH`, asked and
fed in input order, on a sample, since it is slow; it is skipped where it is not installed. Both are then held against
the true similarities of the sample.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import random
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from report import header, table

from polyseme.corpus.dedup.lsh import find_duplicates
from polyseme.corpus.dedup.minhash import SHINGLE_WORDS, SIGNATURE_SIZE, minhash_signatures

THRESHOLD, WORDS, PART = 0.8, 500, 5000
WORD = re.compile(r"[^\W_]+")
Found = tuple[np.ndarray, list[tuple[str, float]]]  # which documents go, and the processor time of each part


def paragraphs(folder: Path) -> Iterator[str]:
    """Without end: those of the files there, or random words with few that are frequent."""
    for file in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield from json.loads(line)["text"].split("\n")
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 11))) for _ in range(50_000)]
    while True:
        yield " ".join(words[int(len(words) * rng.random() ** 4)] for _ in range(80))


def documents(folder: Path, count: int) -> list[str]:
    rng = random.Random(1)
    found: list[str] = []
    waiting: list[str] = []
    size = 0
    for paragraph in paragraphs(folder):
        waiting.append(paragraph)
        size += paragraph.count(" ") + 1
        if size < WORDS:
            continue
        found.append("\n".join(waiting))
        waiting, size = [], 0
        if rng.random() < 0.25:
            words = rng.choice(found[-1000:]).split(" ")
            rate = rng.choice((0.002, 0.01, 0.02, 0.05))
            found.append(" ".join(rng.choice(words) if rng.random() < rate else word for word in words))
        if len(found) >= count:
            return found[:count]
    raise AssertionError("there are always more paragraphs")


def ours(texts: list[str], work: Path) -> Found:
    start = time.process_time()
    exact: list[np.ndarray] = []
    signatures: list[np.ndarray] = []
    for low in range(0, len(texts), PART):
        for name, array, parts in zip(("e", "s"), minhash_signatures(texts[low : low + PART]), (exact, signatures)):
            np.save(work / f"{name}{low}.npy", array)
            parts.append(np.load(work / f"{name}{low}.npy", mmap_mode="r"))
    middle = time.process_time()
    found, _ = find_duplicates(exact, signatures, np.ones(len(texts), dtype=bool), THRESHOLD, work / "tables")
    end = time.process_time()
    return found >= 0, [("fingerprints", middle - start), ("tables", end - middle)]


def shingles(text: str) -> set[str]:
    words = WORD.findall(text.lower())
    return {" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(len(words) - SHINGLE_WORDS + 1, 1))}


def peer(texts: list[str]) -> Found:
    from datasketch import MinHash, MinHashLSH

    blank = MinHash(num_perm=SIGNATURE_SIZE)
    start = time.process_time()
    table_ = MinHashLSH(threshold=THRESHOLD, num_perm=SIGNATURE_SIZE)
    kept: dict[int, MinHash] = {}
    gone = np.zeros(len(texts), dtype=bool)
    for number, text in enumerate(texts):
        mine = blank.copy()
        mine.update_batch([shingle.encode() for shingle in shingles(text)])
        gone[number] = any(kept[other].jaccard(mine) >= THRESHOLD for other in table_.query(mine))
        if not gone[number]:
            kept[number] = mine
            table_.insert(number, mine)
    return gone, [("all", time.process_time() - start)]


def truth(texts: list[str]) -> np.ndarray:
    """The rule by counting."""
    kept: list[set[str]] = []
    gone = np.zeros(len(texts), dtype=bool)
    for number, mine in enumerate(map(shingles, texts)):
        gone[number] = any(len(mine & other) >= THRESHOLD * len(mine | other) for other in kept if mine & other)
        if not gone[number]:
            kept.append(mine)
    return gone


def best(run: Callable[[], Found]) -> Found:
    """The quickest of three runs."""
    return min((run() for _ in range(3)), key=lambda result: sum(seconds for _, seconds in result[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pretrain"), help="a folder with .jsonl.xz")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--sample", type=int, default=1000, help="documents for the peer and the truth")
    options = parser.parse_args()
    texts = documents(options.data, options.documents)
    sample = texts[: options.sample]
    words = sum(text.count(" ") + 1 for text in texts) / len(texts)
    print(header(f"near duplicates: {len(texts):,} documents of {words:.0f} words, threshold {THRESHOLD}"))
    right = truth(sample)

    def row(name: str, gone: np.ndarray, times: list[tuple[str, float]], count: int) -> list[object]:
        both = int((gone[: len(sample)] & right).sum())
        recall, precision = both / max(right.sum(), 1), both / max(gone[: len(sample)].sum(), 1)
        return [name, f"{count / sum(s for _, s in times):,.0f}", f"{recall:.3f}", f"{precision:.3f}"]

    with tempfile.TemporaryDirectory() as folder:
        gone, halves = best(lambda: ours(texts, Path(folder)))
        rows = [row("polyseme", gone, halves, len(texts))]
        rows += [[f"  {name}", f"{len(texts) / seconds:,.0f}", "", ""] for name, seconds in halves]
    if importlib.util.find_spec("datasketch"):
        rows.append(row(f"datasketch, {len(sample)} documents", *best(lambda: peer(sample)), len(sample)))
    else:
        rows.append(["datasketch is not installed", "", "", ""])
    print(table(("", "documents/s a core", "recall", "precision"), rows))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{int(gone.sum()):,} removed; of the first {len(sample):,}, {int(right.sum())} by counting; "
          f"{memory:,.0f} MB at most, texts included")  # fmt: skip


if __name__ == "__main__":
    main()
