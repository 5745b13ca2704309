"""One training step on a CPU, ours against `transformers`: same weights, same texts of uneven length, same targets.

    python benchmarks/train_cpu.py [--rounds 5] [--sizes tiny,small]

Both do masked LM and next sentence with fused AdamW. The peer is `BertForPreTraining` on the batch padded to its
longest row, as its own collator makes it; ours reads the same rows packed, and its head only the rows predicted.
A second row gives the peer what grouping by length would: micro-batches of 16 rows of like length.
Losses are compared at every step. The two are timed in turn, and the median counts; real tokens only.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import numpy as np
import torch
from report import header, table

from polyseme.families import FAMILIES
from polyseme.nn.inputs import Inputs
from polyseme.nn.packing import PackedLayout
from polyseme.objectives.batch import IGNORE_INDEX, Batch, Targets
from polyseme.train.loop import TrainState, train
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig
from polyseme.weights.convert import to_published

VOCAB = 30522


def make_batch(rng: np.random.Generator, tokens: int, longest: int) -> Batch:
    """Rows of log-normal length, about `tokens` in all, 15 % of them to predict."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(3.6, 0.7), 8, longest)))
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="tiny,small")
    options = parser.parse_args()
    from transformers import BertConfig, BertForPreTraining

    lines = []
    for size in options.sizes.split(","):
        torch.manual_seed(0)
        spec = FAMILIES["bert"].model_config(size, dropout=0.0, attention_dropout=0.0)
        ours = spec.build(0)
        peer = BertForPreTraining(BertConfig(**FAMILIES["bert"].to_hf_config(spec)))
        theirs, _ = to_published(FAMILIES["bert"], spec, ours.state_dict())
        peer.load_state_dict(theirs, strict=False)
        peer.tie_weights()
        peer.train()
        optim = OptimizerConfig(lr=1e-4)
        run = TrainState(ours, optim.build(ours, ours.trunk.layer_groups()), optim,
                       ScheduleConfig("constant", warmup=0), 1 << 30, torch.device("cpu"))  # fmt: skip
        decays = [p for p in peer.parameters() if p.ndim > 1], [p for p in peer.parameters() if p.ndim < 2]
        theirs_optimiser = torch.optim.AdamW(
            [{"params": decays[0], "weight_decay": 0.01}, {"params": decays[1], "weight_decay": 0.0}],
            lr=1e-4,
            eps=1e-6,
            fused=True,
        )
        rng = np.random.default_rng(0)
        batches = [make_batch(rng, 2048, 256) for _ in range(options.rounds + 2)]

        def peer_grouped(batch: Batch) -> None:
            """The same step with the padding mostly gone: rows of like length in micro-batches of 16."""
            lengths = batch.inputs.layout.lengths
            ends = np.cumsum(lengths)
            theirs_optimiser.zero_grad()  # noqa: B023
            labels = torch.full_like(batch.inputs.tokens, IGNORE_INDEX)
            labels[batch.targets["masked"].rows] = batch.targets["masked"].labels
            for at in range(0, len(lengths), 16):
                layout = PackedLayout.from_lengths(lengths[at : at + 16])
                rows = slice(int(ends[at]) - lengths[at], int(ends[at]) - lengths[at] + layout.num_tokens)
                peer(  # noqa: B023
                    input_ids=layout.pad(batch.inputs.tokens[rows]),
                    attention_mask=layout.attention_mask().long(),
                    labels=layout.pad(labels[rows], IGNORE_INDEX),
                    next_sentence_label=batch.targets["pair"].labels[at : at + 16],
                ).loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)  # noqa: B023
            theirs_optimiser.step()  # noqa: B023

        def peer_step(batch: Batch) -> float:
            layout, masked = batch.inputs.layout, batch.targets["masked"]
            labels = torch.full_like(batch.inputs.tokens, IGNORE_INDEX)
            labels[masked.rows] = masked.labels
            theirs_optimiser.zero_grad()  # noqa: B023
            out = peer(  # noqa: B023
                input_ids=layout.pad(batch.inputs.tokens),
                attention_mask=layout.attention_mask().long(),
                token_type_ids=layout.pad(batch.inputs.segments),
                labels=layout.pad(labels, IGNORE_INDEX),
                next_sentence_label=batch.targets["pair"].labels,
            )
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)  # noqa: B023
            theirs_optimiser.step()  # noqa: B023
            return float(out.loss.detach())

        loop = train(run, (([batch], None) for batch in batches))
        times: dict[str, list[float]] = {"ours": [], "theirs": [], "grouped": []}
        padded = 0.0
        for i, batch in enumerate(batches):
            began = time.perf_counter()
            report = next(loop)
            middle = time.perf_counter()
            loss = peer_step(batch)
            ended = time.perf_counter()
            saved = copy.deepcopy((peer.state_dict(), theirs_optimiser.state_dict()))
            again = time.perf_counter()
            peer_grouped(batch)
            last = time.perf_counter()
            peer.load_state_dict(saved[0])
            theirs_optimiser.load_state_dict(saved[1])
            mine = sum(report.loss.values())
            assert abs(mine - loss) < 2e-3 * loss, f"step {i}: {mine} against {loss}"
            if i >= 2:
                times["ours"].append((middle - began) / batch.num_tokens)
                times["theirs"].append((ended - middle) / batch.num_tokens)
                times["grouped"].append((last - again) / batch.num_tokens)
                padded += 1 - batch.num_tokens / (len(batch.inputs.layout.lengths) * max(batch.inputs.layout.lengths))
        rate = {name: 1 / statistics.median(values) for name, values in times.items()}
        share = padded / len(times["ours"])
        ours_rate = f"{rate['ours']:,.0f}"
        for name, what in (
            ("theirs", f"one padded batch ({share:.0%} padding)"),
            ("grouped", "16 rows of like length"),
        ):
            row = (f"BERT-{size}", ours_rate, what, f"{rate[name]:,.0f}", f"{rate['ours'] / rate[name]:.2f}×")
            lines.append(row)
    print(header("Training steps on texts of uneven length (log-normal, 8 to 256 tokens); losses agree at every step"))
    print(table(["model", "polyseme tokens/s", "transformers reads", "tokens/s", "ratio"], lines))


if __name__ == "__main__":
    main()
