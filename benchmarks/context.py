"""Effective context length and its cost: Transformer-XL, a Transformer with a fixed window, and an LSTM.

    python benchmarks/context.py CORPUS [--seconds 60] [--dim 128] [--layers 2] [--segment 64] [--out FOLDER] …

The three are pre-trained on one corpus for the same time and with the same width; the Transformers have `--layers`
layers, the LSTM two, with about as many weights. `--only` trains one of them, so that three commands with one `--out`
can run in parallel; finished models are not trained again. Then, on held-out text:

- relative effective context length (Dai et al. 2019, §4.4): evenly spaced tokens, all with `--furthest` tokens of
  their own document before them, are predicted from contexts of 1, 2, … times `--step` tokens. The length of a model is
  where one more step stops to improve on the best model of the group;
- tokens/s of prediction with a given context: with a memory, each token is read once; without one, a window is read
  again for each token.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from report import header, table

from polyseme.corpus.store import Corpus
from polyseme.evaluation.context_length import (
    evaluate_segments,
    evaluate_sliding_window,
    losses_by_context,
    relative_effective_contexts,
)
from polyseme.io.json import read_json
from polyseme.nn.model import Model
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.packing import SpecialIds
from polyseme.objectives.streaming_lm import StreamingCausalLM
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import count_parameters, setup_device
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import load_model


def recipes(args: argparse.Namespace) -> dict[str, Recipe]:
    """Return the three recipes, with the same width, batch, budget and schedule."""
    heads = max(args.dim // 64, 1)
    common = {"num_layers": args.layers, "dim": args.dim, "num_heads": heads, "dropout": 0.0}
    bins = args.lanes * args.segment

    def run(family: str, model: dict, objective: StreamingCausalLM | CausalLM, rate: float) -> Recipe:
        return Recipe(
            name=f"context-{family}",
            family=family,
            model=model,
            objective=objective,
            max_len=args.segment,
            batch_tokens=bins,
            micro_batch_tokens=bins,
            budget=BudgetConfig(minutes=args.seconds / 60),
            optimizer=OptimizerConfig(lr=rate, beta2=0.98, weight_decay=0.0),
            schedule=ScheduleConfig("cosine", warmup=0.05, min_lr_ratio=0.05),
            valid_fraction=0.02,
            eval_every=10**6,
            save_every=10**6,
            log_every=50,
        )

    attention = common | {"attention_dropout": 0.0}
    # LSTMs train well with two layers; the width gives it the 13 dim² weights per layer of Transformer-XL.
    lstm = {"num_layers": 2, "dim": args.dim, "hidden_dim": round(13 * args.layers * args.dim / 18), "dropout": 0.0}
    lstm |= {"has_projection": True}
    return {
        "transformer_xl": run(
            "transformer_xl", attention | {"memory_len": args.segment}, StreamingCausalLM(), args.rate
        ),
        "fixed window": run("gpt2", attention | {"max_len": args.segment}, CausalLM(), args.rate),
        "lstm": run("rnn_lm", lstm, StreamingCausalLM(), 2 * args.rate),
    }


def held_out(path: Path, tokens: int, furthest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return held-out documents as one stream, and the positions with enough of their document before them."""
    tokenizer = Tokenizer.load(path / "tokenizer")
    _, held = Corpus.open(path).split(0.02)
    if held is None:
        raise SystemExit(f"{path} is too small: no document is held out")
    marks = SpecialIds(tokenizer.vocab_size, tokenizer.all_special_ids, eos=tokenizer.special_token_ids.eos)
    bound = StreamingCausalLM().bind(held, marks, 16, 0)
    text = bound.segment_batch(np.array([0]), min(tokens, bound.stream_end)).inputs.tokens
    positions = torch.arange(len(text))
    is_end = text == tokenizer.special_token_ids.eos
    last_end = torch.where(is_end, positions, -1).cummax(0).values  # of a document, up to each position
    return text, positions[positions - last_end > furthest]


def read(model: Model, name: str, text: torch.Tensor, context: int, segment: int) -> list[tuple[str, float]]:
    """Return (method, tokens/s) of each way to read a text with this context, after a warm-up."""
    methods = {}
    if name == "lstm":
        methods["state"] = lambda part: evaluate_segments(model, part, segment)
    if name == "transformer_xl":
        methods["memory"] = lambda part: evaluate_segments(model, part, segment, context)
    if name != "lstm" and context <= model.config.trunk.embeddings.max_len:
        few = min(len(text), 4 * context)  # windows are so slow that only a part of the text is read
        methods["windows"] = lambda part: evaluate_sliding_window(model, part[: context + few], context, batch_size=16)
    rates = []
    for name, evaluate in methods.items():
        evaluate(text[: 2 * context])
        rates.append((name, evaluate(text).tokens_per_second))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--segment", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument(
        "--step", type=int, default=0, help="step of the context length; default: a sixteenth of --furthest"
    )
    parser.add_argument("--furthest", type=int, default=512)
    parser.add_argument("--places", type=int, default=500, help="number of tokens predicted with every context")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.01, 0.001])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=["transformer_xl", "fixed-window", "lstm"], help="train only this model")
    args = parser.parse_args()
    out, device = args.out or Path(tempfile.mkdtemp()), setup_device()
    step = args.step or max(args.furthest // 16, 1)
    contexts = list(range(step, args.furthest + 1, step))
    text, candidates = (t.to(device) for t in held_out(args.corpus, 400 * args.places, args.furthest))
    if len(candidates) < args.places:
        raise SystemExit(f"only {len(candidates)} held-out tokens have {args.furthest} tokens of context")
    places = candidates[torch.linspace(0, len(candidates) - 1, args.places, device=device).long()]
    models, losses, rows = {}, {}, []
    for name, recipe in recipes(args).items():
        folder = out / name.replace(" ", "-")
        if args.only and folder.name != args.only:
            continue
        done = folder / "results.json"
        results = read_json(done) if done.exists() else pretrain(recipe, args.corpus, folder, folder.exists())
        if args.only:
            return
        models[name] = load_model(folder / "model").model.to(device)
        losses[name] = losses_by_context(models[name], text, places, contexts)
        size, perplexity = count_parameters(models[name]), results["valid"]["perplexity"]
        rows.append([name, f"{size:,}", results["steps"], f"{perplexity:.1f}"])
    print(header("Context: effective length and cost"))
    print(f"{args.seconds:.0f} s of training each, segments of {args.segment}, {len(places)} held-out tokens\n")
    print(table(["model", "parameters", "steps", "valid perplexity"], rows), "\n")
    shares = (0.1, 0.5, 1.0)
    for threshold in args.thresholds:
        lengths = [relative_effective_contexts(losses, contexts, share, threshold) for share in shares]
        print(f"relative effective context length, steps of {step} to {args.furthest}, threshold {threshold}\n")
        rows = [[name, *(by_model[name] for by_model in lengths)] for name in models]
        print(table(["model", *(f"hardest {share:.0%}" for share in shares)], rows), "\n")
    print("mean loss by context, nats\n")
    shown = contexts[:: max(len(contexts) // 8, 1)]
    print(table(["model", *map(str, shown)], [
        [name, *(f"{float(loss[contexts.index(c)].mean()):.3f}" for c in shown)] for name, loss in losses.items()
    ]), "\n")  # fmt: skip
    rows = []
    for context in (args.segment, args.furthest):
        for name, model in models.items():
            for method, rate in read(model, name, text[: 20 * args.furthest], context, args.segment):
                rows.append([context, name, method, f"{rate:,.0f}"])
    print("prediction with a given context\n")
    print(table(["context", "model", "method", "tokens/s"], rows))


if __name__ == "__main__":
    main()
