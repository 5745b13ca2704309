"""Scores of a model on TREC or SST-2 at several learning rates of fine-tuning, next to the linear baseline.

    ./dev bench finetuning_lr MODEL DATA --task trec --examples 2000 --rates 5e-5,3e-4,1e-3 --seeds 3 --out rows.jsonl

DATA is the folder of `trec/train_5500.label`, or of GLUE. The first 500 shuffled examples of TREC are held out.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from polyseme.datasets.catalog import DATASETS
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.tasks.classification import ClassificationTask
from polyseme.tasks.sequence import TextExample
from polyseme.train.optimizer import OptimizerConfig

NUM_DEV = 500


def read_examples(task: str, folder: Path) -> tuple[Any, list[Any], list[Any], str]:
    """Return the task, its shuffled training examples, at most 500 dev examples, and its metric."""
    shuffle = random.Random(0).shuffle
    if task == "trec":
        lines = (folder / "trec/train_5500.label").read_text(encoding="latin-1").splitlines()
        rows = [line.split(" ", 1) for line in lines]
        examples = [TextExample(f"trec:{i}", text, label=label.split(":")[0]) for i, (label, text) in enumerate(rows)]
        shuffle(examples)
        return ClassificationTask(), examples[NUM_DEV:], examples[:NUM_DEV], "accuracy"
    dataset = DATASETS["glue/sst-2"]
    train, dev = map(list, dataset.read(folder))
    shuffle(train)
    return dataset.task(), train, dev[:NUM_DEV], dataset.metric


def main() -> None:
    """Fine-tune at each rate, and append a row for each to the output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", choices=("trec", "sst-2"), default="trec")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--rates", default="5e-5,3e-4,1e-3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    task, train, dev, metric = read_examples(args.task, args.data)
    train = train[: args.examples]
    linear = task.fit(train).baseline_metrics("linear", train, dev)[metric]
    examples = TaskData(task, train, dev, primary_metric=metric)
    for rate in map(float, args.rates.split(",")):
        start_time, optimizer = time.perf_counter(), OptimizerConfig(lr=rate)
        config = FinetuneConfig(epochs=args.epochs, max_len=64, truncate=True, optimizer=optimizer)
        results = finetune(args.model, examples, None, config, RunOptions(args.seeds))
        row = {
            "model": args.model.name, "task": args.task, "n": len(train), "lr": rate, "epochs": args.epochs,
            "mean": results["mean"][metric], "std": results["std"][metric], "seeds": args.seeds, "linear": linear,
            "majority": results["majority_score"], "seconds": time.perf_counter() - start_time,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        if args.out:
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
