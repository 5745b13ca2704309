"""Training steps on a CPU compared with `transformers`: same weights, texts of uneven length and targets.

    python benchmarks/train_cpu.py [--rounds 5] [--sizes tiny,small]

Both sides train masked LM and next-sentence prediction with fused AdamW. The peer is `BertForPreTraining` on the batch
padded to its longest row, as its own collator does; ours reads the same rows packed, and its head only the predicted
positions. In a second row the peer groups by length: micro-batches of 16 rows of similar length. Losses are compared at
every step. The sides take turns, and the median counts; padding is not counted as tokens.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from report import header, table

from polyseme.families import FAMILIES
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.weights.convert import to_published

VOCAB = 30522


def make_batch(rng: np.random.Generator, num_tokens: int, max_len: int) -> Batch:
    """Generate rows of log-normal length, about `num_tokens` in total; 15 % of the tokens are predicted."""
    lengths: list[int] = []
    while sum(lengths) < num_tokens:
        lengths.append(int(np.clip(rng.lognormal(3.6, 0.7), 8, max_len)))
    lengths.sort()
    layout = PackedLayout.from_lengths(lengths)
    ids = torch.from_numpy(rng.integers(1000, VOCAB, layout.num_tokens))
    rows = torch.from_numpy(np.flatnonzero(rng.random(layout.num_tokens) < 0.15))
    pairs = torch.from_numpy(rng.integers(0, 2, len(lengths)))
    targets = {
        "masked": Targets(rows, ids[rows], len(rows)),
        "pair": Targets(torch.arange(len(lengths)), pairs, len(lengths)),
    }
    return Batch(Inputs(ids, layout, torch.zeros_like(ids)), targets, layout.num_tokens)


class Peer:
    """`BertForPreTraining` with our weights, and its optimizer."""

    def __init__(self, config: ModelConfig, model: Model):
        from transformers import BertConfig, BertForPreTraining

        family = FAMILIES["bert"]
        self.model: Any = BertForPreTraining(BertConfig(**family.to_hf_config(config)))
        self.model.load_state_dict(to_published(family, config, model.state_dict())[0], strict=False)
        self.model.tie_weights()
        self.model.train()
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=1e-6, fused=True)

    def step(self, batch: Batch, rows_per_batch: int) -> float:
        """Train on micro-batches of so many rows, each padded to its longest; return the loss of the last one."""
        lengths, tokens, loss = batch.inputs.layout.lengths, batch.inputs.tokens, 0.0
        labels = torch.full_like(tokens, IGNORE_INDEX)
        labels[batch.targets["masked"].rows] = batch.targets["masked"].labels
        starts = np.cumsum([0, *lengths])
        self.optimizer.zero_grad()
        for first in range(0, len(lengths), rows_per_batch):
            layout = PackedLayout.from_lengths(lengths[first : first + rows_per_batch])
            part = slice(int(starts[first]), int(starts[first]) + layout.num_tokens)
            output = self.model(
                input_ids=layout.pad(tokens[part]),
                attention_mask=layout.attention_mask().long(),
                token_type_ids=layout.pad(batch.inputs.segments[part]),
                labels=layout.pad(labels[part], IGNORE_INDEX),
                next_sentence_label=batch.targets["pair"].labels[first : first + rows_per_batch],
            )
            output.loss.backward()
            loss = float(output.loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def time_grouped_step(self, batch: Batch) -> float:
        """Return the seconds of a step on rows of similar length, and undo the step."""
        state = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        seconds, _ = timed(lambda: self.step(batch, 16))
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        return seconds


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    value = function()
    return time.perf_counter() - start, value


def measure(size: str, rounds: int) -> tuple[dict[str, float], float]:
    """Return the tokens/s of both sides and of the peer with grouping, and the share of padding."""
    torch.manual_seed(0)
    config = FAMILIES["bert"].model_config(size, dropout=0.0, attention_dropout=0.0)
    model = config.build(0)
    peer = Peer(config, model)
    optim, schedule = OptimizerConfig(lr=1e-4), ScheduleConfig("constant", warmup=0)
    optimizer = optim.build(model, model.trunk.layer_groups())
    state = TrainState(model, optimizer, optim, schedule, 1 << 30, torch.device("cpu"))
    rng = np.random.default_rng(0)
    batches = [make_batch(rng, 2048, 256) for _ in range(rounds + 2)]
    reports = train(state, (([batch], None) for batch in batches))
    times: dict[str, list[float]] = {"ours": [], "padded": [], "grouped": []}
    padding = []
    for i, batch in enumerate(batches):
        lengths = batch.inputs.layout.lengths
        our_seconds, report = timed(lambda: next(reports))
        peer_seconds, peer_loss = timed(lambda: peer.step(batch, len(lengths)))  # noqa: B023
        grouped_seconds = peer.time_grouped_step(batch)
        loss = sum(report.loss.values())
        assert abs(loss - peer_loss) < 2e-3 * peer_loss, f"step {i}: {loss} and {peer_loss}"
        if i >= 2:
            for name, seconds in zip(times, (our_seconds, peer_seconds, grouped_seconds)):
                times[name].append(seconds / batch.num_tokens)
            padding.append(1 - batch.num_tokens / (len(lengths) * max(lengths)))
    return {name: 1 / statistics.median(values) for name, values in times.items()}, statistics.fmean(padding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="tiny,small")
    options = parser.parse_args()
    rows = []
    for size in options.sizes.split(","):
        rates, padding = measure(size, options.rounds)
        peers = {"padded": f"one padded batch ({padding:.0%} padding)", "grouped": "16 rows of similar length"}
        for name, batches in peers.items():
            ratio = f"{rates['ours'] / rates[name]:.2f}×"
            rows.append((f"BERT-{size}", f"{rates['ours']:,.0f}", batches, f"{rates[name]:,.0f}", ratio))
    print(header("Training steps on texts of uneven length (log-normal, 8 to 256 tokens); losses agree at every step"))
    print(table(["model", "polyseme tokens/s", "transformers reads", "tokens/s", "ratio"], rows))


if __name__ == "__main__":
    main()
