"""Training steps of each family on a CPU compared with `transformers`: same weights, tokens and targets.

    python benchmarks/families_cpu.py [--families NAME …] [--sizes tiny base] [--rounds 5] [--old FOLDER] [--threads N]

A step is forward, backward, clipping and fused AdamW. "even" is a batch of sequences of one length, where packing gains
nothing; "uneven" has log-normal lengths, which the peer pads to the longest. Losses are compared first. The sides take
turns, and the median counts; padding is not counted as tokens. The last release with Transformer-XL is transformers
4.57.6: it runs in its own process from the folder `--old` (see tests/parity/make_transfo_xl.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import our_batch, our_model, our_step, peer_inputs, peer_model, peer_step
from report import header, median_seconds, table

from polyseme.families import FAMILIES
from polyseme.families.transformer_xl import scale_cutoffs
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, Targets
from polyseme.objectives.losses import compute_losses

FAMILIES_WITH_PEER = ("bert", "roberta", "albert", "distilbert", "modernbert", "gpt", "gpt2", "xlnet", "t5")
SIZES = {"tiny": ((2, 128, 2), 32), "base": ((12, 768, 12), 4)}  # layers, dim, heads; sequences of up to 128 tokens
LENGTH = 128
CPU = torch.device("cpu")


def lengths_of(kind: str, sequences: int) -> list[int]:
    """Return the lengths of an even or uneven batch."""
    if kind == "even":
        return [LENGTH] * sequences
    drawn = np.random.default_rng(0).lognormal(3.6, 0.7, sequences)
    return sorted(int(n) for n in np.clip(drawn, 8, LENGTH))


def against(family: str, size: str, kind: str, rounds: int) -> tuple[float, float]:
    """Return tokens/s of both sides."""
    torch.manual_seed(0)
    shape, sequences = SIZES[size]
    peer = peer_model(family, *shape)
    model = our_model(family, peer)
    batch = our_batch(family, lengths_of(kind, sequences), peer.config.vocab_size)
    inputs = peer_inputs(family, batch, CPU)
    with torch.no_grad():
        ours = sum(value / batch.targets[name].count for name, value in compute_losses(model.eval(), batch).items())
        theirs = peer.eval()(**inputs).loss
    if abs(float(ours) - float(theirs)) > 1e-3:
        raise SystemExit(f"{family}: the losses differ, {float(ours):.5f} and {float(theirs):.5f}")
    model.train()
    peer.train()
    steps = {"ours": our_step(model, batch, CPU, loss_fn=compute_losses), "theirs": peer_step(peer, repeat(inputs))}
    for step in steps.values():  # warm-up
        step()
    seconds = median_seconds(steps, rounds)
    return batch.num_tokens / seconds["ours"], batch.num_tokens / seconds["theirs"]


XL = {"tiny": (2, 128, 2, 512, 10_000), "base": (16, 410, 10, 2100, 267_735)}  # layers, dim, heads, ffn, vocabulary


def transformer_xl(size: str, old: Path, rounds: int) -> tuple[float, float]:
    """Return tokens/s of both sides on segments of 64 with a memory of 64, which is full when timing starts."""
    layers, dim, heads, ffn, vocab = XL[size]
    sequences = SIZES[size][1]
    spec = FAMILIES["transformer_xl"].model_config(
        num_layers=layers, dim=dim, num_heads=heads, ffn_dim=ffn, vocab_size=vocab, memory_len=64,
        dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    tokens = torch.randint(0, vocab, (sequences * 64,))
    targets = {"next": Targets(torch.arange(len(tokens)), tokens.roll(-1), len(tokens))}
    batch = Batch(
        Inputs(tokens, PackedLayout.from_lengths([64] * sequences)),
        targets,
        len(tokens),
        extra=SegmentExtra(SegmentState()),
    )
    ours = time_step(our_step(spec.build(seed=0), batch, CPU, loss_fn=compute_losses), rounds)
    settings = json.dumps([layers, dim, heads, ffn, vocab, scale_cutoffs(vocab), sequences, rounds])
    paths = os.pathsep.join([str(old), *sys.path[1:]])
    command = [sys.executable, __file__, "--peer-of-transformer-xl", settings]
    answer = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(answer.stderr.strip().splitlines()[-1])
    return len(tokens) / ours, len(tokens) / float(answer.stdout.split()[-1])


def time_step(step: Callable[[], object], rounds: int) -> float:
    """Return the median time of a step, after a warm-up."""
    step()
    return median_seconds({"": step}, rounds)[""]


def peer_of_transformer_xl(settings: str) -> None:
    """Print the seconds per step, with the old `transformers` first on the path."""
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    layers, dim, heads, ffn, vocab, cuts, sequences, rounds = json.loads(settings)
    # That release calls `type_as(dtype=…)`, which torch does not have, instead of `to`.
    torch.Tensor.type_as = lambda self, other=None, dtype=None: self.to(dtype or other.dtype)  # type: ignore
    config = TransfoXLConfig(
        vocab_size=vocab, cutoffs=cuts, d_model=dim, d_embed=dim, n_head=heads, d_head=dim // heads, d_inner=ffn,
        n_layer=layers, div_val=1, untie_r=False, mem_len=64, clamp_len=-1, dropout=0.0, dropatt=0.0,
        same_length=False,
    )  # fmt: skip
    peer = TransfoXLLMHeadModel(config)
    tokens = torch.randint(0, vocab, (sequences, 64))
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens, "mems": None}

    def loss(out: Any) -> torch.Tensor:
        inputs["mems"] = out.mems
        return out.losses.mean()

    print(time_step(peer_step(peer, repeat(inputs), loss=loss), rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES_WITH_PEER), choices=list(FAMILIES_WITH_PEER))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--old", type=Path, help="folder with transformers 4.57.6")
    parser.add_argument("--peer-of-transformer-xl", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.peer_of_transformer_xl:
        return peer_of_transformer_xl(args.peer_of_transformer_xl)
    print(header("Training steps on a CPU, float32"), flush=True)
    lines = []
    rows = [(f, size, kind) for size in args.sizes for f in args.families for kind in ("even", "uneven")]
    rows += [("transformer_xl", size, "segments") for size in args.sizes if args.old]
    for family, size, kind in rows:
        if family == "transformer_xl":
            ours, theirs = transformer_xl(size, args.old, args.rounds)
        else:
            ours, theirs = against(family, size, kind, args.rounds)
        lines.append((family, size, kind, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}×"))
        print(*lines[-1], flush=True)
    print("\n" + table(["family", "size", "lengths", "tokens/s", "transformers", "faster by"], lines))


if __name__ == "__main__":
    main()
