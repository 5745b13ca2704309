"""Tokens/s from the corpus to a masked batch on one core, compared with the collator of `transformers`.

    python benchmarks/loader.py [--tokens 3000000] [--fixed]

Ours is the whole path: shuffling, gathering from memory-mapped shards, special tokens, pairs, masks, batch. The peer is
`DataCollatorForLanguageModeling` alone, on samples in memory that are already cut, shuffled and have special tokens, in
its fastest form (lists or arrays in, numpy or torch out), on as many tokens. It has no sentence pairs, and whole words
need offsets: those rows are compared with its plain masked LM. The speed of its masking function alone, on a padded
tensor, is printed below as an upper bound.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from report import cpu_name

from polyseme.corpus.sampling import ShuffledSampler
from polyseme.objectives.base import Objective
from polyseme.objectives.causal_lm import CausalLM
from polyseme.objectives.masked_lm import MaskedLM, SpanMaskedLM
from polyseme.objectives.packing import BatchBuilder, SpecialIds
from polyseme.objectives.sentence_pairs import MaskedLMWithSentencePairs
from polyseme.objectives.span_corruption import SpanCorruption

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

SIZE, SPECIALS, BIN = 30_522, 5, 16_384
SENTINELS = tuple(range(SIZE - 1, SIZE - 101, -1))
VOCABULARY = SpecialIds(SIZE, frozenset(range(SPECIALS)), cls=2, sep=3, mask=4, eos=1, sentinels=SENTINELS)
TARGET = 10e6  # tokens/s
MASKING_ONLY = "masking only"
OBJECTIVES: dict[str, Objective] = {
    "MLM": MaskedLM(),
    "MLM, whole words": MaskedLM(mask_unit="word"),
    "MLM + NSP": MaskedLMWithSentencePairs(),
    "MLM + NSP, whole words": MaskedLMWithSentencePairs(mask_unit="word"),
    "causal LM": CausalLM(),
    "MLM + SOP, n-grams": MaskedLMWithSentencePairs(mask_unit="ngram", pair_task="sop"),
    "MLM + boundaries, spans": SpanMaskedLM(),
    "span corruption": SpanCorruption(),
}


def make_corpus(folder: Path, num_shards: int = 2, shard_tokens: int = 10_000_000) -> Corpus:
    """Write random shards in the format of `prepare`.

    Sentences have 5 to 44 tokens, documents 5 to 54 sentences, words 1.25 tokens.
    """
    from polyseme.corpus.store import FORMAT, Corpus, describe_files, manifest_hash, shard_filename, token_dtype
    from polyseme.io.json import write_json

    rng = np.random.default_rng(0)
    shards = []
    for number in range(num_shards):
        counts = rng.integers(5, 55, shard_tokens // 720)
        lengths = rng.integers(5, 45, counts.sum())
        tokens = rng.integers(SPECIALS, SIZE, lengths.sum()).astype(token_dtype(SIZE))
        sentences = np.cumsum(lengths) - lengths
        words = rng.random(len(tokens)) < 0.8
        words[sentences] = True
        parts = {
            "tokens": tokens,
            "sentences": sentences,
            "documents": np.cumsum(counts) - counts,
            "words": np.packbits(words, bitorder="little"),
        }
        for part, values in parts.items():
            np.save(folder / shard_filename(number, part), values)
        shards.append({"files": describe_files(folder, [shard_filename(number, part) for part in parts])})
    manifest = {
        "format": FORMAT,
        "finished": True,
        "vocab_size": SIZE,
        "tokenizer_hash": "",
        "tokenizer_files": {},
        "shards": shards,
    }
    manifest["hash"] = manifest_hash(manifest)
    write_json(folder / "manifest.json", manifest)
    return Corpus.open(folder)


def ours(bound: BatchBuilder, fixed: bool) -> Iterator[int]:
    """Build batches without end and yield the number of tokens of each."""
    shape = bound.static_shape(BIN) if fixed else None
    order = ShuffledSampler(bound, BIN, micro_batches_per_step=4, max_samples=shape.max_samples if shape else 0)
    for bins, _ in order.steps():
        for samples in bins:
            yield bound.batch(samples.sample_ids, samples.epoch, shape).num_tokens


def peer_forms(max_len: int, mlm: bool) -> dict[str, Iterator[int]]:
    """Run the collator on batches as large as ours, for each form of its input and output."""
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.set_verbosity_error()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(SPECIALS, SIZE)]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="[UNK]")),
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
    table = np.random.default_rng(0).integers(SPECIALS, SIZE, (BIN // max_len, max_len))
    table[:, 0], table[:, -1] = 2, 3
    marks = (table < SPECIALS).astype(np.int64)

    def run(convert: Callable[[np.ndarray], Any], tensors: str) -> Iterator[int]:
        collate = DataCollatorForLanguageModeling(tokenizer, mlm, return_tensors=tensors, seed=0)
        rows = [
            {"input_ids": convert(t), "attention_mask": convert(t * 0 + 1), "special_tokens_mask": convert(m)}
            for t, m in zip(table, marks)
        ]
        while True:
            batch = collate([dict(row) for row in rows])
            yield int(batch["input_ids"].shape[0] * batch["input_ids"].shape[1])

    def mask_only() -> Iterator[int]:
        collate = DataCollatorForLanguageModeling(tokenizer, seed=0)
        collate.create_rng()
        ready, special = torch.from_numpy(table), torch.from_numpy(marks)
        while True:
            tokens, _ = collate.torch_mask_tokens(ready.clone(), special)
            yield tokens.numel()

    inputs: dict[str, Callable[[np.ndarray], Any]] = {"lists": np.ndarray.tolist, "arrays": np.asarray}
    forms = {f"{i} to {t}": run(convert, t) for i, convert in inputs.items() for t in ("np", "pt")}
    return forms | ({MASKING_ONLY: mask_only()} if mlm else {})


def peer_rates(max_len: int, mlm: bool, num_tokens: int) -> dict[str, float]:
    """Return the tokens/s of each form."""
    return {form: rate(batches, num_tokens) for form, batches in peer_forms(max_len, mlm).items()}


def rate(batches: Iterable[int], num_tokens: int) -> float:
    """Return tokens per second of processor time, the best of three series of `num_tokens`, after a warm-up batch."""
    reader = iter(batches)
    next(reader)
    best = 0.0
    for _ in range(3):
        done, start = 0, time.process_time()
        while done < num_tokens:
            done += next(reader)
        best = max(best, done / (time.process_time() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=3_000_000, help="tokens in each of three series")
    parser.add_argument("--fixed", action="store_true", help="build batches of a fixed shape, for torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import transformers

    print(f"{date.today()}  {cpu_name()}, one thread of {os.cpu_count()}")
    print(f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder))
        print(f"{corpus.num_tokens / 1e6:.1f} M tokens, micro-batches of {BIN:,}; in million tokens/s\n")
        print(f"{'objective':<24}{'length':>7}{'polyseme':>10}{'transformers':>14}{'ratio':>8}{'fill':>7}")
        for max_len in (128, 512):
            peers = {mlm: peer_rates(max_len, mlm, options.tokens) for mlm in (True, False)}
            for name, spec in OBJECTIVES.items():
                bound = spec.bind(corpus, VOCABULARY, max_len, 0)
                our_rate, fill = (
                    rate(ours(bound, options.fixed), options.tokens),
                    ShuffledSampler(bound, BIN).fill_ratio(),
                )
                peer = max(r for form, r in peers[name != "causal LM"].items() if form != MASKING_ONLY)
                missed = "" if our_rate >= TARGET else f"  below the target of {TARGET / 1e6:.0f}"
                print(f"{name:<24}{max_len:>7}{our_rate / 1e6:>10.1f}{peer / 1e6:>14.2f}"
                      f"{our_rate / peer:>7.1f}×{fill:>7.1%}{missed}")  # fmt: skip
            shown = ", ".join(f"{form} {r / 1e6:.2f}" for form, r in peers[True].items())
            print(f"  (transformers' masked LM by form: {shown})")


if __name__ == "__main__":
    main()
