"""Loss curves of the fast training loop on a GPU compared with the plain loop, and with other seeds.

    python benchmarks/same_curve.py --corpus CORPUS [--steps 500] [--seeds 3] [--out FILE.json]

The plain loop uses float32 without compilation, CUDA graphs or our own kernels; the fast loop is that of `polyseme
pretrain` on a GPU. Both train BERT-small on the same batches. Curves are means over 25 steps. The distance between the
two loops at one seed must not exceed the distances between seeds of the plain loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

from report import header, table

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import SpecialIds
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import build_train_state
from polyseme.train.recipe import Recipe
from polyseme.train.streams import open_streams

BERT_SMALL = Recipe(
    name="bert-small", family="bert", size="small", objective=MaskedLM(), max_len=128, batch_tokens=32_768,
    micro_batch_tokens=32_768, optimizer=OptimizerConfig(lr=1e-3, beta2=0.98),
    schedule=ScheduleConfig("linear", warmup=0.06), compile=True, valid_fraction=0.0, log_every=100,
)  # fmt: skip
POINT_STEPS = 25  # steps per point of a curve


def curve(recipe: Recipe, corpus: Path, steps: int) -> list[float]:
    """Train and return the loss curve."""
    opened, tokenizer = Corpus.open(corpus), Tokenizer.load(corpus / "tokenizer")
    data, _ = open_streams(recipe, opened, SpecialIds.from_tokenizer(tokenizer))
    device = setup_device()
    run = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), device)
    run.total_steps = steps
    losses = [report.loss["masked"] for report in list(train(run, data.steps(DataPosition())))]
    return [statistics.fmean(losses[i : i + POINT_STEPS]) for i in range(0, steps, POINT_STEPS)]


def distance(a: list[float], b: list[float]) -> float:
    """Return the mean distance of two curves after the first fifth, where the loss falls steeply."""
    skip = len(a) // 5
    return statistics.fmean(abs(x - y) for x, y in zip(a[skip:], b[skip:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kinds = {"plain": BERT_SMALL.replace(compile=False, precision="float32"), "fast": BERT_SMALL}
    curves: dict[str, list[list[float]]] = {}
    for kind, recipe in kinds.items():
        curves[kind] = [curve(recipe.replace(seed=seed), args.corpus, args.steps) for seed in range(args.seeds)]
        print(kind, [f"{losses[-1]:.3f}" for losses in curves[kind]], flush=True)
    if args.out:
        args.out.write_text(json.dumps(curves))
    same = [distance(a, b) for a, b in zip(curves["plain"], curves["fast"])]
    seeds = [distance(a, b) for a, b in itertools.combinations(curves["plain"], 2)]
    print(header("Mean distance of loss curves, nats"))
    rows = [
        ("plain and fast, same seed", f"{statistics.fmean(same):.4f}", f"{max(same):.4f}"),
        ("plain, two seeds", f"{statistics.fmean(seeds):.4f}", f"{max(seeds):.4f}"),
    ]
    print(table(["curves", "mean", "maximum"], rows))
    if max(same) > max(seeds):
        raise SystemExit("the fast loop differs by more than a seed does")


if __name__ == "__main__":
    main()
