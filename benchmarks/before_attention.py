"""Perplexity of the language models before attention on one text: same vocabulary, same stream of words, same time.

    python benchmarks/before_attention.py --train CORPUS --test CORPUS --out FOLDER [--seconds 150]
        [--epochs 0] [--models lstm awd …] [--seeds 1] [--jobs 1] [--set path=value …]

The corpora are made by `polyseme prepare` with one vocabulary of words. Each network reads the text as one stream, with
what it remembers handed on, for so many seconds (`--jobs` of them at once share the device and slow each other), or so
many `--epochs`, and is measured once, at the end, on the whole test text; n-grams are counted. Perplexity is by the
nats of the whole text over its words; the networks predict the end of each document too, n-grams that of each sentence.
FOLDER/results.json has each as it is done, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import math
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from report import header, table

from polyseme.io.json import read_json, write_json

LANES, SEGMENT = 64, 70
RNN = {"num_layers": 2, "dim": 650, "dropout": 0.5}
NETWORKS: dict[str, tuple[str, dict[str, Any], float, float]] = {  # family, model, rate, clipping
    "nnlm": ("nnlm", {"dim": 300, "hidden_dim": 600, "window": 5, "dropout": 0.3}, 1e-3, 1.0),
    "rnn": ("rnn_lm", {**RNN, "cell": "rnn"}, 5e-4, 0.25),
    "gru": ("rnn_lm", {**RNN, "cell": "gru"}, 1e-3, 0.25),
    "lstm": ("rnn_lm", {**RNN, "cell": "lstm"}, 1e-3, 0.25),
    "awd": ("ulmfit", {"num_layers": 3, "dim": 400, "hidden_dim": 1150, "embedding_row_dropout": 0.1,
                       "input_dropout": 0.65, "hidden_dropout": 0.2}, 2e-3, 0.25),
}  # fmt: skip
COUNTED = {"3-gram": 3, "5-gram": 5}


def network(name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    from polyseme.cli.output import apply_overrides
    from polyseme.corpus.store import Corpus
    from polyseme.objectives.packing import SpecialIds
    from polyseme.objectives.streaming_lm import StreamingCausalLM
    from polyseme.train.loop import setup_device
    from polyseme.train.optimizer import OptimizerConfig
    from polyseme.train.pretrain import build_train_state, evaluate, pretrain
    from polyseme.train.recipe import BudgetConfig, Recipe
    from polyseme.train.schedule import ScheduleConfig
    from polyseme.train.streams import open_streams
    from polyseme.weights.folder import load_model

    family, model, rate, clip = NETWORKS[name]
    awd = StreamingCausalLM(bptt_std=5.0, activation_reg=2.0, temporal_activation_reg=1.0)
    budget = BudgetConfig(minutes=options.seconds / 60)
    if options.epochs:
        budget = BudgetConfig(tokens=int(options.epochs * Corpus.open(options.train).num_tokens))
    recipe = Recipe(
        name=name, family=family, size="", model=model, objective=awd if name == "awd" else StreamingCausalLM(),
        seed=seed, max_len=SEGMENT, batch_tokens=LANES * SEGMENT, micro_batch_tokens=LANES * SEGMENT,
        budget=budget,
        optimizer=OptimizerConfig(lr=rate, eps=1e-8, weight_decay=1e-6, max_grad_norm=clip),
        schedule=ScheduleConfig("cosine", warmup=100), valid_fraction=0.0, eval_every=10**9, save_every=10**9,
        log_every=100,
    )  # fmt: skip
    recipe = apply_overrides(recipe, options.set)
    out = options.out / f"{name}-{seed}"
    found = pretrain(recipe, options.train, out)
    folder = load_model(out / "model")
    measured = recipe.replace(
        objective=StreamingCausalLM(), eval_tokens=10**9, micro_batch_tokens=10 * SEGMENT, batch_tokens=700
    )
    run = build_train_state(measured.replace(precision="float32"), folder.model.config, setup_device())
    run.model.load_state_dict(folder.model.state_dict())
    test = Corpus.open(options.test)
    data, _ = open_streams(measured, test, SpecialIds.from_tokenizer(folder.tokenizer))
    nats = evaluate(run, data.builder, measured)["next"]
    return {
        **{key: found[key] for key in ("steps", "tokens", "parameters")},
        "seconds": found["device_hours"] * 3600,
        "perplexity": math.exp(nats * (1 + test.num_documents / test.num_tokens)),
    }


def counted(name: str, options: argparse.Namespace) -> dict[str, float]:
    from polyseme.corpus.store import Corpus
    from polyseme.ngram.model import NgramFolder
    from polyseme.ngram.train import NgramRecipe, measure_perplexity, train_ngram

    folder = options.out / name
    results = train_ngram(NgramRecipe(name=name, order=COUNTED[name], valid_fraction=0.0), options.train, folder)
    found = measure_perplexity(NgramFolder.load(folder / "model").ngrams, Corpus.open(options.test))
    return {"seconds": results["device_hours"] * 3600, "perplexity": found["perplexity_words"]}


def job(name: str, seed: int, options: argparse.Namespace) -> tuple[str, dict[str, float]]:
    found = counted(name, options) if name in COUNTED else network(name, seed, options)
    return f"{name}, seed {seed}", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("train", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--epochs", type=float, default=0.0)
    parser.add_argument("--models", nargs="*", default=[*COUNTED, *NETWORKS], choices=[*COUNTED, *NETWORKS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], help="path=value, on every network")
    options = parser.parse_args()
    each = f"{options.epochs:g} epochs" if options.epochs else f"{options.seconds:g} s"
    print(header(f"{each} a network, {options.jobs} at a time"), flush=True)
    path = options.out / "results.json"
    done: dict[str, dict[str, float]] = read_json(path) if path.exists() else {}
    pairs = [(m, s) for m in options.models for s in range(1 if m in COUNTED else options.seeds)]
    pairs = [(m, s) for m, s in pairs if f"{m}, seed {s}" not in done]
    options.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(job, *pair, options) for pair in pairs]):
            name, found = future.result()
            done[name] = found
            write_json(path, done)
            print(name, found, flush=True)
    lines = []
    for model in options.models:
        runs = [run for name, run in done.items() if name.startswith(f"{model}, ")]
        if runs:
            values = [run["perplexity"] for run in runs]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            epochs = f"{runs[0]['tokens'] / 1e6:.0f} M" if "tokens" in runs[0] else ""
            lines.append((model, f"{statistics.fmean(values):.1f}{spread}", f"{runs[0]['seconds']:.0f}", epochs))
    print("\n" + table(["model", "perplexity", "seconds", "words read"], lines))


if __name__ == "__main__":
    main()
