"""GLUE's tasks by fine-tuning: every model on every task, mean and deviation over seeds, at the best of some rates.

    python benchmarks/glue.py MODEL [MODEL …] --data FOLDER --out FILE.json [--tasks cola sst-2 mrpc sts-b] [--seeds 3]
        [--rates 5e-5 1e-4] [--scratch] [--jobs 4] [--epochs N] [--limit ROWS]

Nothing has to be installed: PYTHONPATH=src:benchmarks is enough. Each (model, task, rate, seed) is one run in one of
`--jobs` worker processes, which share the GPU. What is done is in the JSON file after every run; the same command again
goes on from there. `--scratch` adds rows of the same models from fresh weights. Figures are the primary metric × 100 on
the dev examples; the rate is the best by mean, which flatters all rows alike; every run is in the file. One that fails
is there with its error, and is tried again next time.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from report import header, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.io.json import read_json, write_json
from polyseme.weights.folder import read_model_config

EPOCHS = {"cola": 5.0, "sst-2": 3.0, "mrpc": 5.0, "sts-b": 5.0, "wnli": 5.0}
SIZES = {"cola": 8551, "sst-2": 67349, "mrpc": 3668, "sts-b": 5749, "wnli": 635}  # which tasks take longest


@dataclass(frozen=True)
class Job:
    """One run, and all that its figure depends on."""

    model: str
    task: str
    seed: int
    rate: float
    epochs: float
    scratch: bool = False
    limit: int = 0  # rows of each part, 0 for all

    @property
    def name(self) -> str:
        model = f"{self.model}{', from scratch' if self.scratch else ''}"
        return f"{model}, {self.task}, rate {self.rate:g}, seed {self.seed}"


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Every run that is asked for, those that take longest first, so that the last ones are short."""
    found = [
        Job(model, task, seed, rate, options.epochs or EPOCHS[task], scratch, options.limit)
        for task in sorted(options.tasks, key=lambda task: -SIZES[task])
        for rate, seed, model, scratch in itertools.product(
            options.rates, range(options.seeds), options.models, [False, True][: 1 + options.scratch]
        )
    ]
    return list(dict.fromkeys(found))


@functools.cache
def examples(task: str, data: str, limit: int) -> Any:
    train, dev = DATASETS[f"glue/{task}"].read(data)
    return (train[:limit], dev[:limit]) if limit else (train, dev)


def run(job: Job, data: str) -> dict[str, Any]:
    """One run; what goes wrong is an answer too, so that the other runs go on."""
    from polyseme.finetuning.finetune import FinetuneConfig, finetune
    from polyseme.train.optimizer import OptimizerConfig
    from polyseme.train.schedule import ScheduleConfig

    named = DATASETS[f"glue/{job.task}"]
    began = time.perf_counter()
    try:
        settings = FinetuneConfig(
            epochs=job.epochs,
            batch_size=32,
            max_len=min(128, read_model_config(Path(job.model))[0].trunk.embeddings.max_len),
            truncate=True,
            optimizer=OptimizerConfig(lr=job.rate),
            schedule=ScheduleConfig("linear", 0.1),
        )
        train, dev = examples(job.task, data, job.limit)
        results = finetune(
            Path(job.model),
            named.task_type,
            train,
            dev,
            None,
            settings,
            first_seed=job.seed,
            from_scratch=job.scratch,
            primary_metric=named.metric,
        )
    except (PolysemeError, RuntimeError, OSError) as error:
        return {**asdict(job), "error": f"{type(error).__name__}: {error}"[:500]}
    kept = {name: results[name] for name in ("primary_metric", "mean", "steps", "tokens", "parameters")}
    return {**asdict(job), **kept, "train_s": results["seconds"], "wall_s": time.perf_counter() - began}


def begin(threads: int) -> None:
    """What a worker does first: no more threads than its share, and no bars over one another."""
    import torch

    torch.set_num_threads(threads)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the worker lives


def summary(done: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each model and task the mean and sample deviation of every rate; the best rate by mean comes first."""
    groups: dict[tuple[Any, ...], dict[float, dict[int, float]]] = {}
    for one in done:
        if "error" not in one:
            key = (one["model"], one["scratch"], one["task"], one["primary_metric"])
            groups.setdefault(key, {}).setdefault(one["rate"], {})[one["seed"]] = (
                100 * one["mean"][one["primary_metric"]]
            )
    found = []
    for (model, scratch, task, metric), by_rate in groups.items():
        rates = [
            {
                "rate": rate,
                "mean": statistics.fmean(values.values()),
                "std": statistics.stdev(values.values()) if len(values) > 1 else None,
                "seeds": len(values),
            }
            for rate, values in by_rate.items()
        ]
        rates.sort(key=lambda one: -one["mean"])  # type: ignore[operator,arg-type]
        found.append({"model": model, "scratch": scratch, "task": task, "metric": metric, "rates": rates})
    return found


def markdown(found: Sequence[dict[str, Any]], tasks: Sequence[str]) -> str:
    """A row for each model, a column for each task, and the mean over tasks where all are there."""
    metrics = {one["task"]: one["metric"] for one in found}
    rows: dict[tuple[str, bool], dict[str, dict[str, Any]]] = {}
    for one in found:
        rows.setdefault((one["model"], one["scratch"]), {})[one["task"]] = one["rates"][0]
    lines = []
    for (model, scratch), best in rows.items():
        cells = [_cell(best.get(task)) for task in tasks]
        full = len(best) == len(tasks)
        average = f"{statistics.fmean(one['mean'] for one in best.values()):.1f}" if full else ""
        lines.append([f"{model}{' (from scratch)' if scratch else ''}", *cells, average])
    names = [f"{task} ({metrics[task]})" if task in metrics else task for task in tasks]
    return table(["model", *names, "mean"], lines)


def _cell(best: dict[str, Any] | None) -> str:
    if best is None:
        return ""
    deviation = "" if best["std"] is None else f" ± {best['std']:.1f}"
    return f"{best['mean']:.1f}{deviation} (rate {best['rate']:g}, n={best['seeds']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst-2", "mrpc", "sts-b"], choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-5])
    parser.add_argument("--epochs", type=float, default=0.0, help="for every task; else 5, and 3 for SST-2")
    parser.add_argument("--scratch", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="rows of each part, to try it out")
    options = parser.parse_args()

    try:  # before anything is started
        for task in options.tasks:
            examples(task, options.data, options.limit)
        for model in options.models:
            read_model_config(Path(model))
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    finished: list[dict[str, Any]] = []
    if options.out.exists():
        finished = [one for one in read_json(options.out)["runs"] if "error" not in one]
    fields = list(Job.__dataclass_fields__)
    known = {Job(**{name: one[name] for name in fields}) for one in finished}
    wanted = jobs_of(options)
    todo = [job for job in wanted if job not in known]
    about = header("GLUE, fine-tuned: the primary metric x 100 on the dev examples")
    print(about)
    print(f"{len(wanted)} runs, {len(wanted) - len(todo)} of them done before, {options.jobs} at a time", flush=True)

    def keep() -> None:
        asked = set(wanted)
        ours = [one for one in finished if Job(**{name: one[name] for name in fields}) in asked]
        write_json(options.out, {"about": about, "summary": summary(ours), "runs": finished})

    began = time.perf_counter()
    threads = max((os.cpu_count() or 1) // options.jobs, 1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, begin, (threads,)) as pool:
        under_way = {pool.submit(run, job, options.data): job for job in todo}
        for future in as_completed(under_way):
            job = under_way[future]
            try:
                one = future.result()
            except Exception as error:  # a worker that died takes the others with it: those wait for the next time
                one = {**asdict(job), "error": f"{type(error).__name__}: {error}"[:500]}
            finished.append(one)
            keep()
            said = one.get("error") or f"{one['primary_metric']} {100 * one['mean'][one['primary_metric']]:.1f}"
            print(f"{time.perf_counter() - began:6.0f} s  {job.name}: {said}", flush=True)
    keep()
    print()
    print(markdown(read_json(options.out)["summary"], options.tasks))
    failed = [one for one in finished if "error" in one]
    if failed:
        print(f"{len(failed)} runs failed, the first: {json.dumps(failed[0])}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
