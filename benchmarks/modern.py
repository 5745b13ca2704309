"""What each change of the `modern` preset is worth: one small model, the same text, the same seconds of training.

    python benchmarks/modern.py --train CORPUS --held-out CORPUS --out FOLDER [--seconds 25] [--variants NAME …]

The corpora are made by `polyseme prepare` with one vocabulary. Each variant is pre-trained for so many seconds (its
steps are timed first; compiling does not count) and measured on all of the held-out text, 15 % of its tokens masked.
The models stay in FOLDER/NAME/model for `benchmarks/glue.py`; figures are in FOLDER/results.json after each variant.
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
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import build_train_state, evaluate, pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig
from polyseme.train.streams import open_streams

PLAIN = Recipe(  # BERT-small with masked words alone, as its paper trains
    name="plain", family="bert", size="small", objective=MaskedLM(), max_len=128, batch_tokens=131_072,
    micro_batch_tokens=65_536, optimizer=OptimizerConfig(lr=1e-3, beta2=0.98),
    schedule=ScheduleConfig("linear", warmup=0.06), compile=True, valid_fraction=0.0, eval_every=10**9,
    save_every=10**9, log_every=100,
)  # fmt: skip


def no_dropout(recipe: Recipe) -> Recipe:
    return recipe.replace(model={**recipe.model, "dropout": 0.0, "attention_dropout": 0.0})


def masked_30(recipe: Recipe) -> Recipe:
    return recipe.replace(objective=MaskedLM(mask_prob=0.3))


def layout(recipe: Recipe) -> Recipe:
    """Pre-norm, rotary positions, gated feed-forward, no biases; dropout stays as it was."""
    return recipe.replace(family="modernbert", model={"dropout": 0.1, "attention_dropout": 0.1, **recipe.model})


def muon(recipe: Recipe) -> Recipe:
    return recipe.replace(optimizer=recipe.optimizer.replace(name="muon"))


def ramp(recipe: Recipe) -> Recipe:
    """Half the batch for the first tokens."""
    return recipe.replace(batch_warmup_steps=400)


def rate_2e3(recipe: Recipe) -> Recipe:
    return recipe.replace(optimizer=recipe.optimizer.replace(lr=2e-3))


EACH: dict[str, Callable[[Recipe], Recipe]] = {
    "no dropout": no_dropout,
    "30 % masked": masked_30,
    "layout": layout,
    "muon": muon,
    "batch_warmup_steps": ramp,
    "rate 2e-3": rate_2e3,
}
CHANGES: dict[str, tuple[Callable[[Recipe], Recipe], ...]] = {
    "plain": (),
    **{name: (change,) for name, change in EACH.items()},
    "all": tuple(EACH.values()),
    **{f"all but {left}": tuple(c for name, c in EACH.items() if name != left) for left in EACH},
}


def recipe_of(name: str) -> Recipe:
    recipe = PLAIN
    for change in CHANGES[name]:
        recipe = change(recipe)
    return recipe.replace(name=name)


def seconds_a_step(recipe: Recipe, corpus: Path) -> float:
    """Of steps as they come once all is compiled, the whole batch in each."""
    device = setup_device()
    opened, tokenizer = Corpus.open(corpus), Tokenizer.load(corpus / "tokenizer")
    data, _ = open_streams(recipe, opened, SpecialIds.from_tokenizer(tokenizer))
    run = build_train_state(recipe, recipe.model_config(tokenizer.vocab_size), device)
    run.total_steps = 60
    began = 0.0
    for report in train(run, data.steps(DataPosition(), recipe.batch_warmup_steps)):
        if report.step in (20, run.total_steps) and report.metrics:
            began, before = time.perf_counter(), began
    return (began - before) / (run.total_steps - 20)


def measure(recipe: Recipe, train_on: Path, held_out: Path, out: Path, seconds: float) -> dict[str, Any]:
    each = seconds_a_step(recipe, train_on)
    bins = recipe.batch_tokens // recipe.micro_batch_tokens
    saved = recipe.batch_warmup_steps * (bins - 1) / (2 * bins)  # steps, by the ramp
    recipe = recipe.replace(budget=BudgetConfig(steps=max(int(seconds / each + saved), 10)))
    torch._dynamo.reset()
    began = time.perf_counter()
    results = pretrain(recipe, train_on, out)
    wall = time.perf_counter() - began
    return {
        "steps": results["steps"],
        "tokens": results["tokens"],
        "seconds": results["device_hours"] * 3600,
        "wall": wall,
        "parameters": results["parameters"],
        **held_out_loss(out / "model", held_out),
    }


def held_out_loss(model: Path, held_out: Path, rate: float = 0.15) -> dict[str, float]:
    """Nats and accuracy on masked tokens of the whole held-out text, in float32."""
    from polyseme.train.loop import TrainState
    from polyseme.weights.folder import load_model

    folder, device = load_model(model), setup_device()
    optim = OptimizerConfig()
    run = TrainState(
        folder.model.to(device),
        optim.build(folder.model, folder.model.trunk.layer_groups()),
        optim,
        ScheduleConfig(),
        0,
        device,
    )
    recipe = PLAIN.replace(
        objective=MaskedLM(mask_prob=rate), eval_tokens=10**9, compile=False, micro_batch_tokens=16_384
    )
    bound, _ = open_streams(recipe, Corpus.open(held_out), SpecialIds.from_tokenizer(folder.tokenizer))
    found = evaluate(run, bound.builder, recipe)
    return {"nats": found["masked"], "accuracy": found["masked_accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--variants", nargs="*", default=list(CHANGES), choices=list(CHANGES))
    parser.add_argument("--set", nargs="*", default=[], help="path=value, on every variant")
    given = parser.parse_args()
    from polyseme.cli.output import apply_overrides

    print(header(f"equal seconds of training: {given.seconds:g}"), flush=True)
    found: dict[str, dict[str, Any]] = {}
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.variants:
        folder = given.out / name.replace(" ", "-").replace("%", "percent")
        recipe = apply_overrides(recipe_of(name), given.set)
        found[name] = measure(recipe, given.train, given.held_out, folder, given.seconds)
        (given.out / "results.json").write_text(json.dumps(found, indent=2))
        print(name, found[name], flush=True)
    rows = [
        (n, f"{r['nats']:.3f}", f"{r['accuracy']:.3f}", f"{r['tokens'] / 1e6:.0f} M", f"{r['steps']:,}")
        for n, r in found.items()
    ]
    print("\n" + table(["variant", "held-out nats", "accuracy", "tokens", "steps"], rows))


if __name__ == "__main__":
    main()
