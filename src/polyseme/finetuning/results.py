"""The results of an experiment: metrics of every seed, their mean and deviation, and the files of the run folder."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyseme.finetuning.experiment import Evaluation, Experiment, TaskRun
from polyseme.inference.prediction import model_latency_ms
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.report.run_page import write_report
from polyseme.train.loop import StepReport, count_parameters

MULTITASK = "multitask"  # what results of several tasks call their task


class TaskResults:
    """What the seeds predict for one task, and their metrics."""

    def __init__(self, run: TaskRun):
        self.run = run
        self.seeds: list[dict[str, Any]] = []
        self.predictions: dict[int, list[Any]] = {}
        self.extra_eval: dict[str, list[float]] = {name: [] for name in run.extra_eval}

    def add_seed(self, seed: int, model: Model, evaluation: Evaluation) -> float:
        """Record the predictions of a seed; return its primary metric."""
        primary = self.run.primary_metric
        metrics = evaluation.metrics
        self.predictions[seed] = [p.value for p in evaluation.predictions]
        for name, split in self.run.extra_eval.items():
            self.extra_eval[name].append(self.run.evaluate_split(model, evaluation.task, split))
        self.seeds.append({"seed": seed, primary: metrics[primary], **metrics})
        return metrics[primary]

    def summarize(self) -> dict[str, Any]:
        """Return the results of this task, as those of a run of it alone."""
        run, primary = self.run, self.run.primary_metric
        trivial = run.trivial_score
        return {
            "primary_metric": primary,
            **summarize_seeds(self.seeds),
            **({"extra_eval": self.extra_eval} if self.extra_eval else {}),
            "majority_score": trivial if math.isfinite(trivial) else None,
            "failed_seeds": [seed["seed"] for seed in self.seeds if seed[primary] <= trivial],
            "loss_unit": run.task.loss_unit,
            "train_examples": len(run.train.examples),
            "dev_examples": len(run.dev.examples),
            "num_truncated": {"train": run.train.num_truncated, "dev": run.dev.num_truncated},
            **run.task.describe_data(run.data.train, run.dev.examples),
        }

    def write_predictions(self, path: Path) -> None:
        task = self.run.task
        gold = [e.gold for e in self.run.dev.examples]
        write_json(path, {"gold": gold, "predictions": self.predictions, "task": task.to_json()})


class ExperimentResults:
    """Collects the results of all seeds and tasks of an experiment."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.tasks = [TaskResults(run) for run in experiment.runs]
        for run in experiment.runs:
            run.primary_metric  # noqa: B018  # raises before training
        self.seed_scores: dict[int, float] = {}
        self.seed_rows: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self.cost: dict[str, Any] = {"tokens": 0, "flops": 0, "seconds": 0.0}
        self.predict_seconds = 0.0

    def add_training(self, seed: int, reports: Sequence[StepReport], seconds: float) -> None:
        self.log += log_rows(seed, reports)
        self.cost["tokens"] += sum(report.tokens for report in reports)
        self.cost["flops"] += sum(report.flops for report in reports)
        self.cost["seconds"] += seconds

    def add_seed(self, seed: int, model: Model) -> list[Evaluation]:
        """Evaluate the model of a seed on every task."""
        evaluations, scores = [], {}
        for results in self.tasks:
            started = time.perf_counter()
            predictions = results.run.predict(model)
            self.predict_seconds += time.perf_counter() - started
            evaluations.append(results.run.evaluate(predictions))
            scores[results.run.data.name] = results.add_seed(seed, model, evaluations[-1])
        self.seed_scores[seed] = statistics.fmean(scores.values())
        self.seed_rows.append({"seed": seed, "mean": self.seed_scores[seed], **scores})
        return evaluations

    def summarize(self, best_seed: int, model: Model, has_folder: bool) -> dict[str, Any]:
        """Return the results of the experiment; of several tasks also those of each."""
        experiment = self.experiment
        run_info = {
            **experiment.run_info,
            "best_seed": best_seed,
            "steps": experiment.config.total_steps(experiment.num_examples),
            "parameters": count_parameters(model),
            **self.cost,
            **experiment.describe_model(model),
        }
        if not experiment.is_multitask:
            (only,) = self.tasks
            speed = self._speed(model, has_folder)
            summary = only.summarize()
            return {
                "task": only.run.task.task_type,
                **summary,
                "chosen_on_dev": experiment.dev_choices,
                **run_info,
                **speed,
            }
        each = {
            task.run.data.name: {
                "task": task.run.task.task_type,
                **({"data": task.run.data.label} if task.run.data.label else {}),
                **task.summarize(),
                **run_info,
            }
            for task in self.tasks
        }
        failed = sorted({seed for task in each.values() for seed in task["failed_seeds"]})
        return {
            "task": MULTITASK,
            "data": " + ".join(each),
            "primary_metric": "mean",
            **summarize_seeds(self.seed_rows),
            "majority_score": None,
            "failed_seeds": failed,
            "chosen_on_dev": experiment.dev_choices,
            **{name: sum(task[name] for task in each.values()) for name in ("train_examples", "dev_examples")},
            "num_truncated": {
                split: sum(task["num_truncated"][split] for task in each.values()) for split in ("train", "dev")
            },
            **run_info,
            "tasks": each,
        }

    def _speed(self, model: Model, has_folder: bool) -> dict[str, float]:
        if not self.experiment.measures_latency:
            return {}
        run = self.tasks[0].run
        total = len(self.seed_scores) * len(run.dev.examples)
        speed = {"examples_per_second": total / self.predict_seconds}
        if has_folder:
            speed["ms_per_text"] = model_latency_ms(model, run.task, run.dev.examples, run.dev.encoded)
        return speed


def write_run(
    out: Path,
    results: ExperimentResults,
    summary: dict[str, Any],
    model: Model,
    metadata: dict[str, Any],
    num_seeds: int,
) -> None:
    """Write the run folder: log, model, predictions, results and the report."""
    experiment, seed = results.experiment, summary["best_seed"]
    metric = summary["primary_metric"]
    metadata |= {
        "data": summary.get("data", ""),
        "results": {name: value for name, value in summary.items() if name != "tasks"},
        "selection": f"seed {seed}: the best {metric} on the dev examples of {num_seeds} seed(s)",
    }
    for name, task_summary in summary.get("tasks", {}).items():
        metadata["tasks"][name]["results"] = task_summary
    write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in results.log))
    experiment.save(out / "model", model, metadata)
    for task in results.tasks:
        folder = out / "tasks" / task.run.data.name if experiment.is_multitask else out
        folder.mkdir(parents=True, exist_ok=True)
        task.write_predictions(folder / "predictions.json")
        if experiment.is_multitask:
            write_json(folder / "results.json", summary["tasks"][task.run.data.name])
    write_json(out / "results.json", summary)
    write_report(out)


def summarize_seeds(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return every seed, and of each metric the mean and the sample deviation (None for one seed: it is unknown)."""
    values = {name: [seed[name] for seed in seeds] for name in seeds[0] if name != "seed"}
    return {
        "seeds": list(seeds),
        "mean": {name: statistics.fmean(v) for name, v in values.items()},
        "std": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
    }


def log_rows(seed: int, reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """Return the log of a run. What lies on a GPU comes in one transfer: thousands would each wait for their turn."""
    rows = []
    for report, values in zip(reports, torch.stack([report.raw_metrics for report in reports]).tolist()):
        *losses, grad_norm, is_broken = values
        if is_broken:
            report.metrics  # noqa: B018  # raises, and says which step
        loss = dict(zip(report.terms, losses))
        row = {"step": report.step, "loss": loss, "lr": report.lr, "grad_norm": grad_norm, "tokens": report.tokens}
        rows.append({"seed": seed, **row})
    return rows
