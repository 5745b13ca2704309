"""Fine-tuning on GLUE: each model on each task, mean and deviation over seeds, at the best of several learning rates.

    python benchmarks/glue.py MODEL [MODEL …] --data FOLDER --out FILE.json [--tasks cola sst-2 mrpc sts-b] [--seeds 3]
        [--rates 5e-5 1e-4] [--scratch] [--jobs 4] [--epochs N] [--limit ROWS]

No installation is needed: set PYTHONPATH=src:benchmarks. Each (model, task, rate, seed) is a run in one of `--jobs`
worker processes, which share the GPU. The JSON file is written after every run, and the same command continues from
there; failed runs are stored with their error and repeated. `--scratch` adds the same models with fresh weights. Scores
are the primary metric × 100 on the dev set. The reported rate is the one with the best mean, an advantage that all rows
share; the file contains all runs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import Run, RunFile, failed_run, worker_pool
from report import format_mean_std, header, mean_std, table

from polyseme.datasets.catalog import DATASETS
from polyseme.errors import PolysemeError
from polyseme.finetuning.experiment import RunOptions, TaskData
from polyseme.weights.folder import read_model_config

EPOCHS = {"cola": 5.0, "sst-2": 3.0, "mrpc": 5.0, "sts-b": 5.0, "wnli": 5.0}
SIZES = {"cola": 8551, "sst-2": 67349, "mrpc": 3668, "sts-b": 5749, "wnli": 635}  # training examples


@dataclass(frozen=True)
class Job:
    """One run and everything that its score depends on."""

    model: str
    task: str
    seed: int
    rate: float
    epochs: float
    scratch: bool = False
    limit: int = 0  # rows of each split; 0: all

    @property
    def name(self) -> str:
        """Description for messages."""
        model = f"{self.model}{', from scratch' if self.scratch else ''}"
        return f"{model}, {self.task}, rate {self.rate:g}, seed {self.seed}"


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Return every requested run, the longest first, so that the last ones are short."""
    jobs = [
        Job(model, task, seed, rate, options.epochs or EPOCHS[task], scratch, options.limit)
        for task in sorted(options.tasks, key=lambda task: -SIZES[task])
        for rate, seed, model, scratch in itertools.product(
            options.rates, range(options.seeds), options.models, [False, True][: 1 + options.scratch]
        )
    ]
    return list(dict.fromkeys(jobs))


@functools.cache
def examples(task: str, data: str, limit: int) -> Any:
    """Return the training and dev examples."""
    train, dev = DATASETS[f"glue/{task}"].read(data)
    return (train[:limit], dev[:limit]) if limit else (train, dev)


def run(job: Job, data: str) -> Run:
    """Run a job; an error is returned, so that the other jobs continue."""
    from polyseme.finetuning.config import FinetuneConfig
    from polyseme.finetuning.finetune import finetune
    from polyseme.train.optimizer import OptimizerConfig, ScheduleConfig

    dataset = DATASETS[f"glue/{job.task}"]
    start = time.perf_counter()
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
        task_data = TaskData(dataset.task(), train, dev, primary_metric=dataset.metric)
        options = RunOptions(seeds=[job.seed], from_scratch=job.scratch)
        results = finetune(Path(job.model), task_data, None, settings, options)
    except (PolysemeError, RuntimeError, OSError) as error:
        return failed_run(job, error)
    metrics = {name: results[name] for name in ("primary_metric", "mean", "steps", "tokens", "parameters")}
    return {**asdict(job), **metrics, "train_s": results["seconds"], "wall_s": time.perf_counter() - start}


def summary(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return mean and deviation of every rate for each model and task; the rate with the best mean is first."""
    groups: dict[tuple[Any, ...], dict[float, dict[int, float]]] = {}
    for run in runs:
        if "error" not in run:
            key = (run["model"], run["scratch"], run["task"], run["primary_metric"])
            by_rate = groups.setdefault(key, {})
            by_rate.setdefault(run["rate"], {})[run["seed"]] = 100 * run["mean"][run["primary_metric"]]
    rows = []
    for (model, scratch, task, metric), by_rate in groups.items():
        rates = [{"rate": rate, **mean_std([*v.values()]), "seeds": len(v)} for rate, v in by_rate.items()]
        rates.sort(key=lambda stats: -stats["mean"])  # type: ignore[operator]
        rows.append({"model": model, "scratch": scratch, "task": task, "metric": metric, "rates": rates})
    return rows


def markdown(summaries: Sequence[dict[str, Any]], tasks: Sequence[str]) -> str:
    """Format a row for each model, a column for each task, and the mean over tasks if all are present."""
    metrics = {row["task"]: row["metric"] for row in summaries}
    rows: dict[tuple[str, bool], dict[str, dict[str, Any]]] = {}
    for row in summaries:
        rows.setdefault((row["model"], row["scratch"]), {})[row["task"]] = row["rates"][0]
    lines = []
    for (model, scratch), best in rows.items():
        cells = [_cell(best.get(task)) for task in tasks]
        average = f"{statistics.fmean(s['mean'] for s in best.values()):.1f}" if len(best) == len(tasks) else ""
        lines.append([f"{model}{' (from scratch)' if scratch else ''}", *cells, average])
    names = [f"{task} ({metrics[task]})" if task in metrics else task for task in tasks]
    return table(["model", *names, "mean"], lines)


def _cell(stats: dict[str, Any] | None) -> str:
    return "" if stats is None else f"{format_mean_std(stats)} (rate {stats['rate']:g}, n={stats['seeds']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", default=["cola", "sst-2", "mrpc", "sts-b"], choices=list(EPOCHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-5])
    parser.add_argument("--epochs", type=float, default=0.0, help="default: 5, for SST-2 3")
    parser.add_argument("--scratch", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="rows of each split, for a quick test")
    options = parser.parse_args()

    try:  # check the inputs before starting
        for task in options.tasks:
            examples(task, options.data, options.limit)
        for model in options.models:
            read_model_config(Path(model))
    except PolysemeError as error:
        sys.exit(f"error: {error}")
    title = header("GLUE, fine-tuned: primary metric x 100 on the dev set")
    runs = RunFile(options.out, title, jobs_of(options), summary)
    print(f"{title}\n{len(runs.jobs)} runs, {len(runs.pending)} of them pending, {options.jobs} at a time", flush=True)
    with worker_pool(options.jobs) as pool:
        summaries = runs.run_pending(lambda job: pool.submit(run, job, options.data))
    print("\n" + markdown(summaries, options.tasks))
    runs.exit_on_failure()


if __name__ == "__main__":
    main()
