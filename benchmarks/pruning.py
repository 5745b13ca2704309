"""Quality against what is removed from a model: layers, heads, units and weights, with and without training.

    python benchmarks/pruning.py structure MODEL --task glue/sts-b --data STS-B/train.tsv --dev STS-B/dev.tsv
    python benchmarks/pruning.py recovery MODEL --data train.tsv --dev dev.tsv --steps 80
    python benchmarks/pruning.py schedules MODEL --data train.tsv --dev dev.tsv --steps 80 --seeds 3
    python benchmarks/pruning.py page

`structure` removes without training, `recovery` fine-tunes what stays, and `schedules` compares when weights are
removed. What is removed is chosen on --data and evaluated on --dev. Each row is saved when it is done, and the same
command continues from there. `page` writes docs/results/pruning.md and its chart from the rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pruning_page import write_page
from report import header

from polyseme.compress.examples import QualityExamples, read_examples
from polyseme.compress.pruning.comparison import with_model
from polyseme.compress.pruning.config import PruningConfig
from polyseme.compress.pruning.select import PruneFn, rank_parts
from polyseme.compress.pruning.task_retraining import TaskRetraining
from polyseme.compress.result import median_ms, read_text
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.io.json import read_json, write_json
from polyseme.nn.model import Model
from polyseme.train.loop import count_parameters

RESULTS = Path(__file__).parents[1] / "docs/results"
SHARES = (0.2, 0.4, 0.6)
WEIGHT_SHARES = (0.5, 0.8, 0.9, 0.95)
STRUCTURE: dict[str, tuple[dict[str, Any], ...]] = {
    "heads": ({"strategy": "importance"}, {"strategy": "importance", "uniform": True}),
    "layers": ({"strategy": "loss"}, {"strategy": "top"}),
    "ffn": ({"strategy": "importance"}, {"strategy": "norm"}),
}
RANDOM_SEEDS = (0, 1)
TIMED_TEXTS = 64


class Rows:
    """The rows of a results file; each is saved when it is added."""

    def __init__(self, path: Path):
        self.path = path
        self.content = read_json(path) if path.exists() else {"header": header("").strip(), "rows": []}
        self.keys = {row["key"] for row in self.content["rows"]}

    def add(self, key: str, row: dict[str, Any]) -> None:
        self.content["rows"].append({"key": key, **row})
        self.keys.add(key)
        write_json(self.path, self.content)
        print(self.content["rows"][-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["structure", "recovery", "schedules", "page"])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--name")
    parser.add_argument("--task", default="")
    parser.add_argument("--data")
    parser.add_argument("--dev")
    parser.add_argument("--max-examples", type=int, default=256)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--parts", nargs="+", default=[*STRUCTURE])
    parser.add_argument("--out", type=Path, default=RESULTS / "pruning.json")
    args = parser.parse_args()
    if args.command == "page":
        write_page(read_json(args.out), RESULTS)
        return
    rows, network = Rows(args.out), load_neural(args.model)
    name = args.name or Path(args.model).name
    if args.command == "structure":
        measure_structure(rows, name, network, args)
        return
    files, options = {"data": args.data, "dev": args.dev}, {"steps": args.steps}
    retraining = TaskRetraining.read(network, files, args.task, args.seeds, options)
    (measure_recovery if args.command == "recovery" else measure_schedules)(rows, name, retraining)


def measure_structure(rows: Rows, name: str, network: NeuralLM, args: argparse.Namespace) -> None:
    """Remove layers, heads and units by several strategies, without training."""
    choose, evaluate = (read_examples(network, data, args.task) for data in (args.data, args.dev))
    baseline = {"table": "structure", "model": name, "metric": evaluate.metric, "share": 0.0}
    if (key := f"{name} original") not in rows.keys:
        rows.add(key, baseline | {"part": "", "score": evaluate.evaluate(network)})
    for part in args.parts:
        for settings in [*STRUCTURE[part], *({"strategy": "random", "seed": seed} for seed in RANDOM_SEEDS)]:
            prune: PruneFn | None = None
            for share in SHARES:
                label = " ".join(f"{value}" for value in settings.values())
                if (key := f"{name} {part} {share} {label}") in rows.keys:
                    continue
                config = PruningConfig(**{part: share}, **settings, max_examples=args.max_examples)
                prune = prune or rank_parts(network.model, config, choose)
                row = baseline | {"part": part, "share": share, **settings}
                rows.add(key, row | measure(network, config, prune, evaluate))


def measure(network: NeuralLM, config: PruningConfig, prune: PruneFn, evaluate: QualityExamples) -> dict[str, Any]:
    """Prune a model in memory and return its quality, size and speed."""
    started = time.perf_counter()
    pruned, record = prune(config)
    seconds = time.perf_counter() - started
    smaller = with_model(network, pruned)
    readers = [lambda text, each=each: read_text(each, text) for each in (network, smaller)]
    before_ms, after_ms = median_ms(readers, evaluate.texts[:TIMED_TEXTS])
    return {
        "removed": record["removed"], "total": record["total"], "score": evaluate.evaluate(smaller),
        "parameters": count_parameters(pruned),
        "parameter_ratio": count_parameters(pruned) / count_parameters(network.model),
        "flop_ratio": flops(pruned) / flops(network.model), "time_ratio": after_ms / before_ms,
        "seconds": seconds,
    }  # fmt: skip


def flops(model: Model, length: int = 20) -> int:
    """Return the operations of the trunk on a text of some tokens."""
    return model.config.trunk.count_flops([length])


def measure_recovery(rows: Rows, name: str, retraining: TaskRetraining) -> None:
    """Remove heads, then fine-tune; also by gates, and at random."""
    base = {"table": "recovery", "model": name, "metric": retraining.metric, "steps": retraining.total_steps}
    for seed in retraining.seeds:
        if (key := f"{name} recovery {seed} dense") not in rows.keys:
            dense = retraining.train(retraining.build(seed), seed)
            rows.add(key, base | {"share": 0.0, "strategy": "dense", "seed": seed, "score": retraining.score(dense)})
        for share in SHARES:
            for strategy in ("importance", "gates", "random"):
                if (key := f"{name} recovery {seed} {share} {strategy}") in rows.keys:
                    continue
                pruned, record = retraining.prune(PruningConfig(heads=share, strategy=strategy, seed=seed), seed)
                row = base | {"share": share, "strategy": strategy, "seed": seed, "score": retraining.score(pruned)}
                rows.add(key, row | {"removed": record["removed"], "total": record["total"]})


def measure_schedules(rows: Rows, name: str, retraining: TaskRetraining) -> None:
    """Remove weights at once, gradually and iteratively; compare with random masks and with training from scratch."""
    base = {"table": "schedules", "model": name, "metric": retraining.metric, "steps": retraining.total_steps}
    for seed in retraining.seeds:
        if (key := f"{name} schedules {seed} dense") not in rows.keys:
            dense = retraining.train(retraining.build(seed), seed)
            rows.add(key, base | {"share": 0.0, "schedule": "dense", "seed": seed, "score": retraining.score(dense)})
        for share in WEIGHT_SHARES:
            keys = {s: f"{name} schedules {seed} {share} {s}" for s in SCHEDULES}
            for schedule, model in trained_models(
                retraining, share, seed, [s for s in keys if keys[s] not in rows.keys]
            ):
                row = base | {"share": share, "schedule": schedule, "seed": seed, "score": retraining.score(model)}
                rows.add(keys[schedule], row)


SCHEDULES = ("one-shot", "gradual", "iterative", "random", "from scratch")


def trained_models(
    retraining: TaskRetraining, share: float, seed: int, schedules: list[str]
) -> Iterator[tuple[str, Model]]:
    """Train a model with weights removed by each of the schedules."""
    config, one_shot = PruningConfig(weights=share, strategy="magnitude"), None
    for schedule in schedules:
        if schedule == "random":
            yield schedule, retraining.prune_at_random(config, seed)
        elif schedule == "from scratch":
            one_shot = one_shot or rank_parts(retraining.build(seed), config, None)(config)[0]
            yield schedule, retraining.train_from_scratch(one_shot, seed)
        else:
            rounds = {"rounds": 2} if schedule == "iterative" else {}
            yield schedule, retraining.prune(config.replace(schedule=schedule, **rounds), seed)[0]


if __name__ == "__main__":
    main()
