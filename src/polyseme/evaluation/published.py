"""Our own results next to published ones: runs, benchmarks, studies, and the JSON that commands print."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from polyseme.datasets.published import (
    PARAMETERS,
    MeasuredResult,
    PublishedTable,
    ScoreColumn,
    load_published_tables,
)
from polyseme.errors import ConfigError, DataError, suggest
from polyseme.evaluation.comparison.api import find_run_folder
from polyseme.evaluation.comparison.finetuning_runs import find_runs, name_runs, read_run, shortest_names
from polyseme.evaluation.minimal_pairs import NUM_BLIMP_PARADIGMS
from polyseme.finetuning.results import mean_std
from polyseme.io.json import has_shape, read_json
from polyseme.report.pages.finetuning_page import dev_selection_note

ROW_FORMAT = '{"system": "NAME", "split": "test", "values": {"COLUMN": VALUE}}'
SPLITS = ("dev", "test")
# Data sets by the names of a study's metrics, or by other names of theirs. A study may divide TREC in its own way.
_DATASETS = {**{name: f"glue/{name}" for name in ("cola", "sst-2", "mrpc", "sts-b")}, "wic": "superglue/wic"}
_STUDY_SHAPE = {"study": {"arms": [{"name": str, "transfer": str}]}, "limits": {str: {str: int}}}
_ARM_SHAPE = {"metrics": {str: {"value": float, "metric": str}}, "parameters": int, "is_void": bool}
_OBJECTIVE_SHAPE = {"recipe": {"objective": {"kind": str}}}
_PAIRS_SHAPE = {"model": str, "task": str, "accuracy": float, "phenomena": {str: float}, "paradigms": {str: float}}


DatasetValues = dict[tuple[str, str], tuple[float, ...]]  # by data set and metric: one value for each seed


@dataclass(frozen=True)
class SystemScores:
    """What one system scored: values by data set and metric, one for each seed, as fractions.

    `transfer` is `features` for a network over frozen features, else `finetune`.
    """

    name: str
    values: DatasetValues
    num_parameters: int = 0
    transfer: str = "finetune"
    notes: tuple[str, ...] = ()


def add_results(table: PublishedTable, paths: Sequence[Path]) -> PublishedTable:
    """Return a published table with our results next to it.

    A path is the folder of a fine-tuning run, a benchmark or a study, or a JSON file: what `evaluate` printed, or a row
    of one's own with values by column, such as those that a benchmark's server returned.
    """
    rows: list[MeasuredResult] = []
    paths = [find_run_folder(path) for path in paths]
    folders = [path for path in paths if path.is_dir() and not (path / "study.json").is_file()]
    by_folder = _read_folders(folders)
    names = dict(zip(paths, shortest_names(paths)))
    for path in paths:
        if path in by_folder:
            rows += [_place(table, path, scores) for scores in by_folder[path]]
        elif path.is_dir():
            rows += _place_any(table, path, list(_read_study(path, names[path])))
        else:
            rows += _read_file(table, path, Path(names[path]).stem)
    return replace(table, measured=tuple(rows))


def _read_folders(folders: Sequence[Path]) -> dict[Path, list[SystemScores]]:
    """Read fine-tuning runs; those of a benchmark, or of one model on several data sets, share a row."""
    pairs = [(folder, path) for folder in folders for path in _find_task_runs(folder)]
    runs = name_runs([read_run(path) for _, path in pairs], [folder for folder, _ in pairs])
    rows: dict[str, SystemScores] = {}
    folder_of_row: dict[str, Path] = {}
    for (folder, path), run in zip(pairs, runs):
        results = read_json(path / "results.json")
        transfer = "features" if results.get("features") else "finetune"
        row = f"{run.row} (features)" if transfer == "features" else run.row
        previous = rows.get(row, SystemScores(row, {}, run.num_parameters, transfer))
        notes = (f"{run.name}: {dev_selection_note(run.dev_choices)}",) if run.dev_choices else ()
        values = {**previous.values, **_run_values(run.task, results)}
        rows[row] = replace(previous, values=values, notes=previous.notes + notes)
        folder_of_row.setdefault(row, folder)
    by_folder: dict[Path, list[SystemScores]] = {folder: [] for folder in folders}
    for row, scores in rows.items():
        by_folder[folder_of_row[row]].append(scores)
    return by_folder


def _find_task_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, those of each task of a model for several."""
    tasks = sorted(path.parent for path in folder.glob("tasks/*/results.json"))
    return tasks or find_runs(folder)


def _run_values(dataset: str, results: Mapping[str, Any]) -> DatasetValues:
    dataset, seeds = _DATASETS.get(dataset, dataset), results["seeds"]
    metrics = [name for name in seeds[0] if all(isinstance(seed.get(name), float) for seed in seeds)]
    values = {(dataset, name): tuple(seed[name] for seed in seeds) for name in metrics}
    for extra, scores in results.get("extra_eval", {}).items():  # such as MNLI's other dev set
        values[f"{dataset.rpartition('/')[0]}/{extra}", results["primary_metric"]] = tuple(scores)
    return values


def _read_study(folder: Path, name: str) -> Iterator[SystemScores]:
    """Yield the scores of each arm of a study; a seed of an arm is one value, the mean of its fine-tuning seeds."""
    plan = read_json(folder / "study.json")
    plan = plan if has_shape(plan, _STUDY_SHAPE) else {"study": {"arms": []}, "limits": {}}
    transfers = {arm["name"]: arm["transfer"] for arm in plan["study"]["arms"]}
    limits = [f"{metric}: {split} {n:,}" for metric, each in plan["limits"].items() for split, n in each.items()]
    for arm in sorted(path for path in folder.glob("arms/*") if path.is_dir()):
        files = [path for path in sorted(arm.glob("seed-*.json")) if path.name.count(".") == 1]
        contents = {path: read_json(path) for path in files}
        rows = {path: row for path, row in contents.items() if not (isinstance(row, dict) and "error" in row)}
        for path, row in rows.items():
            if not has_shape(row, _ARM_SHAPE):
                raise DataError(f"{path} is damaged: it is no finished seed of a study's arm")
        seeds = list(rows.values())
        values: DatasetValues = {}
        for metric in dict.fromkeys(metric for seed in seeds for metric in seed["metrics"]):
            entries = [seed["metrics"][metric] for seed in seeds if metric in seed["metrics"]]
            if metric == "blimp" and any(_count_paradigms(entry) != NUM_BLIMP_PARADIGMS for entry in entries):
                continue
            if metric == "valid_loss" and not all(map(_predicts_masked_tokens, seeds)):
                continue
            key = _DATASETS.get(metric, metric), "accuracy" if metric == "blimp" else entries[0]["metric"]
            values[key] = tuple(entry["value"] for entry in entries)
        notes = [f"{name} used a part of some data sets, in examples: {', '.join(limits)}"] if limits else []
        if len(seeds) < len(files):
            notes.append(f"{arm.name}: {len(files) - len(seeds)} of {len(files)} seeds failed")
        if any(seed["is_void"] for seed in seeds):
            notes.append(f"{arm.name} did not train: it never left the word-frequency plateau")
        mark = f" ({transfers[arm.name]})" if transfers.get(arm.name) == "features" else ""
        if seeds:
            yield SystemScores(f"{name}/{arm.name}{mark}", values, seeds[0]["parameters"], notes=tuple(notes))


def _predicts_masked_tokens(seed: Mapping[str, Any]) -> bool:
    """Return whether the validation loss of a seed is that of masked tokens, as in the published perplexities."""
    return has_shape(seed, _OBJECTIVE_SHAPE) and "MaskedLM" in seed["recipe"]["objective"]["kind"]


def _count_paradigms(entry: Mapping[str, Any]) -> int:
    return len(entry.get("paradigms", ()))


def _read_file(table: PublishedTable, path: Path, name: str) -> list[MeasuredResult]:
    """Read the JSON that `evaluate` printed, or a row of one's own."""
    if not path.is_file():
        raise ConfigError(f"there is no run at {path}")
    if path.suffix != ".json":
        advice = f"a submission has predictions and no scores: write those of the server to a JSON file, {ROW_FORMAT}"
        raise DataError(f"{path} is neither a run folder nor a JSON file of results ({advice})")
    content = read_json(path)
    if isinstance(content, dict) and "values" in content:
        return [_read_row(table, path, content, name)]
    entries = content if isinstance(content, list) else [content]
    if not entries:
        raise DataError(f"{path} holds no results")
    return _place_any(table, path, [_read_evaluation(path, entry, name) for entry in entries])


def _read_row(table: PublishedTable, path: Path, content: Mapping[str, Any], name: str) -> MeasuredResult:
    """Read a row as it is printed with `--json`, with values in the units of the table."""
    values, split = content["values"], content.get("split")
    if split not in SPLITS:
        raise DataError(f"{path}: split is {split!r}, expected dev or test")
    if not isinstance(values, dict) or not values:
        raise DataError(f"{path}: values is {str(values)[:40]!r}, expected numbers by column: {ROW_FORMAT}")
    for column, value in values.items():
        if column not in table.columns:
            raise DataError(f"{path}: {table.name} has no column {column!r}; {suggest(column, table.columns)}")
        if not has_shape(value, float) or not math.isfinite(value):
            raise DataError(f"{path}: {column} is {value!r}, expected a number in the units of the table")
    if not isinstance(system := content.get("system", name), str):
        raise DataError(f"{path}: system is {system!r}, expected the name of the system")
    return MeasuredResult(system, dict(values), split, source=str(path))


def _read_evaluation(path: Path, entry: Any, name: str) -> SystemScores:
    """Read a result of `evaluate`: minimal pairs, or metrics on a named data set."""
    if has_shape(entry, _PAIRS_SHAPE):
        num_paradigms = len(entry["paradigms"])
        if (entry["task"], num_paradigms) != ("blimp", NUM_BLIMP_PARADIGMS):
            name = f"of the task {entry['task']} with {num_paradigms} paradigm" + "s" * (num_paradigms != 1)
            raise DataError(f"{path} is a result {name}, expected blimp with its {NUM_BLIMP_PARADIGMS}")
        pairs = {"accuracy": entry["accuracy"], **entry["phenomena"]}
        values: DatasetValues = {("blimp", column): (value,) for column, value in pairs.items()}
        system = _model_name(str(entry["model"])) or name
        settings = {"pll_metric": "original", "normalization": "none"}
        other = [f"{key} {value}" for key, plain in settings.items() if (value := entry.get(key) or plain) != plain]
        return SystemScores(system, values, notes=(f"{system}: {', '.join(other)}",) if other else ())
    if not has_shape(entry, {"dataset": str}) or not entry["dataset"]:
        raise DataError(f"{path} is no result of `evaluate` on a named data set, nor a row such as {ROW_FORMAT}")
    metrics: DatasetValues = {
        (entry["dataset"], key): (value,)
        for key, value in entry.items()
        if isinstance(value, float) and math.isfinite(value)
    }
    num_parameters = entry.get("parameters", 0)
    return SystemScores(name, metrics, num_parameters if isinstance(num_parameters, int) else 0)


def _model_name(path: str) -> str:
    """Return a short name of a model folder: that of its run, if it is in one; an empty one for the folder `.`."""
    folder = Path(path)
    return (folder.parent.name if folder.name == "model" else "") or folder.name


def _place_any(table: PublishedTable, path: Path, systems: Sequence[SystemScores]) -> list[MeasuredResult]:
    """Place all systems that have a score of the table, of which there must be one."""
    fitting = [scores for scores in systems if any(_select(c, scores) for c in table.score_columns.values())]
    if not systems:
        raise DataError(f"{path} has no finished arm yet")
    return [_place(table, path, scores) for scores in fitting or systems]


def _place(table: PublishedTable, path: Path, scores: SystemScores) -> MeasuredResult:
    """Return the row of a system: percentages in the columns that its scores belong in."""
    by_column = {column: _select(spec, scores) for column, spec in table.score_columns.items()}
    by_column = {column: values for column, values in by_column.items() if values}
    measured = {column for column in by_column if table.score_columns[column].dataset != PARAMETERS}
    if not measured and (not by_column or len(table.score_columns) > 1):
        raise ConfigError(f"{path} has no score that {table.name} shows; {_describe(scores)}")
    values = {column: fmean(each) for column, each in by_column.items()}
    if (average := table.average(values)) is not None and "average" in table.columns:
        values["average"] = average
    splits = {table.score_columns[column].split for column in measured}
    std = {column: mean_std(by_column[column])[1] for column in measured}
    return MeasuredResult(
        scores.name,
        {column: values[column] for column in table.columns if column in values},
        "dev" if "dev" in splits else "test" if splits else "",
        {column: value for column, value in std.items() if value is not None},
        {column: len(by_column[column]) for column in measured},
        str(path),
        scores.notes,
    )


def _select(spec: ScoreColumn, scores: SystemScores) -> tuple[float, ...]:
    """Return the scores that belong in a column, in its units; empty if there are none."""
    if spec.dataset == PARAMETERS:
        return (scores.num_parameters / 1e6,) if scores.num_parameters else ()
    if spec.transfer and spec.transfer != scores.transfer:
        return ()
    if spec.metric == "error":
        return tuple(100 - 100 * value for value in scores.values.get((spec.dataset, "accuracy"), ()))
    if spec.metric == "perplexity":
        return tuple(math.exp(value) for value in scores.values.get((spec.dataset, "loss"), ()))
    return tuple(100 * value for value in scores.values.get((spec.dataset, spec.metric), ()))


def _describe(scores: SystemScores) -> str:
    """Name the scores of a system, and the tables that show them."""
    datasets = sorted({dataset for dataset, _ in scores.values}) or ["none"]
    tables = [
        table.name
        for table in load_published_tables().values()
        if any(spec.dataset != PARAMETERS and _select(spec, scores) for spec in table.score_columns.values())
    ]
    shown = f"tables with such scores: {', '.join(tables)}" if tables else "no table has such scores"
    return f"it has scores on {', '.join(datasets)}; {shown}"
