"""Quality against the share of layers, heads and feed-forward units that are removed, without any training after it.

    python benchmarks/pruning.py MODEL --task glue/sts-b --choose STS-B/train.tsv --evaluate STS-B/dev.tsv
        --out results.json
    python benchmarks/pruning.py mini --choose wiki.train.txt --evaluate wiki.valid.txt --out results.json
    python benchmarks/pruning.py --page results.json --out docs/results/pruning.md

What is removed is chosen on one file and evaluated on the other. Each row is saved when it is done, and the same
command continues from there. The last form writes the page from the file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import header, table

from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.examples import PruningExamples, read_examples
from polyseme.compress.pruning.select import prune_model
from polyseme.compress.result import median_ms, read_text
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.json import read_json, write_json
from polyseme.nn.model import Model
from polyseme.train.loop import count_parameters

SHARES = (0.0, 0.2, 0.4, 0.6)
STRATEGIES = {"heads": ("importance",), "layers": ("top", "loss"), "ffn": ("norm", "importance")}
RANDOM_SEEDS = (0, 1)
SAMPLE_TEXTS = 64
INTRODUCTION = """# Pruning

How much of a model can be removed before it breaks, without training it afterwards? all-MiniLM-L6-v2 (6 layers of 12
heads and 1,536 units, a sentence encoder) on every third pair of STS-B's dev set (500 pairs); what is removed was
chosen on 64 training pairs. Operations are those that arithmetic predicts for a text of 20 tokens, time is measured on
single texts, on a machine with other jobs. The [guide](../guide/compression.md#pruning) says how each part is chosen.
`benchmarks/pruning.py` writes this page from [pruning.json](pruning.json).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--task", default="")
    parser.add_argument("--choose")
    parser.add_argument("--evaluate")
    parser.add_argument("--max-examples", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.page:
        args.out.write_text(page(read_json(args.page)))
        return
    network = load_neural(args.model)
    choose, evaluate = (read_examples(network, data, args.task) for data in (args.choose, args.evaluate))
    results: dict[str, Any] = read_json(args.out) if args.out.exists() else {"header": header("").strip(), "rows": []}
    done = {(row["model"], row["part"], row["share"], row["strategy"], row["seed"]) for row in results["rows"]}
    name = "all-MiniLM-L6-v2" if "minilm" in str(args.model) else Path(args.model).name
    for part, strategies in STRATEGIES.items():
        runs = [(strategy, 0) for strategy in strategies] + [("random", seed) for seed in RANDOM_SEEDS]
        for share in SHARES:
            for strategy, seed in runs if share else runs[: part == "heads"]:
                if (name, part, share, strategy, seed) in done:
                    continue
                config = PruningConfig(**{part: share}, strategy=strategy, seed=seed, max_examples=args.max_examples)
                results["rows"].append(measure(network, config, choose, evaluate) | {"model": name})
                write_json(args.out, results)
                print(results["rows"][-1], flush=True)


def measure(
    network: NeuralLM, config: PruningConfig, choose: PruningExamples, evaluate: PruningExamples
) -> dict[str, Any]:
    """Prune a model in memory and return its quality, size and speed."""
    started = time.perf_counter()
    pruned, record = prune_model(network.model, config, choose)
    seconds = time.perf_counter() - started
    smaller = with_model(network, pruned)
    readers = [lambda text, each=each: read_text(each, text) for each in (network, smaller)]
    before_ms, after_ms = median_ms(readers, evaluate.texts[:SAMPLE_TEXTS])
    return {
        "part": config.part, "share": config.amount, "strategy": config.strategy, "seed": config.seed,
        "removed": record["removed"], "total": record["total"], "metric": evaluate.metric,
        "score": evaluate.evaluate(smaller), "parameters": count_parameters(pruned),
        "parameter_ratio": count_parameters(pruned) / count_parameters(network.model),
        "flop_ratio": flops(pruned) / flops(network.model), "time_ratio": after_ms / before_ms,
        "seconds": seconds,
    }  # fmt: skip


def flops(model: Model, length: int = 20) -> int:
    """Return the operations of the trunk on a text of some tokens."""
    return model.config.trunk.count_flops([length])


def with_model(network: NeuralLM, model: Model) -> NeuralLM:
    """Return a network with another model."""
    return NeuralLM(replace(network.folder, model=model), str(network.device), network.max_batch_tokens)


def page(results: dict[str, Any]) -> str:
    """Return the page of all models."""
    sections = [INTRODUCTION, f"{results['header']}. Random choices: mean of two seeds.\n"]
    for model in dict.fromkeys(row["model"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["model"] == model]
        baseline = next(row["score"] for row in rows if not row["share"])
        sections.append(f"## {model}\n\n{rows[0]['metric']}: {baseline:.4f} before pruning.\n")
        cells = []
        for part, strategies in STRATEGIES.items():
            for share in SHARES[1:]:
                group = [row for row in rows if row["part"] == part and row["share"] == share]
                for strategy in (*strategies, "random"):
                    if chosen := [row for row in group if row["strategy"] == strategy]:
                        cells.append(format_row(chosen, baseline))
        columns = ["removed", "by", "score", "change", "parameters", "operations", "time"]
        sections.append(table(columns, cells) + "\n")
    return "\n".join(sections)


def format_row(rows: list[dict[str, Any]], baseline: float) -> list[str]:
    """Return the cells of one row; several seeds are averaged."""
    first, score = rows[0], statistics.mean(row["score"] for row in rows)
    part = {"ffn": "units"}.get(first["part"], first["part"])
    ratios = [f"{statistics.mean(row[name] for row in rows):.2f}" for name in ("flop_ratio", "time_ratio")]
    removed = f"{first['removed']:,} of {first['total']:,} {part}"
    change = f"{score - baseline:+.4f}"
    return [removed, first["strategy"], f"{score:.4f}", change, f"{first['parameter_ratio']:.2f}", *ratios]


if __name__ == "__main__":
    main()
