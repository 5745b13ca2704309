"""Pseudo-log-likelihoods of short sentences per second, compared with a batched loop over `transformers`.

    python benchmarks/scoring.py --data SENTENCES.txt --vocab vocab.txt [--precisions bf16 float32] [--out FILE.json]

A BERT-medium (8 layers of 512) with random weights and a published vocabulary scores one sentence per line by masking
one token at a time. The loop masks the copies of many sentences of similar length at once, pads them, and computes
logits at the masked rows only (`rows`) or, as the shortest such script does, at all rows (`all`). Both sides take
turns; times are medians and include tokenization. The scores of both sides are compared first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import header, median_seconds, table

import polyseme
from polyseme.families import FAMILIES
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import save_model

MEDIUM = {"num_layers": 8, "dim": 512, "num_heads": 8}


@torch.inference_mode()
def transformers_loop(model: Any, tokenizer: Any, texts: list[str], copies_per_batch: int, head: str) -> list[float]:
    """Score texts by a batched loop over `transformers`."""
    device, mask, pad = model.device, tokenizer.mask_token_id, tokenizer.pad_token_id
    encoded = tokenizer(texts)["input_ids"]
    copies = [
        (i, j) for i in sorted(range(len(texts)), key=lambda i: len(encoded[i])) for j in range(1, len(encoded[i]) - 1)
    ]
    scores = [0.0] * len(texts)
    for start in range(0, len(copies), copies_per_batch):
        batch = copies[start : start + copies_per_batch]
        rows = [torch.tensor(encoded[i]) for i, _ in batch]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(device)
        index, position = torch.arange(len(batch), device=device), torch.tensor([j for _, j in batch], device=device)
        targets = ids[index, position]
        attention_mask = (ids != pad).long()
        ids[index, position] = mask
        if head == "rows":
            logits = model.cls(model.bert(ids, attention_mask=attention_mask)[0][index, position])
        else:
            logits = model(ids, attention_mask=attention_mask).logits[index, position]
        values = logits.float().log_softmax(-1)[index, targets].tolist()
        for (i, _), value in zip(batch, values):
            scores[i] += value
    return scores


@torch.inference_mode()
def measure(folder: Path, precision: str, texts: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the speed of each system in one precision, and the largest difference of scores per token."""
    import transformers

    ours = polyseme.load(folder, precision=precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    theirs: Any = transformers.BertForMaskedLM.from_pretrained(folder, dtype=dtype).eval()
    theirs.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sample = texts[:200]
    expected = transformers_loop(theirs, tokenizer, sample, args.copies, "rows")
    error = max(abs(a.log_prob - b) / a.num_tokens for a, b in zip(ours.score(sample), expected))
    steps: dict[str, Callable[[], Any]] = {"polyseme": lambda: ours.score(texts)}
    for head in args.heads:
        loop = partial(transformers_loop, theirs, tokenizer, texts, args.copies, head)
        steps[f"transformers, logits at {head}"] = loop
    for step in steps.values():
        step()
    rows = []
    for name, seconds in median_seconds(steps, args.rounds).items():
        row = {"system": name, "precision": precision, "sentences_per_second": len(texts) / seconds}
        rows.append(row | {"max_error_nats": error})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    is_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--precisions", nargs="*", default=["bf16", "float32"] if is_cuda else ["float32"])
    parser.add_argument("--texts", type=int, default=0, help="number of sentences; default: all")
    parser.add_argument("--copies", type=int, default=4096 if is_cuda else 64, help="per batch of the loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heads", nargs="*", default=["rows", "all"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    texts = args.data.read_text().splitlines()
    texts = texts[:: max(len(texts) // args.texts, 1)][: args.texts] if args.texts else texts
    tokenizer = Tokenizer.import_files([args.vocab])
    config = FAMILIES["bert"].model_config(**MEDIUM, vocab_size=tokenizer.vocab_size, max_len=512)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), config.build(seed=0), tokenizer, {})
        measurements = [row for p in args.precisions for row in measure(Path(folder), p, texts, args)]
    num_tokens = 2 + sum(len(ids) for ids in tokenizer.encode_batch(texts)) / len(texts)
    title = header(f"{len(texts)} sentences of {num_tokens:.1f} tokens (with special tokens), BERT-medium")
    rows = [
        (m["precision"], m["system"], f"{m['sentences_per_second']:,.1f}", f"{m['max_error_nats']:.1e}")
        for m in measurements
    ]
    print(title + "\n" + table(["precision", "system", "sentences/s", "largest difference per token"], rows))
    if args.out:
        record = {"about": title, "tokens_per_sentence": num_tokens, "rows": measurements}
        args.out.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
