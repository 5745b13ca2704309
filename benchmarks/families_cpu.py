"""One training step of each family on a CPU, ours against `transformers`: same weights, same tokens, same targets.

    python benchmarks/families_cpu.py [--families NAME …] [--sizes tiny base] [--rounds 5] [--old FOLDER] [--threads N]

Each side does forward, backward, clipping and fused AdamW. "even" is a batch of sequences of one length, where packing
gains nothing; "uneven" has log-normal lengths, which the peer pads to the longest. Losses are compared first. The two
are timed in turn and the median counts; real tokens only. Transformer-XL's peer is in transformers 4.57.6 alone: with
`--old` a folder that has it (tests/parity/make_transfo_xl.py says how), it runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import our_batch, our_model, peer_inputs, peer_model
from report import header, table

from polyseme.families import FAMILIES
from polyseme.families.transformer_xl import scale_cutoffs
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, Targets
from polyseme.objectives.losses import compute_losses
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig

FAMILIES_WITH_PEER = ("bert", "roberta", "albert", "distilbert", "modernbert", "gpt", "gpt2", "xlnet", "t5")
SIZES = {"tiny": ((2, 128, 2), 32), "base": ((12, 768, 12), 4)}  # layers, dim, heads; sequences of up to 128 tokens
LENGTH = 128


def lengths_of(kind: str, sequences: int) -> list[int]:
    if kind == "even":
        return [LENGTH] * sequences
    drawn = np.random.default_rng(0).lognormal(3.6, 0.7, sequences)
    return sorted(int(n) for n in np.clip(drawn, 8, LENGTH))


def our_step(model: Model, batch: Batch) -> Callable[[], object]:
    optim = OptimizerConfig()
    optimiser = optim.build(model, model.trunk.layer_groups())
    run = TrainState(
        model, optimiser, optim, ScheduleConfig("constant"), 10**6, torch.device("cpu"), loss_fn=compute_losses
    )

    def data() -> Iterator[tuple[list[Batch], int]]:
        while True:
            yield [batch], 0

    reports = train(run, data())
    return lambda: next(reports)


def peer_step(peer: Any, inputs: dict[str, Any], loss: Callable[[Any], torch.Tensor]) -> Callable[[], object]:
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(peer(**inputs)).backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimiser.step()

    return step


def seconds(steps: list[Callable[[], object]], rounds: int) -> list[float]:
    """Of each, the median, taken in turn."""
    found: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        for times, step in zip(found, steps):
            began = time.perf_counter()
            step()
            if number:
                times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in found]


def against(family: str, size: str, kind: str, rounds: int) -> tuple[float, float]:
    """Tokens a second, ours and theirs."""
    torch.manual_seed(0)
    shape, sequences = SIZES[size]
    peer = peer_model(family, *shape)
    model = our_model(family, peer)
    batch = our_batch(family, lengths_of(kind, sequences), peer.config.vocab_size)
    inputs = peer_inputs(family, batch, torch.device("cpu"))
    with torch.no_grad():
        ours = sum(value / batch.targets[name].count for name, value in compute_losses(model.eval(), batch).items())
        theirs = peer.eval()(**inputs).loss
    if abs(float(ours) - float(theirs)) > 1e-3:
        raise SystemExit(f"{family}: the losses differ, {float(ours):.5f} and {float(theirs):.5f}")
    model.train()
    peer.train()
    steps = [our_step(model, batch), peer_step(peer, inputs, lambda out: out.loss)]
    first, second = seconds(steps, rounds)
    return batch.num_tokens / first, batch.num_tokens / second


XL = {"tiny": (2, 128, 2, 512, 10_000), "base": (16, 410, 10, 2100, 267_735)}  # layers, dim, heads, ffn, vocabulary


def transformer_xl(size: str, old: Path, rounds: int) -> tuple[float, float]:
    """Segments of 64 with a memory of 64, full from the first measured step on."""
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
    (ours,) = seconds([our_step(spec.build(seed=0), batch)], rounds)
    told = json.dumps([layers, dim, heads, ffn, vocab, scale_cutoffs(vocab), sequences, rounds])
    paths = os.pathsep.join([str(old), *sys.path[1:]])
    command = [sys.executable, __file__, "--peer-of-transformer-xl", told]
    answer = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(answer.stderr.strip().splitlines()[-1])
    return len(tokens) / ours, len(tokens) / float(answer.stdout.split()[-1])


def peer_of_transformer_xl(told: str) -> None:
    """Seconds a step, printed; with the old `transformers` first on the path."""
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    layers, dim, heads, ffn, vocab, cuts, sequences, rounds = json.loads(told)
    # that release calls `type_as(dtype=…)`, which torch does not have; `to` is what is meant
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

    print(seconds([peer_step(peer, inputs, loss)], rounds)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES_WITH_PEER), choices=list(FAMILIES_WITH_PEER))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--old", type=Path, help="a folder with transformers 4.57.6")
    parser.add_argument("--peer-of-transformer-xl", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    if given.peer_of_transformer_xl:
        return peer_of_transformer_xl(given.peer_of_transformer_xl)
    print(header("one training step on a CPU, float32"), flush=True)
    lines = []
    rows = [(f, size, kind) for size in given.sizes for f in given.families for kind in ("even", "uneven")]
    rows += [("transformer_xl", size, "segments") for size in given.sizes if given.old]
    for family, size, kind in rows:
        ours, theirs = (
            transformer_xl(size, given.old, given.rounds)
            if family == "transformer_xl"
            else against(family, size, kind, given.rounds)
        )
        lines.append((family, size, kind, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}×"))
        print(*lines[-1], flush=True)
    print("\n" + table(["family", "size", "lengths", "tokens/s", "transformers", "faster by"], lines))


if __name__ == "__main__":
    main()
