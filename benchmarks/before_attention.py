"""Perplexity of language models without attention on one text: same vocabulary, same stream of words, same time.

    python benchmarks/before_attention.py --train CORPUS --test CORPUS --out FOLDER [--seconds 150]
        [--epochs 0] [--models lstm awd …] [--seeds 1] [--jobs 1] [--set path=value …]

Prepare both corpora with `polyseme prepare` and one vocabulary of words. Each network reads the text as one stream with
carried state for `--seconds` (`--jobs` of them share the device and slow each other down) or `--epochs`, and is
evaluated once, at the end, on the whole test text. Perplexity is the total loss divided by the number of words; the
networks also predict the end of each document, n-grams that of each sentence. FOLDER/results.json is written after each
run, and the same command continues from there.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from report import format_mean_std, header, mean_std, table

from polyseme.io.json import read_json, write_json

STREAMS, SEGMENT = 64, 70
RNN = {"num_layers": 2, "dim": 650, "dropout": 0.5}
NETWORKS: dict[str, tuple[str, dict[str, Any], float, float]] = {  # family, model, lr, max_grad_norm
    "nnlm": ("nnlm", {"dim": 300, "hidden_dim": 600, "window": 5, "dropout": 0.3}, 1e-3, 1.0),
    "rnn": ("rnn_lm", {**RNN, "cell": "rnn"}, 5e-4, 0.25),
    "gru": ("rnn_lm", {**RNN, "cell": "gru"}, 1e-3, 0.25),
    "lstm": ("rnn_lm", {**RNN, "cell": "lstm"}, 1e-3, 0.25),
    "awd": ("ulmfit", {"num_layers": 3, "dim": 400, "hidden_dim": 1150, "embedding_row_dropout": 0.1,
                       "input_dropout": 0.65, "hidden_dropout": 0.2}, 2e-3, 0.25),
}  # fmt: skip
NGRAMS = {"3-gram": 3, "5-gram": 5}


def train_network(name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Train a network and return its test perplexity."""
    from polyseme.cli.output import apply_overrides
    from polyseme.corpus.store import Corpus
    from polyseme.objectives.packing import SpecialIds
    from polyseme.objectives.streaming_lm import StreamingCausalLM
    from polyseme.train.loop import setup_device
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
    from polyseme.train.pretrain import build_train_state, evaluate, pretrain
    from polyseme.train.recipe import BudgetConfig, Recipe
    from polyseme.train.streams import open_streams
    from polyseme.weights.folder import load_model

    family, model, lr, max_grad_norm = NETWORKS[name]
    awd = StreamingCausalLM(bptt_std=5.0, activation_reg=2.0, temporal_activation_reg=1.0)
    budget = BudgetConfig(minutes=options.seconds / 60)
    if options.epochs:
        budget = BudgetConfig(tokens=int(options.epochs * Corpus.open(options.train).num_tokens))
    recipe = Recipe(
        name=name, family=family, size="", model=model, objective=awd if name == "awd" else StreamingCausalLM(),
        seed=seed, max_len=SEGMENT, batch_tokens=STREAMS * SEGMENT, micro_batch_tokens=STREAMS * SEGMENT,
        budget=budget,
        optimizer=OptimizerConfig(lr=lr, eps=1e-8, weight_decay=1e-6, max_grad_norm=max_grad_norm),
        schedule=ScheduleConfig("cosine", warmup=100), valid_fraction=0.0, eval_every=10**9, save_every=10**9,
        log_every=100,
    )  # fmt: skip
    recipe = apply_overrides(recipe, options.set)
    out = options.out / f"{name}-{seed}"
    results = pretrain(recipe, options.train, out)
    folder = load_model(out / "model")
    eval_recipe = recipe.replace(
        objective=StreamingCausalLM(), eval_tokens=10**9, micro_batch_tokens=10 * SEGMENT, batch_tokens=700
    )
    run = build_train_state(eval_recipe.replace(precision="float32"), folder.model.config, setup_device())
    run.model.load_state_dict(folder.model.state_dict())
    test = Corpus.open(options.test)
    data, _ = open_streams(eval_recipe, test, SpecialIds.from_tokenizer(folder.tokenizer))
    nats = evaluate(run, data.builder, eval_recipe)["next"]
    return {
        **{key: results[key] for key in ("steps", "tokens", "parameters")},
        "seconds": results["device_hours"] * 3600,
        "perplexity": math.exp(nats * (1 + test.num_documents / test.num_tokens)),
    }


def count_ngrams(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Train an n-gram model and return its test perplexity."""
    from polyseme.corpus.store import Corpus
    from polyseme.ngram.model import NgramFolder
    from polyseme.ngram.train import NgramRecipe, measure_perplexity, train_ngram

    folder = options.out / name
    results = train_ngram(NgramRecipe(name=name, order=NGRAMS[name], valid_fraction=0.0), options.train, folder)
    metrics = measure_perplexity(NgramFolder.load(folder / "model").ngrams, Corpus.open(options.test))
    return {"seconds": results["device_hours"] * 3600, "perplexity": metrics["perplexity_words"]}


def job(name: str, seed: int, options: argparse.Namespace) -> tuple[str, dict[str, float]]:
    """Run one model and seed; return its name and its results."""
    results = count_ngrams(name, options) if name in NGRAMS else train_network(name, seed, options)
    return f"{name}, seed {seed}", results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("train", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--epochs", type=float, default=0.0)
    parser.add_argument("--models", nargs="*", default=[*NGRAMS, *NETWORKS], choices=[*NGRAMS, *NETWORKS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], help="path=value, applied to every network")
    options = parser.parse_args()
    each = f"{options.epochs:g} epochs" if options.epochs else f"{options.seconds:g} s"
    print(header(f"{each} per network, {options.jobs} at a time"), flush=True)
    path = options.out / "results.json"
    done: dict[str, dict[str, float]] = read_json(path) if path.exists() else {}
    pairs = [(m, s) for m in options.models for s in range(1 if m in NGRAMS else options.seeds)]
    pairs = [(m, s) for m, s in pairs if f"{m}, seed {s}" not in done]
    options.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(job, *pair, options) for pair in pairs]):
            name, done[name] = future.result()
            write_json(path, done)
            print(name, done[name], flush=True)
    lines = []
    for model in options.models:
        runs = [run for name, run in done.items() if name.startswith(f"{model}, ")]
        if runs:
            perplexity = format_mean_std(mean_std([run["perplexity"] for run in runs]))
            words = f"{runs[0]['tokens'] / 1e6:.0f} M" if "tokens" in runs[0] else ""
            lines.append((model, perplexity, f"{runs[0]['seconds']:.0f}", words))
    print("\n" + table(["model", "perplexity", "seconds", "words read"], lines))


if __name__ == "__main__":
    main()
