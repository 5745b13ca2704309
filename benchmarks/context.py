"""How much context models use, and what it costs: Transformer-XL, a Transformer with a fixed window, an LSTM.

    python benchmarks/context.py CORPUS [--seconds 60] [--dim 128] [--layers 2] [--segment 64] [--out FOLDER] …

The three are trained by `pretrain` on one prepared corpus for the same seconds each, at the same width; the
Transformers have `--layers` layers, the LSTM two, with about as many weights. `--only` trains one of them, so that
three calls with one `--out` can go side by side; what is trained there is not trained again. Then, on held-out text:

- relative effective context length (Dai et al. 2019, §4.4): tokens at even places, all with `--furthest` tokens
  of their own document before them, are predicted from 1, 2, … steps of `--step` tokens, and a model's length is where
  one step more stops to pay, by the group's best;
- tokens/s of predicting a text with so much in sight: with a memory, each token is read once; without one, a window is
  read anew for each token.
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
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.schedule import ScheduleConfig
from polyseme.weights.folder import load_model


def recipes(given: argparse.Namespace) -> dict[str, Recipe]:
    """The three runs: same width, batch, budget and schedule."""
    heads = max(given.dim // 64, 1)
    common = {"num_layers": given.layers, "dim": given.dim, "num_heads": heads, "dropout": 0.0}
    bins = given.lanes * given.segment

    def run(family: str, model: dict, objective: StreamingCausalLM | CausalLM, rate: float) -> Recipe:
        return Recipe(
            name=f"context-{family}",
            family=family,
            model=model,
            objective=objective,
            max_len=given.segment,
            batch_tokens=bins,
            micro_batch_tokens=bins,
            budget=BudgetConfig(minutes=given.seconds / 60),
            optimizer=OptimizerConfig(lr=rate, beta2=0.98, weight_decay=0.0),
            schedule=ScheduleConfig("cosine", warmup=0.05, min_lr_ratio=0.05),
            valid_fraction=0.02,
            eval_every=10**6,
            save_every=10**6,
            log_every=50,
        )

    attention = common | {"attention_dropout": 0.0}
    # as deep as LSTMs train well, and as wide as gives it the 13 dim² of each layer of Transformer-XL
    lstm = {"num_layers": 2, "dim": given.dim, "hidden_dim": round(13 * given.layers * given.dim / 18), "dropout": 0.0}
    lstm |= {"has_projection": True}
    return {
        "transformer_xl": run(
            "transformer_xl", attention | {"memory_len": given.segment}, StreamingCausalLM(), given.rate
        ),
        "fixed window": run("gpt2", attention | {"max_len": given.segment}, CausalLM(), given.rate),
        "lstm": run("rnn_lm", lstm, StreamingCausalLM(), 2 * given.rate),
    }


def held_out(path: Path, tokens: int, furthest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Held-out documents as one stream, and the places in it that have so much of their document before them."""
    tokenizer = Tokenizer.load(path / "tokenizer")
    _, held = Corpus.open(path).split(0.02)
    if held is None:
        raise SystemExit(f"{path} is too small to hold documents out")
    marks = SpecialIds(tokenizer.vocab_size, tokenizer.all_special_ids, eos=tokenizer.special_token_ids.eos)
    bound = StreamingCausalLM().bind(held, marks, 16, 0)
    text = bound.segment_batch(np.array([0]), min(tokens, bound.stream_end)).tokens
    numbers = torch.arange(len(text))
    ended = (
        torch.where(text == tokenizer.special_token_ids.eos, numbers, -1).cummax(0).values
    )  # where a document did, up to here
    return text, numbers[numbers - ended > furthest]


def read(model: Model, name: str, text: torch.Tensor, context: int, segment: int) -> list[tuple[str, float]]:
    """(how, tokens/s) of each way to read a text with so much in sight, after a short trial."""
    ways = {}
    if name == "lstm":
        ways["state"] = lambda part: evaluate_segments(model, part, segment)
    if name == "transformer_xl":
        ways["memory"] = lambda part: evaluate_segments(model, part, segment, context)
    if name != "lstm" and context <= model.config.trunk.embeddings.max_len:
        few = min(len(text), 4 * context)  # windows cost so much that a part of the text has to do
        ways["windows"] = lambda part: evaluate_sliding_window(model, part[: context + few], context, batch_size=16)
    found = []
    for how, work in ways.items():
        work(text[: 2 * context])
        found.append((how, work(text).tokens_per_second))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--segment", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--step", type=int, default=0, help="of the context; a sixteenth of the furthest, if 0")
    parser.add_argument("--furthest", type=int, default=512)
    parser.add_argument("--places", type=int, default=500, help="tokens that are predicted at every context")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.01, 0.001])
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", choices=["transformer_xl", "fixed-window", "lstm"], help="train this one, and no more"
    )
    given = parser.parse_args()
    out, device = given.out or Path(tempfile.mkdtemp()), setup_device()
    step = given.step or max(given.furthest // 16, 1)
    contexts = list(range(step, given.furthest + 1, step))
    text, there = (t.to(device) for t in held_out(given.corpus, 400 * given.places, given.furthest))
    if len(there) < given.places:
        raise SystemExit(
            f"of the tokens held out {len(there)} have --furthest {given.furthest} of a document before them"
        )
    places = there[torch.linspace(0, len(there) - 1, given.places, device=device).long()]
    models, losses, rows = {}, {}, []
    for name, recipe in recipes(given).items():
        folder = out / name.replace(" ", "-")
        if given.only and folder.name != given.only:
            continue
        done = folder / "results.json"
        results = read_json(done) if done.exists() else pretrain(recipe, given.corpus, folder, folder.exists())
        if given.only:
            return
        models[name] = load_model(folder / "model").model.to(device)
        losses[name] = losses_by_context(models[name], text, places, contexts)
        size, perplexity = count_parameters(models[name]), results["valid"]["perplexity"]
        rows.append([name, f"{size:,}", results["steps"], f"{perplexity:.1f}"])
    print(header("context: how much of it is used, and what it costs"))
    print(f"{given.seconds:.0f} s of training each, segments of {given.segment}, {len(places)} places held out\n")
    print(table(["model", "parameters", "steps", "valid perplexity"], rows), "\n")
    shares = (0.1, 0.5, 1.0)
    for threshold in given.thresholds:
        reached = [relative_effective_contexts(losses, contexts, share, threshold) for share in shares]
        print(f"relative effective context length, steps of {step} to {given.furthest}, threshold {threshold}\n")
        rows = [[name, *(each[name] for each in reached)] for name in models]
        print(table(["model", *(f"hardest {share:.0%}" for share in shares)], rows), "\n")
    print("mean loss by context, nats\n")
    shown = contexts[:: max(len(contexts) // 8, 1)]
    print(table(["model", *map(str, shown)], [
        [name, *(f"{float(found[contexts.index(c)].mean()):.3f}" for c in shown)] for name, found in losses.items()
    ]), "\n")  # fmt: skip
    rows = []
    for context in (given.segment, given.furthest):
        for name, model in models.items():
            for how, pace in read(model, name, text[: 20 * given.furthest], context, given.segment):
                rows.append([context, name, how, f"{pace:,.0f}"])
    print("reading with so much in sight\n")
    print(table(["context", "model", "by", "tokens/s"], rows))


if __name__ == "__main__":
    main()
