"""Text generation by the server: requests that arrive over time, in continuous and in fixed batches.

    python benchmarks/serve_generation.py [--rates 4 8 16 1000] [--requests 64] [--layers 4] [--dim 256] [--out FOLDER]

A GPT-2 with random weights, whose token embeddings are scaled so that its distributions are about as peaked as those of
a trained model. Requests arrive by a Poisson process and have prompts of 4 to 64 words and 8 to 128 new tokens
(log-uniform); every second one is greedy, and the others have their own temperature, top_p and seed. The same requests
go to the queue and the thread of a model in this process, without HTTP, and their events are read as a stream reads
them. In fixed batches, requests that sample alike start together if they wait at the same time, and batches take turns.
The tokens of both must be equal. At 1000 requests per second or more, all arrive at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from report import header, table
from texts import make_texts

import polyseme
from polyseme.families import FAMILIES
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import MAX_CACHE_CELLS
from polyseme.io.json import write_json
from polyseme.serve.api.responses import GeneratedResult, TokenEvent
from polyseme.serve.batching import scheduler
from polyseme.serve.batching.generation import TextGeneration
from polyseme.serve.batching.worker import ModelWorker, WorkerLimits
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model

KINDS = ("continuous", "fixed")
VOCAB_SIZE = 6000
EMBEDDING_SCALE = 10.0
NOTE = """\
Requests arrive by a Poisson process, with prompts of 4 to 64 words and 8 to 128 new tokens; half of them sample
with their own options. In continuous batches they join and leave between two steps; in fixed ones, those that sample
alike and wait at the same time start together, and batches take turns. Both give the same tokens. The requests come
from the process of the model, without HTTP."""


def make_model(args: argparse.Namespace) -> Any:
    """Build a model with random weights, and load it as the server does."""
    import pydoc_data.topics

    family = FAMILIES["gpt2"]
    tokenizer = Tokenizer.train(
        family.tokenizer, iter([*pydoc_data.topics.topics.values(), *make_texts(200)]), VOCAB_SIZE
    )
    sizes = {"num_layers": args.layers, "dim": args.dim, "num_heads": args.dim // 32, "max_len": 512}
    config = family.model_config(**sizes, vocab_size=tokenizer.vocab_size)
    network = config.build(seed=1)
    with torch.no_grad():
        next(p for p in network.parameters() if p.shape == (tokenizer.vocab_size, args.dim)).mul_(EMBEDDING_SCALE)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", network, tokenizer, {})
        return polyseme.load(Path(folder) / "model")


def make_requests(num_requests: int) -> list[tuple[str, GenerationConfig]]:
    """Draw prompts, limits and options."""
    rng = np.random.default_rng(0)
    words = " ".join(make_texts(200)).split()
    lengths, limits = (np.exp(rng.uniform(*np.log(bounds), num_requests)).astype(int) for bounds in ((4, 64), (8, 128)))
    requests = []
    for i, (length, limit) in enumerate(zip(lengths, limits)):
        options: dict[str, Any] = {"max_new_tokens": int(limit)}
        if i % 2:
            options |= {"do_sample": True, "temperature": float(rng.choice([0.7, 1.0])), "seed": i}
            options |= {"top_p": float(rng.choice([0.9, 1.0]))}
        requests.append((" ".join(rng.choice(words, length)), GenerationConfig(**options)))
    return requests


async def run_request(model: Any, worker: ModelWorker, prompt: str, config: GenerationConfig) -> dict[str, Any]:
    """Submit a request; return when its tokens came, and the tokens."""
    generation = TextGeneration(model._text_generator, [prompt], config)
    generation.loop, generation.is_streamed = asyncio.get_running_loop(), True
    start, times = time.perf_counter(), []
    worker.submit(generation)
    while (event := await generation.events.get()) is not None:
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, TokenEvent):
            times.append(time.perf_counter())
        elif isinstance(event, GeneratedResult):
            tokens = event.tokens
    return {
        "first": times[0] - start,
        "gaps": np.diff(times).tolist(),
        "end": times[-1],
        "start": start,
        "tokens": tokens,
    }


async def run_load(model: Any, requests: list[tuple[str, GenerationConfig]], rate: float) -> list[dict[str, Any]]:
    """Submit requests at random times; return what each measured."""
    worker = ModelWorker("gpt2", WorkerLimits(max_queue=len(requests)), max_cells=MAX_CACHE_CELLS["cpu"])
    delays = np.random.default_rng(1).exponential(1 / rate, len(requests))
    start = time.perf_counter()

    async def run_later(delay: float, request: tuple[str, GenerationConfig]) -> dict[str, Any]:
        await asyncio.sleep(start + delay - time.perf_counter())
        return await run_request(model, worker, *request)

    try:
        return await asyncio.gather(*(run_later(*each) for each in zip(np.cumsum(delays), requests)))
    finally:
        await asyncio.to_thread(worker.close)


def measure(model: Any, requests: list[tuple[str, GenerationConfig]], rate: float, kind: str) -> dict[str, Any]:
    """Run a load in one kind of batch."""
    patch = mock.patch.object(scheduler, "supports_joining", lambda model: False)
    with contextlib.nullcontext() if kind == "continuous" else patch:
        records = asyncio.run(run_load(model, requests, rate))
    seconds = max(each["end"] for each in records) - min(each["start"] for each in records)
    num_tokens = sum(len(each["tokens"]) for each in records)
    firsts = 1000 * np.array([each["first"] for each in records])
    gaps = 1000 * np.concatenate([each["gaps"] for each in records])
    return {
        "kind": kind, "rate": rate, "tokens_per_second": num_tokens / seconds,
        "num_tokens": num_tokens, "seconds": seconds,
        "first_p50_ms": np.percentile(firsts, 50), "first_p99_ms": np.percentile(firsts, 99),
        "gap_p50_ms": np.percentile(gaps, 50), "gap_p99_ms": np.percentile(gaps, 99),
        "tokens": [each["tokens"] for each in records],
    }  # fmt: skip


def format_page(args: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """Return the page with its table."""
    shown = f"{args.requests} requests, GPT-2 of {args.layers} layers × {args.dim}, random weights, float32"
    names = ["requests/s", "batches", "tokens/s", "first token p50, ms", "p99", "between tokens p50, ms", "p99"]
    columns = "tokens_per_second", "first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms"
    cells = [
        [
            "at once" if row["rate"] >= 1000 else f"{row['rate']:g}",
            row["kind"],
            *(f"{row[name]:,.0f}" for name in columns),
        ]
        for row in rows
    ]
    command = " ".join(["python benchmarks/serve_generation.py", *sys.argv[1:]])
    lines = ["# Text generation by the server", "", header(shown), table(names, cells), ""]
    lines += [NOTE, ""]
    lines += [f"`{command}` writes this page and its JSON.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[4, 8, 16, 1000], help="requests per second")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    model, requests = make_model(args), make_requests(args.requests)
    for kind in KINDS:
        measure(model, requests[:16], 1000, kind)
    rows = []
    for rate in args.rates:
        pair = [measure(model, requests, rate, kind) for kind in KINDS]
        if pair[0].pop("tokens") != pair[1].pop("tokens"):
            raise SystemExit(f"at {rate:g} requests per second the tokens differ")
        rows += pair
    page = format_page(args, rows)
    print(page)
    if args.out:
        write_json(args.out / "serve-generation.json", {"measured": page.partition("|")[0].strip(), "rows": rows})
        (args.out / "serve-generation.md").write_text(page)


if __name__ == "__main__":
    main()
