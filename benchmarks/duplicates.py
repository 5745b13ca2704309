"""Near-duplicate detection compared with `datasketch`: documents/s on one core, same documents and shingles.

    python benchmarks/duplicates.py [--data ../shared/data/pretrain] [--documents 20000] [--sample 1000]

Documents are groups of paragraphs of about 500 words, from JSON lines (`.jsonl.xz`) or, without files, random words;
one in five is a copy of an earlier one with some words changed. Times are processor time. Ours includes everything from
the texts to the duplicates, with tables on disk. The peer is `MinHash` of 128 permutations and `MinHashLSH`, queried
and filled in input order, on a sample because it is slow; it is skipped if it is not installed. Both are compared with
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
Result = tuple[np.ndarray, list[tuple[str, float]]]  # whether each document is removed; processor time of each part


def paragraphs(folder: Path) -> Iterator[str]:
    """Yield paragraphs of the files in a folder, then random words without end."""
    for file in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield from json.loads(line)["text"].split("\n")
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 11))) for _ in range(50_000)]
    while True:
        yield " ".join(words[int(len(words) * rng.random() ** 4)] for _ in range(80))


def documents(folder: Path, count: int) -> list[str]:
    """Generate documents, some of them near duplicates."""
    rng = random.Random(1)
    texts: list[str] = []
    pending: list[str] = []
    size = 0
    for paragraph in paragraphs(folder):
        pending.append(paragraph)
        size += paragraph.count(" ") + 1
        if size < WORDS:
            continue
        texts.append("\n".join(pending))
        pending, size = [], 0
        if rng.random() < 0.25:
            words = rng.choice(texts[-1000:]).split(" ")
            rate = rng.choice((0.002, 0.01, 0.02, 0.05))
            texts.append(" ".join(rng.choice(words) if rng.random() < rate else word for word in words))
        if len(texts) >= count:
            return texts[:count]
    raise AssertionError("there are always more paragraphs")


def ours(texts: list[str], work: Path) -> Result:
    """Find near duplicates with `minhash_signatures` and `find_duplicates`."""
    start = time.process_time()
    exact: list[np.ndarray] = []
    signatures: list[np.ndarray] = []
    for low in range(0, len(texts), PART):
        for name, array, parts in zip(("e", "s"), minhash_signatures(texts[low : low + PART]), (exact, signatures)):
            np.save(work / f"{name}{low}.npy", array)
            parts.append(np.load(work / f"{name}{low}.npy", mmap_mode="r"))
    middle = time.process_time()
    duplicate_of, _ = find_duplicates(exact, signatures, np.ones(len(texts), dtype=bool), THRESHOLD, work / "tables")
    end = time.process_time()
    return duplicate_of >= 0, [("fingerprints", middle - start), ("tables", end - middle)]


def shingles(text: str) -> set[str]:
    """Return the word n-grams of a text."""
    words = WORD.findall(text.lower())
    return {" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(len(words) - SHINGLE_WORDS + 1, 1))}


def peer(texts: list[str]) -> Result:
    """Find near duplicates with datasketch."""
    from datasketch import MinHash, MinHashLSH

    blank = MinHash(num_perm=SIGNATURE_SIZE)
    start = time.process_time()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=SIGNATURE_SIZE)
    signatures: dict[int, MinHash] = {}
    is_removed = np.zeros(len(texts), dtype=bool)
    for number, text in enumerate(texts):
        signature = blank.copy()
        signature.update_batch([shingle.encode() for shingle in shingles(text)])
        candidates = [signatures[other] for other in index.query(signature)]
        is_removed[number] = any(other.jaccard(signature) >= THRESHOLD for other in candidates)
        if not is_removed[number]:
            signatures[number] = signature
            index.insert(number, signature)
    return is_removed, [("all", time.process_time() - start)]


def truth(texts: list[str]) -> np.ndarray:
    """Find near duplicates by exact similarities."""
    unique: list[set[str]] = []
    is_removed = np.zeros(len(texts), dtype=bool)
    for number, grams in enumerate(map(shingles, texts)):
        similar = (len(grams & other) >= THRESHOLD * len(grams | other) for other in unique if grams & other)
        is_removed[number] = any(similar)
        if not is_removed[number]:
            unique.append(grams)
    return is_removed


def best(run: Callable[[], Result]) -> Result:
    """Return the fastest of three runs."""
    return min((run() for _ in range(3)), key=lambda result: sum(seconds for _, seconds in result[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/pretrain"), help="folder with .jsonl.xz files"
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--sample", type=int, default=1000, help="documents for the peer and for recall and precision")
    options = parser.parse_args()
    texts = documents(options.data, options.documents)
    sample = texts[: options.sample]
    words = sum(text.count(" ") + 1 for text in texts) / len(texts)
    print(header(f"near duplicates: {len(texts):,} documents of {words:.0f} words, threshold {THRESHOLD}"))
    expected = truth(sample)

    def row(name: str, is_removed: np.ndarray, times: list[tuple[str, float]], count: int) -> list[object]:
        num_correct = int((is_removed[: len(sample)] & expected).sum())
        recall = num_correct / max(expected.sum(), 1)
        precision = num_correct / max(is_removed[: len(sample)].sum(), 1)
        return [name, f"{count / sum(s for _, s in times):,.0f}", f"{recall:.3f}", f"{precision:.3f}"]

    with tempfile.TemporaryDirectory() as folder:
        is_removed, times = best(lambda: ours(texts, Path(folder)))
        rows = [row("polyseme", is_removed, times, len(texts))]
        rows += [[f"  {name}", f"{len(texts) / seconds:,.0f}", "", ""] for name, seconds in times]
    if importlib.util.find_spec("datasketch"):
        rows.append(row(f"datasketch, {len(sample)} documents", *best(lambda: peer(sample)), len(sample)))
    else:
        rows.append(["datasketch is not installed", "", "", ""])
    print(table(("", "documents/s per core", "recall", "precision"), rows))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{int(is_removed.sum()):,} removed; exact count for the first {len(sample):,}: {int(expected.sum())}")
    print(f"peak memory, including the texts: {memory:,.0f} MB")


if __name__ == "__main__":
    main()
