"""All data sets of a benchmark in one go: the table of the lectures, with the published rows beside ours."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.datasets.catalog import DATASETS
from polyseme.datasets.published import published_table
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.evaluation.compare import mean_speed, read_run
from polyseme.evaluation.predict import evaluate, predict
from polyseme.evaluation.submission import SUBMISSION_FILES, write_submission
from polyseme.finetuning.finetune import FinetuneConfig, finetune
from polyseme.io.json import read_json, write_json
from polyseme.weights.folder import load_model, read_model_config


@dataclass(frozen=True)
class Benchmark:
    """`tasks` make the average; `excluded_from_average` are run but left out of it. Some are other dev sets of a
    column's model.
    """

    prefix: str
    tasks: tuple[str, ...]
    excluded_from_average: tuple[str, ...] = ()
    shared_models: tuple[tuple[str, str], ...] = ()  # (column, whose model answers it)
    published_table: str = ""
    diagnostic_sets: tuple[tuple[str, str], ...] = ()  # (a data set to measure on alone, whose model answers it)
    averaged_metrics: tuple[tuple[str, tuple[str, ...]], ...] = ()  # columns whose score is the mean of several metrics


BENCHMARKS = {
    "glue": Benchmark(
        "glue/",
        ("mnli", "mnli-mm", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte"),
        ("wnli",),
        (("mnli-mm", "mnli"),),
        "glue",
        (("diagnostic", "mnli"),),
    ),
    "superglue": Benchmark(
        "superglue/",
        ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"),
        averaged_metrics=(("cb", ("macro_f1", "accuracy")), ("multirc", ("f1", "exact")), ("record", ("f1", "exact"))),
    ),
}


def run_benchmark(
    name: str,
    model: Path,
    data: Path,
    out: Path,
    settings: FinetuneConfig | None = None,
    seeds: int = 1,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Fine-tune on each data set that is in the folder; those already done in `out` are not done again.

    Texts are cut to 128 tokens, as GLUE's usual settings are, unless the settings say otherwise; how many are cut
    stands in each run's results. Where a test file lies beside train and dev, what the server wants is written too.
    A score of several metrics is their mean, as SuperGLUE's is. The diagnostic set is measured by MNLI's model.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; {suggest(name, BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    max_len = read_model_config(model)[0].trunk.embeddings.max_len
    settings = settings or FinetuneConfig(max_len=min(128, max_len), truncate=True)
    plan = {"benchmark": name, "model": str(model), "settings": settings.to_json(), "seeds": seeds}
    if (out / "benchmark.json").is_file() and read_json(out / "benchmark.json").get("config") != plan:
        raise ConfigError(f"{out} holds a benchmark with other settings: give another folder")
    available = [
        task
        for task in (*benchmark.tasks, *benchmark.excluded_from_average)
        if _is_available(benchmark.prefix + task, data)
    ]
    if not available:
        raise DataError(f"{data} holds none of the data sets of {name}")
    shared_models = dict(benchmark.shared_models)
    results: dict[str, dict[str, Any]] = {}
    for task in available:
        if task in shared_models:
            continue
        folder = out / task
        if (folder / "results.json").is_file():
            results[task] = read_json(folder / "results.json")
            continue
        shutil.rmtree(folder, ignore_errors=True)
        dataset = DATASETS[benchmark.prefix + task]
        train, dev = dataset.read(data, skip_bad)
        extra_eval = {
            extra_task: DATASETS[benchmark.prefix + extra_task].read_split(data, "dev", skip_bad)
            for extra_task, model_task in benchmark.shared_models
            if model_task == task and extra_task in available
        }
        task_results = finetune(
            model,
            dataset.task_type,
            train,
            dev,
            folder,
            settings,
            seeds=seeds,
            primary_metric=dataset.metric,
            dataset_name=benchmark.prefix + task,
            extra_metrics=dataset.extra_metrics,
            extra_eval=extra_eval,
        )
        if dataset.get_warnings:
            for line in dataset.get_warnings(train, dev, task_results["mean"]["accuracy"]):
                print(f"{task}: {line}", file=sys.stderr)
        results[task] = task_results
        write_json(out / "benchmark.json", {"config": plan, "done": list(results)})
    scores: dict[str, list[float]] = {}
    for task in available:
        task_results = results[shared_models.get(task, task)]
        metrics = dict(benchmark.averaged_metrics).get(task, (task_results["primary_metric"],))
        values = [statistics.fmean(run[metric] for metric in metrics) for run in task_results["seeds"]]
        scores[task] = [
            100 * value for value in (task_results["extra_eval"][task] if task in shared_models else values)
        ]
        _write_test_submission(benchmark.prefix + task, data, out, shared_models.get(task, task))
    diagnostic_scores: dict[str, dict[str, float]] = {}
    for extra_task, model_task in benchmark.diagnostic_sets:
        if model_task in results:
            _write_test_submission(benchmark.prefix + extra_task, data, out, model_task)
            dataset = DATASETS[benchmark.prefix + extra_task]
            if (data / dataset.folder / dataset.splits["dev"]).is_file():
                examples = dataset.read_split(data, "dev", skip_bad)
                diagnostic_scores[extra_task] = evaluate(
                    load_model(out / model_task / "model"), examples, extra_metrics=dataset.extra_metrics
                )
    examples_per_second, latency_ms = mean_speed([read_run(out / task) for task in results])
    means = {task: statistics.fmean(values) for task, values in scores.items()}
    is_complete = all(task in means for task in benchmark.tasks)
    summary = {
        "config": plan,
        "scores": scores,
        "mean": means,
        "std": {c: statistics.stdev(v) if len(v) > 1 else None for c, v in scores.items()},
        "average": statistics.fmean(means[task] for task in benchmark.tasks) if is_complete else None,
        "missing": [task for task in benchmark.tasks if task not in available],
        "failed_seeds": {
            task: task_results["failed_seeds"] for task, task_results in results.items() if task_results["failed_seeds"]
        },
        "chosen_on_dev": list(
            dict.fromkeys(line for task_results in results.values() for line in task_results.get("chosen_on_dev", ()))
        ),
        "diagnostic_scores": diagnostic_scores,
        "parameters": max(task_results["parameters"] for task_results in results.values()),
        "ms_per_text": latency_ms,
        "examples_per_second": examples_per_second,
        "done": list(results),
    }
    write_json(out / "benchmark.json", summary)
    return summary


def benchmark_table(name: str, label: str, summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table: published systems, then ours; what is missing is empty."""
    benchmark = BENCHMARKS[name]
    header = ["system", *benchmark.tasks, "average", "parameters", "ms a text", "source"]
    parameter_counts = {row.system: f"{row.values['millions']:g}M" for row in published_table("parameters").rows}
    rows: list[list[str]] = []
    for row in published_table(benchmark.published_table).rows if benchmark.published_table else ():
        cells = [f"{row.values[c]:.1f}" if c in row.values else "" for c in (*benchmark.tasks, "average")]
        rows.append([row.system, *cells, parameter_counts.get(row.system, ""), "", row.source])
    cells = []
    for task in benchmark.tasks:
        mean, std = summary["mean"].get(task), summary["std"].get(task)
        cells.append("" if mean is None else f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}"))
    average = summary["average"]
    size, ms = f"{summary['parameters'] / 1e6:.1f}M", summary["ms_per_text"]
    rows.append(
        [label, *cells, "" if average is None else f"{average:.1f}", size, f"{ms:.1f}" if ms else "", "dev, this run"]
    )
    return header, rows


def _is_available(name: str, data: Path) -> bool:
    dataset = DATASETS[name]
    folder = data / dataset.folder
    required_files: Sequence[str] = [dataset.splits["train"], dataset.splits["dev"]]
    if name == "glue/mrpc" and not (folder / "train.tsv").is_file():
        required_files = ["msr_paraphrase_train.txt", "dev_ids.tsv"]
    return all((folder / file).exists() for file in required_files)


def _write_test_submission(name: str, data: Path, out: Path, model_task: str) -> None:
    dataset = DATASETS[name]
    path = out / "submission" / SUBMISSION_FILES[name]
    if path.is_file() or not (data / dataset.folder / dataset.splits["test"]).is_file():
        return
    folder = load_model(out / model_task / "model")
    examples = dataset.read_split(data, "test", needs_labels=False)
    write_submission(path, name, predict(folder, examples), examples)
