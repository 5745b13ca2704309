"""Translation on a CPU compared with CTranslate2: the same weights, in one process.

    python benchmarks/translate_cpu.py MODEL SOURCES [--sentences 1000] [--beams 5 1] [--batches 1 64] [--threads 2]
        [--rounds 3] [--types float32 int8]

MODEL is a model folder of the family `transformer` (the recipe transformer-multi30k), SOURCES a file with one sentence
per line. The weights are converted with `ctranslate2.specs`. Both sides get ids, so tokenizers are not timed, and
batches of sentences of similar length. The translations are compared: in float32 nearly all sentences must have the
same tokens, and these the same scores.

Beam search in CTranslate2 stops when as many hypotheses have ended as there are beams (patience 1); ours stops when no
better one is possible. Ours is measured with both rules. Times are the best of the rounds, in which the sides take
turns: wall-clock time, and processor time for shared machines.
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

WARM = 20  # sentences of the warm-up
Translations = list[tuple[tuple[int, ...], float]]  # tokens and log-probability of each sentence


def peer_folder(writer: TextGenerator, out: Path) -> Path:
    """Convert the model to CTranslate2 and save it."""
    from ctranslate2 import specs

    model: Any = writer.model
    spec = model.config.trunk
    if model.config.family != "transformer" or not isinstance(spec, EncoderDecoderConfig):
        raise SystemExit(f"{writer.path} is of the family {model.config.family}, expected transformer")
    weights = {name: t.detach().float().numpy() for name, t in model.state_dict().items()}
    converted = specs.TransformerSpec.from_config(
        (spec.num_layers, spec.decoder.num_layers), spec.num_heads, pre_norm=False, activation=specs.Activation.RELU
    )
    target_side = "encoder" if model.trunk.has_shared_embeddings else "decoder"
    sides: list[tuple[str, str, Any]] = [
        ("encoder", "encoder", converted.encoder),
        ("decoder", target_side, converted.decoder),
    ]
    for side, table_of, stack in sides:
        rows = weights[f"trunk.{table_of}.embeddings.tokens.weight"]
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight, embeddings.multiply_by_sqrt_depth = rows, True
        positions = torch.arange(getattr(spec, side).embeddings.max_len)
        stack.position_encodings.encodings = sinusoidal_embedding(positions, spec.dim, torch.float32).numpy()
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
    converted.decoder.projection.weight = weights[f"trunk.{target_side}.embeddings.tokens.weight"]
    for register, side in (
        (converted.register_source_vocabulary, "encoder"),
        (converted.register_target_vocabulary, target_side),
    ):
        register([str(i) for i in range(len(weights[f"trunk.{side}.embeddings.tokens.weight"]))])
    start, (end,) = str(writer.start_ids[0]), map(str, writer.eos_token_ids)
    converted.config.bos_token, converted.config.decoder_start_token, converted.config.eos_token = start, start, end
    converted.config.unk_token, converted.config.layer_norm_epsilon = (
        str(writer.target_tokenizer.special_token_ids.unk or 0),
        spec.block.post_norm.eps,
    )
    converted.validate()
    converted.optimize()
    converted.save(str(out))
    return out


def ours(
    writer: TextGenerator, sources: list[list[int]], width: int, batch: int, patience: float, number: int
) -> Translations:
    """Translate batches of similar length, as `TextGenerator.search` does, but with a fixed number of sentences."""
    sources = sources[:number]
    translations: Translations = [((), 0.0)] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), batch):
        index = order[first : first + batch]
        batch_sources = [sources[i] for i in index]
        max_tokens, prompts = [2 * len(ids) + 20 for ids in batch_sources], [writer.start_ids] * len(batch_sources)
        if width > 1:
            tokens = writer.eos_token_ids, writer.suppress_tokens
            search = (writer.model, prompts, max_tokens, width, 1.0, 1, batch_sources, *tokens)
            texts = [beam.hypotheses[0] for beam in beam_search(*search, patience=patience)]
        else:
            texts = generate_tokens(
                writer.model,
                prompts,
                max_tokens,
                sources=batch_sources,
                eos_token_ids=writer.eos_token_ids,
                suppress_tokens=writer.suppress_tokens,
            )
        for i, text in zip(index, texts):
            translations[i] = text.tokens, text.score
    return translations


def theirs(translator: Any, sources: list[list[str]], width: int, batch: int, number: int) -> Translations:
    """Translate with CTranslate2."""
    sources = sources[:number]
    options = {"beam_size": width, "max_decoding_length": 200, "min_decoding_length": 0, "return_scores": True}
    batches = [sources] if batch > 1 else [[source] for source in sources]
    results = [r for part in batches for r in translator.translate_batch(part, max_batch_size=batch, **options)]
    texts = [tuple(map(int, r.hypotheses[0])) for r in results]
    return [(tokens, r.scores[0] * (len(tokens) + 1)) for tokens, r in zip(texts, results)]


def compare(mine: Translations, other: Translations) -> tuple[float, float]:
    """Return the share of sentences with the same tokens, and the maximum difference of their scores."""
    same = [(a[1], b[1]) for a, b in zip(mine, other) if a[0] == b[0]]
    return len(same) / len(mine), max((abs(a - b) for a, b in same), default=float("nan"))


def timed(
    work: dict[str, Callable[..., Translations]], number: int, rounds: int
) -> tuple[dict[str, Translations], dict[str, Any]]:
    """Return the translations, and the best wall-clock and processor time of each side; they take turns."""
    translations: dict[str, Translations] = {}
    best = {name: (math.inf, math.inf) for name in work}
    for count in [min(number, WARM), *[number] * rounds]:
        for name, run in work.items():
            clock, processor = time.perf_counter(), time.process_time()
            translations[name] = run(count)
            spent = time.perf_counter() - clock, time.process_time() - processor
            if count == number:
                best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return translations, best


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
        raise SystemExit("CTranslate2 is not installed: pip install ctranslate2") from None
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
    print(header(f"Translation of {len(lines)} sentences, CTranslate2 {ctranslate2.__version__}"))
    rows = []
    for width, batch in itertools.product(args.beams, args.batches):
        work: dict[str, Callable[..., Translations]] = {}
        if width > 1:
            work["polyseme, exact stopping"] = partial(ours, writer, sources, width, batch, 0.0)
        work["polyseme"] = partial(ours, writer, sources, width, batch, 1.0)
        for kind, translator in peers.items():
            work[f"CTranslate2 {kind}"] = partial(theirs, translator, named, width, batch)
        translations, times = timed(work, len(lines), args.rounds)
        base = times.get("CTranslate2 float32", (math.nan, math.nan))
        for name, (clock, processor) in times.items():
            same, difference = compare(translations["polyseme"], translations[name])
            if name == "CTranslate2 float32" and not (same > 0.95 and difference < 0.01):
                raise SystemExit(
                    f"beam {width}: {same:.1%} are equal, with scores that differ by up to {difference:.4f}"
                )
            tokens = sum(len(text) + 1 for text, _ in translations[name])
            rows.append([
                width, batch, name, f"{len(lines) / clock:,.0f}", f"{tokens / clock:,.0f}",
                f"{1000 * processor / len(lines):.2f}", f"{base[0] / clock:.2f}×", f"{base[1] / processor:.2f}×",
                f"{same:.1%}", f"{difference:.0e}",
            ])  # fmt: skip
    names = ["beam", "batch", "side", "sentences/s", "tokens/s", "CPU ms per sentence", "relative to float32"]
    names += ["relative CPU time", "same texts", "difference of scores"]
    print(table(names, rows))


if __name__ == "__main__":
    main()
