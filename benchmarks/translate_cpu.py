"""Translating on a CPU: our Transformer beside CTranslate2 with the same weights, in one process.

    python benchmarks/translate_cpu.py MODEL SOURCES [--sentences 1000] [--beams 5 1] [--batches 1 64] [--threads 2]
        [--rounds 3] [--types float32 int8]

MODEL is a folder of the family `transformer` (the recipe transformer-multi30k), SOURCES a text, a sentence a line. The
weights are handed over through `ctranslate2.specs`. Both are given ids, so no tokenizer is in the times, and batches of
sentences of like length. The translations are compared: float32 has to give the same
tokens for nearly all sentences, and the same scores for these.

A beam of CTranslate2 stops when as many texts have ended as it is wide (patience 1), ours when nothing better can come;
so ours is measured with both rules. Times are the best of the rounds, taken in turn: of the clock, and of the
processor for whoever shares the machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import header, table

import polyseme
from polyseme.generation.beam import beam_search
from polyseme.generation.sample import generate_tokens
from polyseme.generation.text import TextGenerator
from polyseme.nn.layers.positions import sinusoidal_embedding
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig

WARM = 20  # sentences before the clock starts
Found = list[tuple[tuple[int, ...], float]]  # of each sentence its tokens and their log-probability


def peer_folder(writer: TextGenerator, out: Path) -> Path:
    """The model as CTranslate2 reads it."""
    from ctranslate2 import specs

    model: Any = writer.model
    spec = model.config.trunk
    if model.config.family != "transformer" or not isinstance(spec, EncoderDecoderConfig):
        raise SystemExit(f"{writer.path} is of the family {model.config.family}, expected transformer")
    weights = {name: t.detach().float().numpy() for name, t in model.state_dict().items()}
    made = specs.TransformerSpec.from_config(
        (spec.num_layers, spec.decoder.num_layers), spec.num_heads, pre_norm=False, activation=specs.Activation.RELU
    )
    own = "encoder" if model.trunk.has_shared_embeddings else "decoder"
    sides: list[tuple[str, str, Any]] = [("encoder", "encoder", made.encoder), ("decoder", own, made.decoder)]
    for side, table_of, stack in sides:
        rows = weights[f"trunk.{table_of}.embeddings.tokens.weight"]
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight, embeddings.multiply_by_sqrt_depth = rows, True
        places = getattr(spec, side).embeddings.max_len
        stack.position_encodings.encodings = sinusoidal_embedding(places, torch.empty(1, spec.dim)).numpy()
        for i, layer in enumerate(stack.layer):
            name = f"trunk.{side}.blocks.{i}"
            qkv, attention = weights[f"{name}.attention.qkv.weight"], layer.self_attention
            parts = [(attention.linear[0], qkv), (attention.linear[1], weights[f"{name}.attention.out.weight"])]
            norms = [(attention.layer_norm, "attention_post_norm"), (layer.ffn.layer_norm, "ffn_post_norm")]
            if side == "decoder":
                cross, matrix = layer.attention, weights[f"{name}.cross_attention.qkv.weight"]
                parts += zip(
                    cross.linear, (*np.split(matrix, [spec.dim]), weights[f"{name}.cross_attention.out.weight"])
                )
                norms.append((cross.layer_norm, "cross_attention_post_norm"))
            for linear, matrix in parts:
                linear.weight = matrix
            for norm, which in norms:
                norm.gamma, norm.beta = weights[f"{name}.{which}.weight"], weights[f"{name}.{which}.bias"]
            for linear, which in ((layer.ffn.linear_0, "up"), (layer.ffn.linear_1, "down")):
                linear.weight, linear.bias = weights[f"{name}.ffn.{which}.weight"], weights[f"{name}.ffn.{which}.bias"]
    made.decoder.projection.weight = weights[f"trunk.{own}.embeddings.tokens.weight"]
    for register, side in ((made.register_source_vocabulary, "encoder"), (made.register_target_vocabulary, own)):
        register([str(i) for i in range(len(weights[f"trunk.{side}.embeddings.tokens.weight"]))])
    start, (end,) = str(writer.start_ids[0]), map(str, writer.eos_token_ids)
    made.config.bos_token, made.config.decoder_start_token, made.config.eos_token = start, start, end
    made.config.unk_token, made.config.layer_norm_epsilon = (
        str(writer.target_tokenizer.special_token_ids.unk or 0),
        spec.block.post_norm.eps,
    )
    made.validate()
    made.optimize()
    made.save(str(out))
    return out


def ours(
    writer: TextGenerator, sources: list[list[int]], width: int, batch: int, patience: float, number: int
) -> Found:
    """Batches of like length, as `TextGenerator.search` makes them, but of a number of sentences."""
    sources = sources[:number]
    found: Found = [((), 0.0)] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), batch):
        index = order[first : first + batch]
        some = [sources[i] for i in index]
        mosts, prompts = [2 * len(ids) + 20 for ids in some], [writer.start_ids] * len(some)
        if width > 1:
            marks = writer.eos_token_ids, writer.suppress_tokens
            texts = [
                f.hypotheses[0]
                for f in beam_search(writer.model, prompts, mosts, width, 1.0, 1, some, *marks, patience=patience)
            ]
        else:
            texts = generate_tokens(
                writer.model,
                prompts,
                mosts,
                sources=some,
                eos_token_ids=writer.eos_token_ids,
                suppress_tokens=writer.suppress_tokens,
            )
        for i, text in zip(index, texts):
            found[i] = text.tokens, text.score
    return found


def theirs(translator: Any, sources: list[list[str]], width: int, batch: int, number: int) -> Found:
    sources = sources[:number]
    how = {"beam_size": width, "max_decoding_length": 200, "min_decoding_length": 0, "return_scores": True}
    batches = [sources] if batch > 1 else [[source] for source in sources]
    results = [r for some in batches for r in translator.translate_batch(some, max_batch_size=batch, **how)]
    found = [tuple(map(int, r.hypotheses[0])) for r in results]
    return [(tokens, r.scores[0] * (len(tokens) + 1)) for tokens, r in zip(found, results)]


def compare(mine: Found, other: Found) -> tuple[float, float]:
    """The share of sentences with the same tokens, and how far scores of these differ at most."""
    same = [(a[1], b[1]) for a, b in zip(mine, other) if a[0] == b[0]]
    return len(same) / len(mine), max((abs(a - b) for a, b in same), default=float("nan"))


def timed(work: dict[str, Callable[..., Found]], number: int, rounds: int) -> tuple[dict[str, Found], dict[str, Any]]:
    """What each found, and its seconds of the clock and of the processor: the best of the rounds, each in turn."""
    found: dict[str, Found] = {}
    best = {name: (math.inf, math.inf) for name in work}
    for count in [min(number, WARM), *[number] * rounds]:
        for name, run in work.items():
            clock, processor = time.perf_counter(), time.process_time()
            found[name] = run(count)
            spent = time.perf_counter() - clock, time.process_time() - processor
            if count == number:
                best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return found, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beams", nargs="+", type=int, default=[5, 1])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--types", nargs="+", default=["float32", "int8"])
    args = parser.parse_args()
    try:
        import ctranslate2
    except ImportError:
        raise SystemExit("CTranslate2 is not here: pip install ctranslate2") from None
    torch.set_num_threads(args.threads)
    writer = TextGenerator.from_folder(polyseme.load(args.model, device="cpu").folder)
    lines = args.sources.read_text(encoding="utf-8").splitlines()[: args.sentences]
    sources = [writer.encode_source(line) for line in lines]
    named = [[str(token) for token in ids] for ids in sources]
    with tempfile.TemporaryDirectory() as folder:
        peer = peer_folder(writer, Path(folder))
        peers = {
            kind: ctranslate2.Translator(str(peer), compute_type=kind, intra_threads=args.threads)
            for kind in args.types
        }
    print(header(f"Translating {len(lines)} sentences, CTranslate2 {ctranslate2.__version__}"))
    rows = []
    for width, batch in itertools.product(args.beams, args.batches):
        work: dict[str, Callable[..., Found]] = {}
        if width > 1:
            work["polyseme, provably best"] = partial(ours, writer, sources, width, batch, 0.0)
        work["polyseme"] = partial(ours, writer, sources, width, batch, 1.0)
        for kind, translator in peers.items():
            work[f"CTranslate2 {kind}"] = partial(theirs, translator, named, width, batch)
        found, times = timed(work, len(lines), args.rounds)
        base = times.get("CTranslate2 float32", (math.nan, math.nan))
        for name, (clock, processor) in times.items():
            same, apart = compare(found["polyseme"], found[name])
            if name == "CTranslate2 float32" and not (same > 0.95 and apart < 0.01):
                raise SystemExit(f"beam {width}: only {same:.1%} are the same, their scores to {apart:.4f}")
            tokens = sum(len(text) + 1 for text, _ in found[name])
            rows.append([
                width, batch, name, f"{len(lines) / clock:,.0f}", f"{tokens / clock:,.0f}",
                f"{1000 * processor / len(lines):.2f}", f"{base[0] / clock:.2f}×", f"{base[1] / processor:.2f}×",
                f"{same:.1%}", f"{apart:.0e}",
            ])  # fmt: skip
    names = ["beam", "batch", "what", "sentences/s", "tokens/s", "processor, ms a sentence", "speed against float32",
             "by processor time", "same texts", "scores apart"]  # fmt: skip
    print(table(names, rows))


if __name__ == "__main__":
    main()
