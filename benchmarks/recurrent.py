"""Training steps of LSTM language models compared with plain `nn.LSTM` modules: same sizes and tokens.

    python benchmarks/recurrent.py [--rounds 9] [--sizes small,awd] [--lanes 40] [--segment 70]

All compute the loss of every token over a tied softmax, clip the gradient and use fused AdamW. The peer is a stack of
`nn.LSTM` without dropout. Ours runs in the training loop: fused without dropout, fused with the five dropouts of
AWD-LSTM (words, input, weights, hidden, output), and with the reference implementation, which loops over tokens in
Python. The losses of the first step are compared. The sides take turns, and the median counts. On a GPU both use
bfloat16.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from report import header, median_seconds, table
from torch import Tensor, nn

from polyseme.nn.heads.lm import LMHeadConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.objectives.batch import Batch, SegmentExtra, SegmentState, Targets
from polyseme.train.loop import TrainState, setup_device, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

SIZES = {  # vocabulary, embedding size, layers
    "tiny": (2000, 64, (128, 64)),
    "small": (10_000, 200, (200, 200)),
    "medium": (10_000, 650, (650, 650)),
    "awd": (33_278, 400, (1150, 1150, 400)),
}
DROPOUTS: dict[str, Any] = {
    "input_dropout": 0.4,
    "dropout": 0.25,
    "output_dropout": 0.4,
    "weight_dropout": 0.5,
    "variational_dropout": True,
}
PEER = "nn.LSTM, no dropout"


class Peer(nn.Module):
    """Language model of `nn.LSTM` layers with tied embeddings."""

    def __init__(self, vocab: int, dim: int, sizes: tuple[int, ...]):
        super().__init__()
        self.tokens, self.bias = nn.Embedding(vocab, dim), nn.Parameter(torch.zeros(vocab))
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in zip((dim, *sizes), sizes))
        self.states: list[Any] = [None] * len(sizes)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        """Return the loss and keep the final states."""
        x = self.tokens(tokens)
        for i, layer in enumerate(self.layers):
            x, state = layer(x, self.states[i])
            self.states[i] = tuple(s.detach() for s in state)
        return F.cross_entropy(F.linear(x.flatten(0, 1), self.tokens.weight, self.bias).float(), values)


def ours(
    size: str, device: torch.device, batch: Batch, dropouts: bool, reference: bool
) -> tuple[Model, Callable[[], float]]:
    """Return the model and its training step."""
    vocab, dim, sizes = SIZES[size]
    embeddings = EmbeddingsConfig(
        vocab, dim, 1 << 20, position_embedding_type="none", embedding_row_dropout=0.1 * dropouts
    )
    trunk = RecurrentTrunkConfig(embeddings, sizes, **(DROPOUTS if dropouts else {}))
    model = ModelConfig("rnn_lm", trunk, {"next": LMHeadConfig(vocab, bias=True)}).build(0).to(device)
    model.trunk.use_reference = reference
    optim = OptimizerConfig(lr=1e-3, weight_decay=0.0, max_grad_norm=0.25)
    precision = "bf16" if device.type == "cuda" else "float32"
    schedule, optimizer = ScheduleConfig("constant", warmup=0), optim.build(model, model.trunk.layer_groups())
    run = TrainState(model, optimizer, optim, schedule, 1 << 30, device, precision=precision)
    stateful_batch = replace(batch, extra=SegmentExtra(SegmentState()))
    steps = train(run, itertools.repeat(([stateful_batch], None)))
    return model, lambda: next(steps).loss["next"]


def theirs(size: str, device: torch.device, batch: Batch, model: Model, lanes: int) -> Callable[[], float]:
    """Return the training step of the peer, which has our weights."""
    peer = Peer(*SIZES[size]).to(device)
    with torch.no_grad():
        peer.tokens.weight.copy_(model.trunk.token_embeddings)
        for peer_layer, layer in zip(peer.layers, model.trunk.stacks[0]):
            for name, weight in layer.cells[0].named_parameters():
                getattr(peer_layer, f"{name}_l0").copy_(weight)
    optimizer = torch.optim.AdamW(peer.parameters(), 1e-3, eps=1e-6, weight_decay=0.0, fused=True)
    tokens = batch.inputs.tokens.view(lanes, -1).t().contiguous().to(device)
    values = batch.targets["next"].labels.view(lanes, -1).t().reshape(-1).to(device)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = peer(tokens, values)
        loss.backward()
        nn.utils.clip_grad_norm_(peer.parameters(), 0.25)
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="small")
    parser.add_argument("--lanes", type=int, default=40)
    parser.add_argument("--segment", type=int, default=70)
    args = parser.parse_args()
    device, rows = setup_device(), []
    number = args.lanes * args.segment
    for size in args.sizes.split(","):
        draw = torch.Generator().manual_seed(0)
        tokens, values = (torch.randint(0, SIZES[size][0], (number,), generator=draw) for _ in range(2))
        targets = {"next": Targets(torch.arange(number), values, number)}
        batch = Batch(Inputs(tokens, PackedLayout.from_lengths([args.segment] * args.lanes)), targets, number)
        model, fused = ours(size, device, batch, dropouts=False, reference=False)
        work = {PEER: theirs(size, device, batch, model, args.lanes), "polyseme, no dropout": fused}
        work["polyseme, five dropouts"] = ours(size, device, batch, dropouts=True, reference=False)[1]
        work["polyseme, reference"] = ours(size, device, batch, dropouts=False, reference=True)[1]
        first = [step() for step in work.values()]
        assert abs(first[1] - first[0]) < 0.02 and abs(first[3] - first[0]) < 0.02, first
        for step in work.values():  # kernels are chosen in the first steps
            step()
        rates = {name: number / seconds for name, seconds in median_seconds(work, args.rounds).items()}
        rows += [[size, name, f"{rate:,.0f}", f"{rate / rates[PEER]:.2f}"] for name, rate in rates.items()]
    print(header(f"Recurrent language models, {args.lanes} streams of {args.segment} tokens per step"))
    print(table(["size", "model", "tokens/s", "relative to nn.LSTM"], rows))


if __name__ == "__main__":
    main()
