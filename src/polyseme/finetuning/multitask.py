"""Several tasks over one trunk (Caruana 1997; Liu et al. 2019, MT-DNN): one head for each, a step for one at a time.

Which task a step is of is drawn in proportion to size^α (Stickland and Murray 2019, §3.4), and each has its own loss,
divided by its own count. A head's name is that of its kind, an @ and the name of the task.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, suggest
from polyseme.evaluation.predict import MetricsFn
from polyseme.finetuning.finetune import (
    FinetuneConfig,
    _encode_examples,
    build_crf_config,
    find_template,
    finetuning_history,
    load_for_tasks,
    validate_run,
)
from polyseme.finetuning.runner import (
    EarlyStopping,
    Experiment,
    Split,
    _log_rows,
    _summarize,
    build_train_state,
    epoch_batches,
    run_phases,
)
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch
from polyseme.progress import progress
from polyseme.report.html import write_report
from polyseme.tasks.baselines.surface import majority_baseline
from polyseme.tasks.coreference import count_unreachable_mentions
from polyseme.tasks.examples import Example, TaskType
from polyseme.tasks.readers.squad import with_valid_answers
from polyseme.tasks.task import HEAD_BY_TASK, Task
from polyseme.train.flops import count_parameters
from polyseme.train.loop import StepReport, TrainState
from polyseme.weights.folder import ModelFolder, save_model

MULTITASK = "multitask"  # what the notes of such a folder say its task is


@dataclass(frozen=True, eq=False)
class TaskData:
    """One of the tasks: its name, what it learns from, and what it is measured on and by."""

    name: str
    task_type: TaskType
    train: Sequence[Example]
    dev: Sequence[Example]
    primary_metric: str = ""
    dataset_name: str = ""
    extra_metrics: MetricsFn | None = None

    @property
    def dataset_label(self) -> str:
        return self.dataset_name or (self.name if self.name != self.task_type else "")


def finetune_multitask(
    model_folder: Path,
    task_data: Sequence[TaskData],
    out: Path | None,
    settings: FinetuneConfig | None = None,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    from_scratch: bool = False,
) -> dict[str, Any]:
    """As `finetune`, for all jobs at once. An epoch has as many steps as those of all tasks together.

    What counts is the mean of what counts for each. `out` gets the results of all, one model with all heads, and for
    each task its `results.json` and `predictions.json` in `tasks/NAME`, as a run of that task alone has them.
    """
    settings = (settings or FinetuneConfig()).validate()
    _validate(task_data, settings)
    settings_without_crf = settings.replace(tag_decoder="softmax")
    for entry in task_data:
        validate_run(entry.task_type, out, settings if entry.task_type == "tagging" else settings_without_crf, seeds)
    task_settings = (settings.symmetric_pairs, settings.span, settings.coreference)
    tasks = []
    for entry in task_data:
        template = find_template(Path(model_folder), entry.task_type, entry.train, entry.dataset_name or entry.name)
        tasks.append(
            replace(
                Task.from_examples(
                    entry.task_type, entry.train, *_settings_for(entry.task_type, task_settings), template
                ),
                name=entry.name,
            )
        )
    tasks_with_crf = [
        (t, build_crf_config(settings, j.train) if j.task_type == "tagging" else None) for t, j in zip(tasks, task_data)
    ]
    loaded_folder = load_for_tasks(Path(model_folder), tasks_with_crf, settings, first_seed, from_scratch)

    def part(task: Task, examples: Sequence[Example]) -> Split:
        return Split(examples, _encode_examples(task, examples, loaded_folder, settings))

    experiments = [
        Experiment(
            task,
            part(task, with_valid_answers(entry.train)),
            part(task, entry.dev),
            settings,
            entry.primary_metric,
            entry.extra_metrics,
        )
        for task, entry in zip(tasks, task_data)
    ]
    task_results = [TaskResults(experiment, entry) for experiment, entry in zip(experiments, task_data)]
    num_examples = settings.batch_size * sum(
        math.ceil(len(experiment.train.encoded) / settings.batch_size) for experiment in experiments
    )
    log_rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    best: tuple[float, int, Model] | None = None
    cost = {"tokens": 0, "flops": 0, "seconds": 0.0}
    for seed in range(first_seed, first_seed + seeds):
        folder = (
            loaded_folder
            if seed == first_seed
            else load_for_tasks(Path(model_folder), tasks_with_crf, settings, seed, from_scratch)
        )
        run = build_train_state(folder.model, settings, num_examples, seed)
        run.use_cuda_graphs = False  # a recording gives the heads that wait gradients of zero, which are no gradients
        start_time = time.perf_counter()
        reports = _train_one_seed(task_results, run, num_examples, settings, seed)
        log_rows += _log_rows(seed, reports)
        cost["tokens"] += sum(report.tokens for report in reports)
        cost["flops"] += sum(report.flops for report in reports)
        cost["seconds"] += time.perf_counter() - start_time
        scores = {task_result.task_data.name: task_result.add_seed(seed, run.model) for task_result in task_results}
        runs.append({"seed": seed, "mean": statistics.fmean(scores.values()), **scores})
        if best is None or runs[-1]["mean"] > best[0]:
            best = (runs[-1]["mean"], seed, run.model)
    assert best is not None
    run_info = {"model": str(model_folder), "from_scratch": from_scratch, "best_seed": best[1], **cost}
    run_info |= {"steps": settings.total_steps(num_examples), "parameters": count_parameters(best[2])}
    summaries = {task_result.task_data.name: task_result.summarize() | run_info for task_result in task_results}
    results = {
        "task": MULTITASK,
        "data": " + ".join(summaries),
        "primary_metric": "mean",
        **_summarize(runs),
        "majority_score": None,
        "failed_seeds": sorted({seed for summary in summaries.values() for seed in summary["failed_seeds"]}),
        "chosen_on_dev": ["the epoch"] if settings.patience else [],
        **{n: sum(summary[n] for summary in summaries.values()) for n in ("train_examples", "dev_examples")},
        "num_truncated": {
            n: sum(summary["num_truncated"][n] for summary in summaries.values()) for n in ("train", "dev")
        },
        **run_info,
        "tasks": summaries,
    }
    if out is not None:
        metadata = {
            "task": MULTITASK,
            "data": results["data"],
            "settings": settings.to_json(),
            "results": {name: value for name, value in results.items() if name != "tasks"},
            "tasks": {
                task_result.task_data.name: task_result.metadata(best[1])
                | {"results": summaries[task_result.task_data.name]}
                for task_result in task_results
            },
            "selection": f"seed {best[1]}: the best mean on the dev examples of {seeds} seed(s)",
        }
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in log_rows))
        save_model(
            out / "model", best[2], loaded_folder.tokenizer, metadata | finetuning_history(loaded_folder.metadata)
        )
        for task_result in task_results:
            task_dir = out / "tasks" / task_result.task_data.name
            task_dir.mkdir(parents=True, exist_ok=True)
            gold = [e.gold for e in task_result.task_data.dev]
            labels = task_result.experiment.task.labels
            write_json(
                task_dir / "predictions.json",
                {"gold": gold, "predictions": task_result.predictions_by_seed, "labels": labels},
            )
            write_json(task_dir / "results.json", summaries[task_result.task_data.name])
        write_json(out / "results.json", results)
        write_report(out)
    return results


class TaskResults:
    """What the seeds say of one task, and what that is worth."""

    def __init__(self, experiment: Experiment, task_data: TaskData):
        self.experiment, self.task_data, self.primary_metric = (
            experiment,
            task_data,
            experiment.resolve_primary_metric(),
        )
        self.majority_score = majority_baseline(experiment.train.examples, task_data.dev, task_data.task_type).get(
            self.primary_metric, -math.inf
        )
        self.runs: list[dict[str, Any]] = []
        self.predictions_by_seed: dict[int, list[Any]] = {}
        self.calibrated_tasks: dict[int, Task] = {}

    def evaluate(self, model: Model) -> float:
        return self.experiment.evaluate(model)[2][self.primary_metric]

    def add_seed(self, seed: int, model: Model) -> float:
        self.calibrated_tasks[seed], predictions, metrics = self.experiment.evaluate(model)
        self.predictions_by_seed[seed] = [p.value for p in predictions]
        self.runs.append({"seed": seed, self.primary_metric: metrics[self.primary_metric], **metrics})
        return metrics[self.primary_metric]

    def summarize(self) -> dict[str, Any]:
        """As those of a run of this task alone."""
        task, train, dev = self.experiment.task, self.experiment.train, self.experiment.dev
        return {
            "task": task.task_type,
            **({"data": self.task_data.dataset_label} if self.task_data.dataset_label else {}),
            "primary_metric": self.primary_metric,
            **_summarize(self.runs),
            "majority_score": self.majority_score if math.isfinite(self.majority_score) else None,
            "failed_seeds": [run["seed"] for run in self.runs if run[self.primary_metric] <= self.majority_score],
            "train_examples": len(train.examples),
            "dev_examples": len(dev.examples),
            "num_truncated": {
                name: sum(e.is_truncated for e in split.encoded) for name, split in (("train", train), ("dev", dev))
            },
            **count_unreachable_mentions(task, train.examples, dev.examples),
        }

    def metadata(self, seed: int) -> dict[str, Any]:
        metadata = self.experiment.metadata(self.calibrated_tasks[seed], data=self.task_data.dataset_label)
        return metadata | {"settings": metadata["settings"] | {"symmetric_pairs": self.experiment.task.symmetric_pairs}}


def select_task(folder: ModelFolder, name: str = "") -> ModelFolder:
    """A folder of several tasks as if it had been fine-tuned for one of them alone; any other folder as it is."""
    tasks = folder.metadata.get("tasks")
    if not isinstance(tasks, dict):
        return folder
    if name not in tasks:
        problem = (
            f"no task {name!r}; {suggest(name, tasks)}" if name else f"several tasks, {', '.join(tasks)}: say which"
        )
        raise ConfigError(f"{folder.path} answers {problem}")
    if "text_template" in tasks[name]:  # one head writes them all
        return replace(folder, model=folder.model.with_single_head("next", "next"), metadata=tasks[name])
    head = HEAD_BY_TASK[tasks[name]["task"]]
    return replace(folder, model=folder.model.with_single_head(f"{head}@{name}", head), metadata=tasks[name])


def sample_tasks(sizes: Sequence[int], alpha: float, total: int, seed: int) -> np.ndarray:
    """The task of each step, by the seed alone, so that a run can go on anywhere."""
    weights = np.array(sizes, dtype=np.float64) ** alpha
    task_order: np.ndarray = np.random.default_rng((seed, len(sizes))).choice(
        len(sizes), total, p=weights / weights.sum()
    )
    return task_order


def task_mixture(
    experiments: Sequence[Experiment],
    settings: FinetuneConfig,
    seed: int,
    total: int,
    run: TrainState | None = None,
    num_done: int = 0,
) -> Iterator[tuple[list[Batch], Any]]:
    """The steps after the `num_done` ones: each task's own, in their own order, one drawn after the other."""
    order = sample_tasks(
        [len(experiment.train.examples) for experiment in experiments], settings.sampling_alpha, total, seed
    )
    steps_done = np.bincount(order[:num_done], minlength=len(experiments)).tolist()
    streams = [epoch_batches(w.task, w.train.encoded, settings, seed, run, n) for w, n in zip(experiments, steps_done)]
    for task_index in order[num_done:].tolist():
        batches, cursor = next(streams[task_index])
        yield batches, (task_index, cursor)


def _train_one_seed(
    task_results: Sequence[TaskResults], run: TrainState, num_examples: int, settings: FinetuneConfig, seed: int
) -> list[StepReport]:
    """Train one seed's model; with patience, to the best of its epochs by the mean over tasks."""
    early_stopping, reports = EarlyStopping(settings.patience), list[StepReport]()
    experiments, steps_per_epoch = (
        [task_result.experiment for task_result in task_results],
        num_examples // settings.batch_size,
    )
    with progress(f"finetune, seed {seed}", run.total_steps, "steps") as bar:
        for report in run_phases(
            run,
            settings,
            num_examples,
            lambda first: task_mixture(experiments, settings, seed, run.total_steps, run, first),
        ):
            bar.advance(1)
            reports.append(report)
            if early_stopping.patience and report.step % steps_per_epoch == 0:
                early_stopping.update(
                    report.step, statistics.fmean(t.evaluate(run.model) for t in task_results), run.model
                )
                if early_stopping.should_stop:
                    break
    early_stopping.restore(run.model)
    return reports


def _settings_for(task_type: TaskType, task_settings: tuple[bool, Any, Any]) -> tuple[bool, Any, Any]:
    """Settings that mean something to this kind: a pair may be read twice, another text not."""
    return (task_settings[0] and task_type in ("pair", "regression"), *task_settings[1:])


def _validate(task_data: Sequence[TaskData], settings: FinetuneConfig) -> None:
    names = [entry.name for entry in task_data]
    if not task_data:
        raise ConfigError("there is no task to fine-tune for")
    for name in names:
        if re.fullmatch(r"\w[\w-]*(/\w[\w-]*)*", name) is None:
            raise ConfigError(f"{name!r} is no name for a task: letters, digits, _ and - are")
        if names.count(name) > 1:
            raise ConfigError(f"two tasks are called {name!r}: give them names, NAME=KIND")
    if settings.tag_decoder == "crf" and all(entry.task_type != "tagging" for entry in task_data):
        raise ConfigError("the tag_decoder crf is for tagging, and none of the tasks is")
