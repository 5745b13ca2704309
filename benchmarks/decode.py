"""Text generation compared with `transformers.generate`: GPT-2 small and T5, in one process.

    python benchmarks/decode.py [--models gpt2 t5-small] [--batches 1 64] [--tokens 128] [--device cpu|cuda]
                                [--repeats 3] [--compiled] [--out FILE.json]

Both sides have the same random weights and decode greedily, without EOS, so that both generate the same number of
tokens after a prompt (T5: source) of 32 tokens. On a CPU (float32) the texts must be equal; on a GPU (bf16) the share
of texts that start with the same 16 tokens is reported. Peers: `generate` by default, and with `--compiled` also with a
static cache, which it compiles. Times are medians after a warm-up and include the prompt and all host work; memory is
the allocator's peak on a GPU, next to the size of the KV cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import header, table

from polyseme.families import FAMILIES
from polyseme.generation.config import GREEDY
from polyseme.generation.sample import generate_tokens
from polyseme.nn.model import Model, ModelConfig
from polyseme.weights.convert import from_published

PROMPT = 32


def peer(name: str, small: bool) -> Any:
    """Build the model of `transformers` with random weights."""
    import transformers

    torch.manual_seed(0)
    if name.startswith("gpt2"):
        size: dict[str, int] = {"n_layer": 2, "n_embd": 64, "n_head": 4} if small else {}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, pad_token_id=50256))
    sizes = {"t5-small": (512, 64, 2048, 6, 8), "t5-base": (768, 64, 3072, 12, 12)}
    dim, kv, ffn, depth, heads = (64, 16, 128, 2, 4) if small else sizes[name]
    config = transformers.T5Config(
        vocab_size=32128, d_model=dim, d_kv=kv, d_ff=ffn, num_layers=depth, num_heads=heads, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def ours(theirs: Any) -> Model:
    """Build our model with the same weights."""
    family = FAMILIES["gpt2" if theirs.config.model_type == "gpt2" else "t5"]
    state = dict(theirs.state_dict())
    trunk = family.from_hf_config(theirs.config.to_dict() | {"tensors": tuple(state)})
    spec = ModelConfig(family.name, trunk, family.pretraining_heads(trunk))
    model = spec.build(0)
    shapes = {name: t.shape for name, t in model.state_dict().items()}
    model.load_state_dict(from_published(family, spec, shapes, state, "benchmark"))
    return model.eval()


def cache_bytes(model: Model, rows: int, tokens: int, element: int) -> int:
    """Compute the size of the keys and values of targets and sources."""
    trunk: Any = model.config.trunk
    stack = getattr(trunk, "decoder", None) or trunk
    width = stack.block.attention.inner_dim(stack.dim)
    columns = 1 + tokens + PROMPT if stack is not trunk else PROMPT + tokens
    return 2 * stack.num_layers * rows * columns * width * element


def timed(work: Callable[[], Any], repeats: int, device: str) -> tuple[float, float, Any]:
    """Return the median time in seconds, the peak memory in bytes, and the value of the last call."""
    times, value, peak = [], None, 0.0
    for attempt in range(repeats + 2):
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        value = work()
        if device == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        if attempt > 1 or (device == "cpu" and attempt):
            times.append(time.perf_counter() - start)
        if device == "cpu" and len(times) == repeats:
            break
    return statistics.median(times), peak, value


def measure(name: str, batch: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare both sides on one model and batch size."""
    device, dtype = args.device, torch.bfloat16 if args.device == "cuda" else torch.float32
    theirs = peer(name, args.small).to(device, dtype).eval()
    model = ours(theirs.float()).to(device, dtype)
    theirs = theirs.to(dtype)
    is_seq2seq = theirs.config.is_encoder_decoder
    rows = torch.randint(5, 30_000, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    prompts, sources = ([[0]] * batch, rows.tolist()) if is_seq2seq else (rows.tolist(), None)
    input_ids, n = rows.to(device), args.tokens

    def generate_ours() -> list[tuple[int, ...]]:
        return [w.tokens for w in generate_tokens(model, prompts, n, GREEDY, sources)]

    def generate_theirs(**options: Any) -> list[tuple[int, ...]]:
        options |= {"max_new_tokens": n, "min_new_tokens": n, "do_sample": False}
        with torch.inference_mode():
            out = theirs.generate(input_ids, attention_mask=torch.ones_like(input_ids), **options)
        return [tuple(row[-n:]) for row in out.tolist()]

    results = []
    seconds, peak, texts = timed(generate_ours, args.repeats, device)
    num_bytes = cache_bytes(model, batch, n, torch.empty(0, dtype=dtype).element_size())
    peers: dict[str, Callable[[], Any]] = {"transformers": generate_theirs}
    if args.compiled:
        peers["transformers, static"] = lambda: generate_theirs(cache_implementation="static")
    for what, work in peers.items():
        other, other_peak, expected = timed(work, args.repeats, device)
        same = sum(a[:16] == b[:16] for a, b in zip(texts, expected)) / batch
        if device == "cpu" and same < 1 and "static" not in what:
            raise SystemExit(f"{name}: the texts differ")
        results.append({
            "model": name, "device": device, "batch": batch, "peer": what, "ours": batch * n / seconds,
            "theirs": batch * n / other, "ratio": other / seconds, "same": same, "milliseconds": 1000 * seconds / n,
            "cache": num_bytes, "peak": peak, "their_peak": other_peak,
        })  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpt2", "t5-small"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny models, to test the benchmark itself")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [row for name in args.models for batch in args.batches for row in measure(name, batch, args)]
    print(header("Greedy text generation"))
    names = ["model", "device", "batch", "ours, tokens/s", "peer", "tokens/s", "ratio", "same", "ms per step"]
    names += ["cache MB", "peak MB", "peer's peak MB"]
    shown = [
        [r["model"], r["device"], r["batch"], f"{r['ours']:,.0f}", r["peer"], f"{r['theirs']:,.0f}",
         f"{r['ratio']:.2f}×", f"{r['same']:.0%}", f"{r['milliseconds']:.2f}",
         f"{r['cache'] / 1e6:,.0f}", f"{r['peak'] / 1e6:,.0f}",
         f"{r['their_peak'] / 1e6:,.0f}"]
        for r in rows
    ]  # fmt: skip
    print(table(names, shown))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
