"""Training and encoding on one GPU compared with `transformers`, eager and compiled, in one process.

    python benchmarks/gpu.py [--rows NAME …] [--corpus FOLDER] [--steps 20] [--no-compiled-peer] [--out FILE.json]

In each row both sides have the same weights (we load the peer's), tokens and targets. Losses and gradients are first
compared without dropout, then steps are timed. Ours is the loop of `polyseme pretrain`, including batches on the host;
the peer's is the usual one: bf16 autocast, fused AdamW, clipping. Times are measured with CUDA events around series of
steps, the median of three; padding is not counted as tokens; memory is the allocator's peak; MFU is relative to a
matrix product in the same process. Rows on documents read a prepared corpus with the loader of `polyseme pretrain`; the
peer gets the same samples and masks in batches of `sequences`, padded to the longest, as by its default collator. To
add a family, add a row to ROWS.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_parts import DEVICE, Measurement, Row, matrix_peak, measure, reset
from gpu_uneven import documents, encode, finetune
from peers import in_our_names, our_batch, our_model, our_step, peer_inputs, peer_model, peer_step
from report import header, table

from polyseme.nn.attention.relative import exclude_from_compile
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.objectives.losses import compute_losses
from polyseme.train.loop import count_training_flops
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
    """Return the relative differences of loss and gradients on a few sequences, in bf16 (theirs by autocast)."""
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
    differences = {
        "loss": abs(loss.item() - theirs.item()) / theirs.item(),
        "gradient": ((a - b).norm() / b.norm()).item(),
    }
    if differences["loss"] > 0.01 or differences["gradient"] > 0.05:
        raise SystemExit(f"the two sides differ: {differences}")
    return differences


def train_ours(model: Model, batch: Batch, peak: float, steps: int) -> Measurement:
    """Measure our training loop."""
    reset()
    exclude_from_compile()
    loss_fn = torch.compile(compute_losses) if model.config.trunk.supports_static_shape else compute_losses
    step = our_step(model, batch, DEVICE, precision="bf16", loss_fn=loss_fn, use_cuda_graphs=True)
    return measure(step, batch.num_tokens, count_training_flops(model, batch), peak, steps)


def train_peer(row: Row, peer: Any, batch: Batch, flops: int, peak: float, steps: int, compiled: bool) -> Measurement:
    """Measure the peer's training loop."""
    reset()
    inputs = itertools.repeat(peer_inputs(row.family, batch, DEVICE))
    step = peer_step(peer, inputs, torch.compile(peer) if compiled else None)
    return measure(step, batch.num_tokens, flops, peak, steps)


def measure_row(row: Row, peak: float, steps: int, compiled_peer: bool, corpus: Path | None) -> dict[str, Measurement]:
    """Measure both sides on one row."""
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
    results = {"polyseme": train_ours(model, batch, peak, steps)}
    results["polyseme"].notes = notes
    flops = count_training_flops(model, batch)
    del model
    peers = {"transformers": False, "transformers, compiled": True} if compiled_peer else {"transformers": False}
    for who, compiled in peers.items():
        num_steps = steps if compiled else max(steps // 2, 5)
        try:
            results[who] = train_peer(row, peer, batch, flops, peak, num_steps, compiled)
        except torch.OutOfMemoryError:
            print(f"{who}: out of memory", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument(
        "--corpus", type=Path, help="corpus with BERT's vocabulary of 30,522, for the rows on documents"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compiled-peer", action="store_true")
    parser.add_argument("--memory", type=float, help="limit of GPU memory in GiB")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    if args.memory:
        torch.cuda.set_per_process_memory_fraction(args.memory * 2**30 / torch.cuda.mem_get_info()[1])
    peak = matrix_peak()
    print(header(f"One GPU, bf16; matrix product {peak / 1e12:.0f} TFLOP/s"), flush=True)
    lines, saved = [], {}
    for name in args.rows:
        results = measure_row(ROWS[name], peak, args.steps, not args.no_compiled_peer, args.corpus)
        saved[name] = {who: asdict(side) for who, side in results.items()}
        for who, side in results.items():
            speed = [f"{side.tokens:,.0f}", f"{results['polyseme'].tokens / side.tokens:.2f}×", f"{side.memory:.1f}"]
            notes = ", ".join(f"{k} {v:.1e}" for k, v in side.notes.items())
            lines.append((name, who, *speed, f"{side.mfu:.2f}" if side.mfu else "", f"{side.cold:.0f}", notes))
            print(*lines[-1], flush=True)
        if args.out:
            args.out.write_text(json.dumps(saved, indent=2))
    names = ["row", "who", "tokens/s", "polyseme is faster by", "GiB", "MFU", "first step, s", "difference"]
    print("\n" + table(names, lines))


if __name__ == "__main__":
    main()
