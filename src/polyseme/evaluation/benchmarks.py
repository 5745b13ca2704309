"""Run all data sets of a benchmark, and compare the scores with published ones."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyseme.datasets.base import NamedDataset
from polyseme.datasets.catalog import DATASETS
from polyseme.datasets.published import PublishedResult, published_table
from polyseme.errors import ConfigError, DataError, require_packages, suggest
from polyseme.evaluation.comparison.finetuning_runs import mean_speed, read_run
from polyseme.evaluation.predict import evaluate
from polyseme.evaluation.streaming import hash_path
from polyseme.evaluation.submission import SUBMISSION_FILES, write_submission
from polyseme.finetuning.config import FinetuneConfig
from polyseme.finetuning.experiment import RunOptions, TaskData, list_seeds
from polyseme.finetuning.finetune import finetune
from polyseme.finetuning.resume import first_difference, read_finished_results
from polyseme.inference.feature_extraction import hash_model_files
from polyseme.inference.prediction import predict
from polyseme.io.atomic import is_occupied
from polyseme.io.hashes import write_hashes
from polyseme.io.json import has_shape, read_json_object, write_json
from polyseme.io.lock import locks_folder
from polyseme.report.cards.readme import short_name
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.pages.benchmark_page import write_benchmark_page
from polyseme.weights.folder import load_model, read_model_config

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Benchmark:
    """Data sets whose scores are averaged, and others that are run with them.

    A shared model is fine-tuned on one data set and also evaluated on another, its own dev set or a diagnostic set.
    """

    prefix: str
    tasks: tuple[str, ...]
    excluded_from_average: tuple[str, ...] = ()
    shared_models: dict[str, str] = field(default_factory=dict)  # data set to the one that its model is trained on
    diagnostic_sets: dict[str, str] = field(default_factory=dict)  # the same for sets that are reported apart
    published_table: str = ""
    averaged_metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)  # scores that are means of metrics

    def dataset(self, task: str) -> NamedDataset:
        """Return the data set of a task."""
        return DATASETS[self.prefix + task]

    def published_score(self, row: PublishedResult, task: str) -> float | None:
        """Return the score of a published system on a task; the mean of its metrics if it has several."""
        columns = [f"{task}_{metric}" for metric in self.averaged_metrics.get(task, ())] or [task]
        values = [row.values[column] for column in columns if column in row.values]
        return statistics.fmean(values) if values else None


BENCHMARKS = {
    "glue": Benchmark(
        "glue/",
        ("mnli", "mnli-mm", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte"),
        ("wnli",),
        {"mnli-mm": "mnli"},
        {"diagnostic": "mnli"},
        "glue",
    ),
    "superglue": Benchmark(
        "superglue/",
        ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc"),
        published_table="superglue",
        averaged_metrics={"cb": ("macro_f1", "accuracy"), "multirc": ("f1", "exact"), "record": ("f1", "exact")},
    ),
}


@locks_folder("benchmark")
def run_benchmark(
    name: str,
    model: Path,
    data: Path,
    out: Path,
    settings: FinetuneConfig | None = None,
    seeds: int | Sequence[int] = 1,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Fine-tune on each data set that is in the folder, except those already finished in `out`.

    By default, texts are truncated to 128 tokens, as is usual for GLUE; each run's results say how many. Where there is
    a test file, predictions are also written in the format of the benchmark's server.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; {suggest(name, BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    max_len = read_model_config(model)[0].trunk.embeddings.max_len
    settings = settings or FinetuneConfig(max_len=min(128, max_len), truncate=True)
    plan: dict[str, Any] = {"benchmark": name, "model": str(model), "settings": settings.to_json()}
    plan |= {"seeds": list_seeds(seeds), "model_hash": hash_model_files(model), "skip_bad": skip_bad}
    tasks = [*benchmark.tasks, *benchmark.excluded_from_average]
    tasks = [task for task in tasks if _is_available(benchmark.prefix + task, data)]
    if not tasks:
        raise DataError(f"{data} holds none of the data sets of {name}")
    hashes = {task: hash_path(data / benchmark.dataset(task).folder) for task in tasks}
    _check_plan(out, plan, hashes)
    plan["data"] = hashes
    for task in tasks:
        require_packages(benchmark.dataset(task).task.required_packages)
    results: dict[str, dict[str, Any]] = {}

    def write_progress() -> None:
        write_json(out / "benchmark.json", {"config": plan, "done": list(results)})

    for task in tasks:
        if task in benchmark.shared_models:
            continue
        if (finished := read_finished_results(out / task)) is not None:
            results[task] = finished
            continue
        train_dev = _read_task(benchmark, task, data, tasks, skip_bad)
        results[task] = finetune(model, train_dev, out / task, settings, RunOptions(seeds, on_start=write_progress))
        if get_warnings := benchmark.dataset(task).get_warnings:
            for line in get_warnings(list(train_dev.train), list(train_dev.dev), results[task]["mean"]["accuracy"]):
                logger.warning(f"{task}: {line}")
        write_progress()
    for task in tasks:
        _write_test_submission(benchmark, task, data, out, benchmark.shared_models.get(task, task))
    diagnostic_scores = _evaluate_diagnostics(benchmark, results, data, out, skip_bad)
    summary = {"config": plan, **_summarize(benchmark, tasks, results, out), "diagnostic_scores": diagnostic_scores}
    write_benchmark_page(out, name, benchmark_table(name, summary), benchmark_notes(name, summary), summary)
    write_json(out / "benchmark.json", summary)
    write_run_card(out, f"{name} ({short_name(model)})")
    write_hashes(out)
    return summary


def _check_plan(out: Path, plan: Mapping[str, Any], hashes: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the folder holds something else, or a benchmark with other settings or data."""
    if not (out / "benchmark.json").is_file():
        if is_occupied(out):
            raise ConfigError(f"{out} already exists and holds no benchmark: choose another folder")
        return
    existing = read_json_object(out / "benchmark.json").get("config")
    if not isinstance(existing, dict) or not has_shape(existing.get("data"), {str: str}):
        raise ConfigError(f"{out / 'benchmark.json'} is not of a benchmark: choose another folder")
    known = existing.pop("data")
    difference = first_difference(existing, plan) or first_difference(
        {task: value for task, value in known.items() if task in hashes},
        {task: value for task, value in hashes.items() if task in known},
        "data",
    )
    if difference:
        raise ConfigError(f"{out} holds a benchmark with other settings: {difference}; choose another folder")


def _evaluate_diagnostics(
    benchmark: Benchmark, results: dict[str, Any], data: Path, out: Path, skip_bad: bool
) -> dict[str, dict[str, float]]:
    """Evaluate the models on diagnostic sets, which have no training data."""
    scores = {}
    for task, model_task in benchmark.diagnostic_sets.items():
        if model_task in results:
            _write_test_submission(benchmark, task, data, out, model_task)
            dataset = benchmark.dataset(task)
            if (data / dataset.folder / dataset.splits["dev"]).is_file():
                model, examples = load_model(out / model_task / "model"), dataset.read_split(data, "dev", skip_bad)
                scores[task] = evaluate(model, examples, extra_metrics=dataset.extra_metrics)
    return scores


def _summarize(benchmark: Benchmark, tasks: list[str], results: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return scores in percent and facts about the runs."""
    scores: dict[str, list[float]] = {}
    for task in tasks:
        if task in benchmark.shared_models:
            values = results[benchmark.shared_models[task]]["extra_eval"][task]
        else:
            metrics = benchmark.averaged_metrics.get(task, (results[task]["primary_metric"],))
            values = [statistics.fmean(run[metric] for metric in metrics) for run in results[task]["seeds"]]
        scores[task] = [100 * value for value in values]
    means = {task: statistics.fmean(values) for task, values in scores.items()}
    missing = [task for task in benchmark.tasks if task not in tasks]
    examples_per_second, latency_ms = mean_speed([read_run(out / task) for task in results])
    return {
        "scores": scores,
        "mean": means,
        "std": {task: statistics.stdev(values) if len(values) > 1 else None for task, values in scores.items()},
        "average": None if missing else statistics.fmean(means[task] for task in benchmark.tasks),
        "missing": missing,
        "failed_seeds": {task: run["failed_seeds"] for task, run in results.items() if run["failed_seeds"]},
        "chosen_on_dev": list(dict.fromkeys(line for run in results.values() for line in run.get("chosen_on_dev", ()))),
        "parameters": max(run["parameters"] for run in results.values()),
        "ms_per_text": latency_ms,
        "examples_per_second": examples_per_second,
        "done": list(results),
    }


def _read_task(benchmark: Benchmark, task: str, data: Path, available: Sequence[str], skip_bad: bool) -> TaskData:
    """Read train and dev of a task, and the other dev sets that its model is evaluated on."""
    dataset = benchmark.dataset(task)
    shared = [extra for extra, trained in benchmark.shared_models.items() if trained == task and extra in available]
    return TaskData(
        dataset.task(),
        *dataset.read(data, skip_bad),
        primary_metric=dataset.metric,
        dataset_name=benchmark.prefix + task,
        extra_metrics=dataset.extra_metrics,
        extra_eval={extra: benchmark.dataset(extra).read_split(data, "dev", skip_bad) for extra in shared},
    )


def benchmark_table(name: str, summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table of published systems and this run, at most 80 columns wide.

    The last column refers to the sources of `benchmark_notes`. Missing values are empty.
    """
    benchmark, sources = BENCHMARKS[name], _published_sources(name)
    header = ["", *("mm" if task == "mnli-mm" else task.replace("-", "") for task in benchmark.tasks), "avg", "#"]
    rows: list[list[str]] = []
    for row in _published_rows(name):
        cells = [_format(benchmark.published_score(row, task)) for task in (*benchmark.tasks, "average")]
        rows.append([row.system, *cells, str(sources.index(row.source) + 1)])
    rows.append(["this run (dev)", *(_format(summary["mean"].get(task)) for task in benchmark.tasks)])
    rows[-1] += [_format(summary["average"]), ""]
    if any(std is not None for std in summary["std"].values()):
        rows.append(["± std over seeds", *(_format(summary["std"].get(task)) for task in benchmark.tasks), "", ""])
    return header, rows


def benchmark_notes(name: str, summary: dict[str, Any]) -> list[str]:
    """Return the sources of the published rows, and sizes and speed."""
    sizes = {row.system: f"{row.values['millions']:g}M" for row in published_table("parameters").rows}
    systems = dict.fromkeys(row.system for row in _published_rows(name) if row.system in sizes)
    latency = f", {summary['ms_per_text']:.1f} ms per text" if summary["ms_per_text"] else ""
    shown = [f"this run {summary['parameters'] / 1e6:.1f}M{latency}", *(f"{each} {sizes[each]}" for each in systems)]
    notes = [f"{number}: {source}" for number, source in enumerate(_published_sources(name), 1)]
    return [*notes, f"parameters: {'; '.join(shown)}"]


def _published_rows(name: str) -> tuple[PublishedResult, ...]:
    table = BENCHMARKS[name].published_table
    return published_table(table).rows if table else ()


def _published_sources(name: str) -> list[str]:
    return list(dict.fromkeys(row.source for row in _published_rows(name)))


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _is_available(name: str, data: Path) -> bool:
    dataset = DATASETS[name]
    folder = data / dataset.folder
    required_files = [dataset.splits["train"], dataset.splits["dev"]]
    if name == "glue/mrpc" and not (folder / "train.tsv").is_file():
        required_files = ["msr_paraphrase_train.txt", "dev_ids.tsv"]
    return all((folder / file).exists() for file in required_files)


def _write_test_submission(benchmark: Benchmark, task: str, data: Path, out: Path, model_task: str) -> None:
    name, dataset = benchmark.prefix + task, benchmark.dataset(task)
    path = out / "submission" / SUBMISSION_FILES[name]
    if path.is_file() or not (data / dataset.folder / dataset.splits["test"]).is_file():
        return
    examples = dataset.read_split(data, "test", needs_labels=False)
    write_submission(path, name, predict(load_model(out / model_task / "model"), examples), examples)
