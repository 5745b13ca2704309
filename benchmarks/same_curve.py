"""Speed must not change results: loss curves of the fast loop on a GPU against the plain one's, and against seeds.

    python benchmarks/same_curve.py --corpus CORPUS [--steps 500] [--seeds 3] [--out FILE.json]

Plain is float32 without compiling, recording or kernels of our own; fast is what `polyseme pretrain` does on a GPU.
Both train BERT-small on the same batches. Curves are means over 25 steps. The distance between plain and fast at one
seed has to lie within the distances between seeds of the plain version.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

from modern import PLAIN
from report import header, table

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.objectives.packing import SpecialIds
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device, train
from polyseme.train.pretrain import build_train_state
from polyseme.train.recipe import Recipe
from polyseme.train.streams import open_streams

EACH = 25  # steps of one point of a curve


def curve(recipe: Recipe, corpus: Path, steps: int) -> list[float]:
    opened, tokenizer = Corpus.open(corpus), Tokenizer.load(corpus / "tokenizer")
    data, _ = open_streams(recipe, opened, SpecialIds.from_tokenizer(tokenizer))
    device = setup_device()
    run = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), device)
    run.total_steps = steps
    losses = [report.loss["masked"] for report in list(train(run, data.steps(DataPosition())))]
    return [statistics.fmean(losses[i : i + EACH]) for i in range(0, steps, EACH)]


def apart(a: list[float], b: list[float]) -> float:
    """The mean distance of two curves behind the first fifth, where every run falls steeply."""
    skip = len(a) // 5
    return statistics.fmean(abs(x - y) for x, y in zip(a[skip:], b[skip:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    base = PLAIN.replace(batch_tokens=32_768, micro_batch_tokens=32_768)
    kinds = {"plain": base.replace(compile=False, precision="float32"), "fast": base}
    found: dict[str, list[list[float]]] = {}
    for kind, recipe in kinds.items():
        found[kind] = [curve(recipe.replace(seed=seed), given.corpus, given.steps) for seed in range(given.seeds)]
        print(kind, [f"{each[-1]:.3f}" for each in found[kind]], flush=True)
    if given.out:
        given.out.write_text(json.dumps(found))
    same = [apart(a, b) for a, b in zip(found["plain"], found["fast"])]
    seeds = [apart(a, b) for a, b in itertools.combinations(found["plain"], 2)]
    print(header("mean distance of loss curves, nats"))
    rows = [
        ("plain and fast, same seed", f"{statistics.fmean(same):.4f}", f"{max(same):.4f}"),
        ("plain, two seeds", f"{statistics.fmean(seeds):.4f}", f"{max(seeds):.4f}"),
    ]
    print(table(["curves", "mean", "most"], rows))
    if max(same) > max(seeds):
        raise SystemExit("the fast version differs by more than a seed does")


if __name__ == "__main__":
    main()
