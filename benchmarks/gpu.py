"""Training and encoding on one GPU, against `transformers` eager and compiled, in one process.

    python benchmarks/gpu.py [--rows NAME …] [--corpus FOLDER] [--steps 20] [--no-compiled-peer] [--out FILE.json]

Each row: the same weights on both sides (the peer's are saved and opened by us), the same tokens, the same targets;
first the losses and the gradients are compared with dropout off, then steps are timed. Ours is the loop that
`polyseme pretrain` runs, batches on the host included; the peer's is the usual one: autocast to bf16, fused AdamW,
clipping. Times are CUDA events around runs of steps, the median of three; tokens are real ones; memory is the
allocator's peak; MFU is against a matrix product measured in the same process. Rows on documents read a corpus made by
`polyseme prepare`, ours through the loader of `polyseme pretrain`; the peer gets the same samples and masks in batches
of `sequences`, padded to the longest, as its default collator does. A family is one more row in ROWS.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_parts import (
    DEVICE,
    Measured,
    Row,
    fresh,
    matrix_peak,
    measure,
)
from gpu_uneven import documents, encode, finetune
from peers import in_our_names, our_batch, our_model, peer_inputs, peer_model
from report import header, table

from polyseme.nn.compile import exclude_from_compile
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.objectives.losses import compute_losses
from polyseme.train.loop import TrainState, count_training_flops, train
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig
from polyseme.train.step import BF16WorkingCopy

BASE = {"num_layers": 12, "dim": 768, "num_heads": 12}
ROWS = {
    "bert-base-512": Row("bert", BASE, 64, 512),
    "bert-base-512-dropout": Row("bert", BASE, 64, 512, 0.1),
    "bert-base-128": Row("bert", BASE, 256, 128),
    "bert-large-512": Row("bert", {"num_layers": 24, "dim": 1024, "num_heads": 16}, 64, 512),
    "bert-small-128": Row("bert", {"num_layers": 4, "dim": 512, "num_heads": 8}, 512, 128),
    "gpt2-small-1024": Row("gpt2", BASE, 32, 1024),
    "roberta-base-512": Row("roberta", BASE, 64, 512),
    "albert-base-512": Row("albert", BASE, 64, 512),
    "xlnet-base-512": Row("xlnet", BASE, 32, 512),
    "bert-base-documents": Row("bert", BASE, 64, 512, work="documents"),
    "bert-small-documents": Row("bert", {"num_layers": 4, "dim": 512, "num_heads": 8}, 512, 128, work="documents"),
    "bert-base-finetune": Row("bert", BASE, 32, 512, 0.1, work="finetune"),
    "bert-base-encode": Row("bert", BASE, 16_384, 512, work="encode"),
}


def check(model: Model, peer: Any, row: Row, batch: Batch) -> dict[str, float]:
    """How far loss and gradients lie apart on the first sequences, ours in bf16, theirs in bf16 by autocast."""
    small = our_batch(row.family, [row.length] * 4, model.trunk.token_embeddings.shape[0])
    ours = BF16WorkingCopy(model.eval())
    sums = compute_losses(ours.copy_weights_from_master(), small.to(DEVICE))
    loss = sum(value / small.targets[name].count for name, value in sums.items())
    loss.backward()
    ours.copy_grads_to_master(is_first=True)
    peer.eval()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        theirs = peer(**peer_inputs(row.family, small, DEVICE)).loss
    theirs.backward()
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in peer.named_parameters()}
    expected = in_our_names(model, grads)
    a = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    b = torch.cat([expected[n].flatten().float() for n, p in model.named_parameters() if p.grad is not None])
    for module in (model, peer):
        module.train()
        module.zero_grad(set_to_none=True)
    found = {"loss": abs(loss.item() - theirs.item()) / theirs.item(), "gradient": ((a - b).norm() / b.norm()).item()}
    if found["loss"] > 0.01 or found["gradient"] > 0.05:
        raise SystemExit(f"the two sides differ: {found}")
    return found


def train_ours(row: Row, model: Model, batch: Batch, peak: float, steps: int) -> Measured:
    fresh()
    exclude_from_compile()
    optim = OptimizerConfig()
    run = TrainState(
        model, optim.build(model, model.trunk.layer_groups()), optim, ScheduleConfig("constant"), 10**6, DEVICE, "bf16",
        loss_fn=torch.compile(compute_losses) if model.config.trunk.supports_static_shape else compute_losses,
        use_cuda_graphs=True,
    )  # fmt: skip

    def data() -> Iterator[tuple[list[Batch], int]]:
        while True:
            yield [batch], 0

    reports = train(run, data())
    found = measure(lambda: next(reports), batch.num_tokens, count_training_flops(model, batch), peak, steps)
    reports.close()  # type: ignore[attr-defined]
    return found


def train_peer(row: Row, peer: Any, batch: Batch, flops: int, peak: float, steps: int, compiled: bool) -> Measured:
    fresh()
    model = torch.compile(peer) if compiled else peer
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-4, fused=True)
    inputs = peer_inputs(row.family, batch, DEVICE)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimiser.step()

    return measure(step, batch.num_tokens, flops, peak, steps)


def measure_row(row: Row, peak: float, steps: int, compiled_peer: bool, corpus: Path | None) -> dict[str, Measured]:
    torch.manual_seed(0)
    if row.work == "finetune":
        return finetune(row, peak, compiled_peer)
    peer = peer_model(row.family, **row.size, dropout=row.dropout).to(DEVICE)
    model = our_model(row.family, peer).to(DEVICE)
    if row.work == "encode":
        return encode(row, model, peer)
    if row.work == "documents":
        if corpus is None:
            raise SystemExit("rows on documents need --corpus")
        return documents(row, peer, model, corpus, peak, steps)
    batch = our_batch(row.family, [row.length] * row.sequences, model.trunk.token_embeddings.shape[0])
    notes = check(model, peer, row, batch)
    found = {"polyseme": train_ours(row, model, batch, peak, steps)}
    found["polyseme"].notes = notes
    flops = count_training_flops(model, batch)
    del model
    peers = {"transformers": False, "transformers, compiled": True} if compiled_peer else {"transformers": False}
    for who, compiled in peers.items():
        try:
            found[who] = train_peer(row, peer, batch, flops, peak, steps if compiled else max(steps // 2, 5), compiled)
        except torch.OutOfMemoryError:
            print(f"{who}: out of memory", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--corpus", type=Path, help="with BERT's vocabulary of 30,522, for the rows on documents")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compiled-peer", action="store_true")
    parser.add_argument("--memory", type=float, help="GiB: as if the card had no more")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    if given.memory:
        torch.cuda.set_per_process_memory_fraction(given.memory * 2**30 / torch.cuda.mem_get_info()[1])
    peak = matrix_peak()
    print(header(f"one GPU, bf16; matrix product {peak / 1e12:.0f} TFLOP/s"), flush=True)
    lines, kept = [], {}
    for name in given.rows:
        found = measure_row(ROWS[name], peak, given.steps, not given.no_compiled_peer, given.corpus)
        kept[name] = {who: asdict(each) for who, each in found.items()}
        for who, each in found.items():
            ratio = found["polyseme"].tokens / each.tokens
            lines.append(
                (
                    name,
                    who,
                    f"{each.tokens:,.0f}",
                    f"{ratio:.2f}×",
                    f"{each.memory:.1f}",
                    f"{each.mfu:.2f}" if each.mfu else "",
                    f"{each.cold:.0f}",
                    ", ".join(f"{k} {v:.1e}" for k, v in each.notes.items()),
                )
            )
            print(*lines[-1], flush=True)
        if given.out:
            given.out.write_text(json.dumps(kept, indent=2))
    names = ["row", "who", "tokens/s", "polyseme is faster by", "GiB", "MFU", "first step, s", "apart"]
    print("\n" + table(names, lines))


if __name__ == "__main__":
    main()
