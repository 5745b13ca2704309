"""Ablation of ModernBERT's changes: one small model, the same text, the same training time.

    python benchmarks/modern.py --train CORPUS --held-out CORPUS --out FOLDER [--seconds 25] [--variants NAME …]

Prepare both corpora with `polyseme prepare` and one vocabulary. Each variant is pre-trained for `--seconds` (its steps
are timed first; compilation does not count) and evaluated on the whole held-out text with 15 % of the tokens masked.
The models are in FOLDER/NAME/model, for `benchmarks/glue.py`; FOLDER/results.json is written after each variant.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import header, table

from polyseme.corpus.sampling import DataPosition
from polyseme.corpus.store import Corpus
from polyseme.objectives.masked_lm import MaskedLM
from polyseme.objectives.packing import SpecialIds
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import setup_device, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import build_train_state, evaluate, pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.streams import open_streams

PLAIN = Recipe(  # BERT-small with masked LM only
    name="plain", family="bert", size="small", objective=MaskedLM(), max_len=128, batch_tokens=131_072,
    micro_batch_tokens=65_536, optimizer=OptimizerConfig(lr=1e-3, beta2=0.98),
    schedule=ScheduleConfig("linear", warmup=0.06), compile=True, valid_fraction=0.0, eval_every=10**9,
    save_every=10**9, log_every=100,
)  # fmt: skip


EACH: dict[str, Callable[[Recipe], Recipe]] = {
    "no dropout": lambda r: r.replace(model={**r.model, "dropout": 0.0, "attention_dropout": 0.0}),
    "30 % masked": lambda r: r.replace(objective=MaskedLM(mask_prob=0.3)),
    # pre-norm, rotary positions, gated feed-forward, no biases; the same dropout
    "layout": lambda r: r.replace(family="modernbert", model={"dropout": 0.1, "attention_dropout": 0.1, **r.model}),
    "muon": lambda r: r.replace(optimizer=r.optimizer.replace(name="muon")),
    "batch_warmup_steps": lambda r: r.replace(batch_warmup_steps=400),
    "rate 2e-3": lambda r: r.replace(optimizer=r.optimizer.replace(lr=2e-3)),
}
CHANGES: dict[str, tuple[Callable[[Recipe], Recipe], ...]] = {
    "plain": (),
    **{name: (change,) for name, change in EACH.items()},
    "all": tuple(EACH.values()),
    **{f"all but {omitted}": tuple(c for name, c in EACH.items() if name != omitted) for omitted in EACH},
}


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a variant."""
    recipe = PLAIN
    for change in CHANGES[name]:
        recipe = change(recipe)
    return recipe.replace(name=name)


def seconds_per_step(recipe: Recipe, corpus: Path) -> float:
    """Time steps with the whole batch, after compilation."""
    device = setup_device()
    opened, tokenizer = Corpus.open(corpus), Tokenizer.load(corpus / "tokenizer")
    data, _ = open_streams(recipe, opened, SpecialIds.from_tokenizer(tokenizer))
    run = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), device)
    run.total_steps = 60
    now = before = 0.0
    for report in train(run, data.steps(DataPosition(), recipe.batch_warmup_steps)):
        if report.step in (20, run.total_steps) and report.metrics:
            now, before = time.perf_counter(), now
    return (now - before) / (run.total_steps - 20)


def measure(recipe: Recipe, train_on: Path, held_out: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Train a variant for the given time and return its results."""
    step_seconds = seconds_per_step(recipe, train_on)
    bins = recipe.batch_tokens // recipe.micro_batch_tokens
    saved_steps = recipe.batch_warmup_steps * (bins - 1) / (2 * bins)  # by smaller batches at the start
    recipe = recipe.replace(budget=BudgetConfig(steps=max(int(seconds / step_seconds + saved_steps), 10)))
    torch._dynamo.reset()
    start = time.perf_counter()
    results = pretrain(recipe, train_on, out)
    wall = time.perf_counter() - start
    return {
        "steps": results["steps"],
        "tokens": results["tokens"],
        "seconds": results["device_hours"] * 3600,
        "wall": wall,
        "parameters": results["parameters"],
        **held_out_loss(out / "model", held_out),
    }


def held_out_loss(model: Path, held_out: Path, rate: float = 0.15) -> dict[str, float]:
    """Return loss in nats and accuracy on masked tokens of the whole held-out text, in float32."""
    from polyseme.train.loop import TrainState
    from polyseme.weights.folder import load_model

    folder, device = load_model(model), setup_device()
    optim = OptimizerConfig()
    optimizer = optim.build(folder.model, folder.model.trunk.layer_groups())
    run = TrainState(folder.model.to(device), optimizer, optim, ScheduleConfig(), 0, device)
    objective = MaskedLM(mask_prob=rate)
    recipe = PLAIN.replace(objective=objective, eval_tokens=10**9, compile=False, micro_batch_tokens=16_384)
    bound, _ = open_streams(recipe, Corpus.open(held_out), SpecialIds.from_tokenizer(folder.tokenizer))
    metrics = evaluate(run, bound.builder, recipe)
    return {"nats": metrics["masked"], "accuracy": metrics["masked_accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--variants", nargs="*", default=list(CHANGES), choices=list(CHANGES))
    parser.add_argument("--set", nargs="*", default=[], help="path=value, applied to every variant")
    args = parser.parse_args()
    from polyseme.cli.output import apply_overrides

    print(header(f"{args.seconds:g} s of training per variant"), flush=True)
    results: dict[str, dict[str, Any]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.variants:
        folder = args.out / name.replace(" ", "-").replace("%", "percent")
        recipe = apply_overrides(recipe_of(name), args.set)
        results[name] = measure(recipe, args.train, args.held_out, folder, args.seconds)
        (args.out / "results.json").write_text(json.dumps(results, indent=2))
        print(name, results[name], flush=True)
    rows = [
        (n, f"{r['nats']:.3f}", f"{r['accuracy']:.3f}", f"{r['tokens'] / 1e6:.0f} M", f"{r['steps']:,}")
        for n, r in results.items()
    ]
    print("\n" + table(["variant", "held-out nats", "accuracy", "tokens", "steps"], rows))


if __name__ == "__main__":
    main()
