"""The results of an experiment: metrics of every seed, their mean and deviation, and the files of the run folder."""

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
from polyseme.io.hashes import write_hashes
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.report.run_page import write_report
from polyseme.train.loop import StepReport, count_parameters


class TaskResults:
    """The predictions of all seeds for one task, and their metrics."""

    def __init__(self, run: TaskRun):
        self.run = run
        self.seeds: list[dict[str, Any]] = []
        self.predictions: dict[int, list[Any]] = {}
        self.extra_eval: dict[str, list[float]] = {name: [] for name in run.extra_eval}

    def add_seed(self, seed: int, model: Model, evaluation: Evaluation) -> float:
        """Record the predictions of a seed; return its primary metric."""
        primary, metrics = self.run.primary_metric, evaluation.metrics
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
        """Write the labels of the dev examples and the predictions of every seed."""
        gold = [e.gold for e in self.run.dev.examples]
        write_json(path, {"gold": gold, "predictions": self.predictions, "task": self.run.task.to_json()})


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
        """Record the log and the cost of the training of a seed."""
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
        chosen_on_dev = {"chosen_on_dev": experiment.dev_choices}
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
            return {"task": only.run.task.task_type, **only.summarize(), **chosen_on_dev, **run_info, **speed}
        tasks = {}
        for each in self.tasks:
            label = {"data": each.run.data.label} if each.run.data.label else {}
            tasks[each.run.data.name] = {"task": each.run.task.task_type, **label, **each.summarize(), **run_info}
        summaries = tasks.values()
        return {
            "task": "multitask",
            "data": " + ".join(tasks),
            "primary_metric": "mean",
            **summarize_seeds(self.seed_rows),
            "majority_score": None,
            "failed_seeds": sorted({seed for each in summaries for seed in each["failed_seeds"]}),
            **chosen_on_dev,
            **{name: sum(each[name] for each in summaries) for name in ("train_examples", "dev_examples")},
            "num_truncated": {n: sum(each["num_truncated"][n] for each in summaries) for n in ("train", "dev")},
            **run_info,
            "tasks": tasks,
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

    def write(self, out: Path, summary: dict[str, Any], model: Model, metadata: dict[str, Any]) -> None:
        """Write the run folder: log, model, predictions, results and the report."""
        metric, seed, is_multitask = summary["primary_metric"], summary["best_seed"], self.experiment.is_multitask
        metadata |= {
            "data": summary.get("data", ""),
            "results": {name: value for name, value in summary.items() if name != "tasks"},
            "selection": f"seed {seed}: the best {metric} on the dev examples of {len(self.seed_rows)} seed(s)",
        }
        for name, task_summary in summary.get("tasks", {}).items():
            metadata["tasks"][name]["results"] = task_summary
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in self.log))
        self.experiment.save(out / "model", model, metadata)
        for task in self.tasks:
            folder = out / "tasks" / task.run.data.name if is_multitask else out
            folder.mkdir(parents=True, exist_ok=True)
            task.write_predictions(folder / "predictions.json")
            if is_multitask:
                write_json(folder / "results.json", summary["tasks"][task.run.data.name])
        write_json(out / "results.json", summary)
        write_report(out)
        write_hashes(out)


def summarize_seeds(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of every seed, their means, and their sample standard deviations (None for one seed)."""
    stats = {name: mean_std([seed[name] for seed in seeds]) for name in seeds[0] if name != "seed"}
    mean, std = ({name: pair[i] for name, pair in stats.items()} for i in (0, 1))
    return {"seeds": list(seeds), "mean": mean, "std": std}


def mean_std(values: Sequence[float], default_std: float | None = None) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation, which is `default_std` for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else default_std


def log_rows(seed: int, reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """Return the log of a run. Metrics on a GPU are copied in one transfer, because each one waits for the device."""
    rows = []
    for report, values in zip(reports, torch.stack([report.raw_metrics for report in reports]).tolist()):
        *losses, grad_norm, is_broken = values
        if is_broken:
            report.metrics  # noqa: B018  # raises an error that names the step
        step = {"seed": seed, "step": report.step, "loss": dict(zip(report.terms, losses))}
        rows.append({**step, "lr": report.lr, "grad_norm": grad_norm, "tokens": report.tokens})
    return rows
