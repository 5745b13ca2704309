"""All data sets of a benchmark in one go: the table of the lectures, with the published rows beside ours."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.datasets.catalog import DATA_SETS
from polyseme.datasets.published import table
from polyseme.errors import UserError, nearest
from polyseme.evaluation.compare import read_run, speed_of
from polyseme.evaluation.predict import evaluate, predict
from polyseme.evaluation.submission import FILES, write_submission
from polyseme.finetuning.finetune import FinetuneSpec, finetune
from polyseme.io.files import read_json, write_json
from polyseme.weights.folder import load_model, read_spec


@dataclass(frozen=True)
class Benchmark:
    """`columns` make the average; `beside` are run but left out of it. Some are other dev sets of a column's model."""

    prefix: str
    columns: tuple[str, ...]
    beside: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()  # (column, whose model answers it)
    published: str = ""
    measured: tuple[tuple[str, str], ...] = ()  # (a data set to measure on alone, whose model answers it)
    joined: tuple[tuple[str, tuple[str, ...]], ...] = ()  # columns whose score is the mean of several metrics


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
        joined=(("cb", ("macro_f1", "accuracy")), ("multirc", ("f1", "exact")), ("record", ("f1", "exact"))),
    ),
}


def run_benchmark(
    name: str,
    model: Path,
    data: Path,
    out: Path,
    settings: FinetuneSpec | None = None,
    seeds: int = 1,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Fine-tune on each data set that is in the folder; those already done in `out` are not done again.

    Texts are cut to 128 tokens, as GLUE's usual settings are, unless the settings say otherwise; how many are cut
    stands in each run's results. Where a test file lies beside train and dev, what the server wants is written too.
    A score of several metrics is their mean, as SuperGLUE's is. The diagnostic set is measured by MNLI's model.
    """
    if name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    bench = BENCHMARKS[name]
    limit = read_spec(model)[0].trunk.embeddings.max_len
    settings = settings or FinetuneSpec(max_len=min(128, limit), truncate=True)
    plan = {"benchmark": name, "model": str(model), "settings": settings.to_json(), "seeds": seeds}
    if (out / "benchmark.json").is_file() and read_json(out / "benchmark.json").get("plan") != plan:
        raise UserError(f"{out} holds a benchmark with other settings: give another folder")
    there = [column for column in (*bench.columns, *bench.beside) if _there(bench.prefix + column, data)]
    if not there:
        raise UserError(f"{data} holds none of the data sets of {name}")
    answered = dict(bench.others)
    results: dict[str, dict[str, Any]] = {}
    for column in there:
        if column in answered:
            continue
        folder = out / column
        if (folder / "results.json").is_file():
            results[column] = read_json(folder / "results.json")
            continue
        shutil.rmtree(folder, ignore_errors=True)
        named = DATA_SETS[bench.prefix + column]
        train, dev = named.read(data, skip_bad)
        others = {
            other: DATA_SETS[bench.prefix + other].part(data, "dev", skip_bad)
            for other, whose in bench.others
            if whose == column and other in there
        }
        found = finetune(
            model,
            named.kind,
            train,
            dev,
            folder,
            settings,
            seeds=seeds,
            primary=named.metric,
            data_set=bench.prefix + column,
            extra=named.extra,
            others=others,
        )
        if named.warn:
            for line in named.warn(train, dev, found["mean"]["accuracy"]):
                print(f"{column}: {line}", file=sys.stderr)
        results[column] = found
        write_json(out / "benchmark.json", {"plan": plan, "done": list(results)})
    scores: dict[str, list[float]] = {}
    for column in there:
        found = results[answered.get(column, column)]
        metrics = dict(bench.joined).get(column, (found["primary"],))
        values = [statistics.fmean(run[metric] for metric in metrics) for run in found["seeds"]]
        scores[column] = [100 * value for value in (found["others"][column] if column in answered else values)]
        _submit(bench.prefix + column, data, out, answered.get(column, column))
    beside: dict[str, dict[str, float]] = {}
    for other, whose in bench.measured:
        if whose in results:
            _submit(bench.prefix + other, data, out, whose)
            named = DATA_SETS[bench.prefix + other]
            if (data / named.folder / named.parts["dev"]).is_file():
                examples = named.part(data, "dev", skip_bad)
                beside[other] = evaluate(load_model(out / whose / "model"), examples, extra=named.extra)
    speed, ms = speed_of([read_run(out / column) for column in results])
    means = {column: statistics.fmean(values) for column, values in scores.items()}
    full = all(column in means for column in bench.columns)
    summary = {
        "plan": plan,
        "scores": scores,
        "mean": means,
        "deviation": {c: statistics.stdev(v) if len(v) > 1 else None for c, v in scores.items()},
        "average": statistics.fmean(means[column] for column in bench.columns) if full else None,
        "missing": [column for column in bench.columns if column not in there],
        "failed": {column: found["failed"] for column, found in results.items() if found["failed"]},
        "chosen_on_dev": list(
            dict.fromkeys(line for found in results.values() for line in found.get("chosen_on_dev", ()))
        ),
        "beside": beside,
        "parameters": max(found["parameters"] for found in results.values()),
        "ms_per_text": ms,
        "examples_per_second": speed,
        "done": list(results),
    }
    write_json(out / "benchmark.json", summary)
    return summary


def rows_of(name: str, label: str, summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table: published systems, then ours; what is missing is empty."""
    bench = BENCHMARKS[name]
    header = ["system", *bench.columns, "average", "parameters", "ms a text", "source"]
    sizes = {row.system: f"{row.values['millions']:g}M" for row in table("parameters").rows}
    rows: list[list[str]] = []
    for row in table(bench.published).rows if bench.published else ():
        cells = [f"{row.values[c]:.1f}" if c in row.values else "" for c in (*bench.columns, "average")]
        rows.append([row.system, *cells, sizes.get(row.system, ""), "", row.source])
    cells = []
    for column in bench.columns:
        mean, error = summary["mean"].get(column), summary["deviation"].get(column)
        cells.append("" if mean is None else f"{mean:.1f}" + ("" if error is None else f" ± {error:.1f}"))
    average = summary["average"]
    size, ms = f"{summary['parameters'] / 1e6:.1f}M", summary["ms_per_text"]
    rows.append(
        [label, *cells, "" if average is None else f"{average:.1f}", size, f"{ms:.1f}" if ms else "", "dev, this run"]
    )
    return header, rows


def _there(name: str, data: Path) -> bool:
    named = DATA_SETS[name]
    folder = data / named.folder
    needed: Sequence[str] = [named.parts["train"], named.parts["dev"]]
    if name == "glue/mrpc" and not (folder / "train.tsv").is_file():
        needed = ["msr_paraphrase_train.txt", "dev_ids.tsv"]
    return all((folder / file).exists() for file in needed)


def _submit(name: str, data: Path, out: Path, whose: str) -> None:
    named = DATA_SETS[name]
    path = out / "submission" / FILES[name]
    if path.is_file() or not (data / named.folder / named.parts["test"]).is_file():
        return
    folder = load_model(out / whose / "model")
    examples = named.part(data, "test", need_labels=False)
    write_submission(path, name, predict(folder, examples), examples)
