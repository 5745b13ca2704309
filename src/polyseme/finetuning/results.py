"""The results of an experiment: metrics of every seed, their mean and deviation, and the files of the run folder."""

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyseme.finetuning.diagnostics import attribute_errors
from polyseme.finetuning.experiment import Experiment, TaskRun
from polyseme.inference.prediction import model_latency_ms
from polyseme.io.atomic import write_text
from polyseme.io.json import write_json
from polyseme.nn.model import Model
from polyseme.report.cards.readme import short_name
from polyseme.report.cards.run_card import write_run_card
from polyseme.report.diagnostics import Diagnostics
from polyseme.report.run_page import write_report
from polyseme.train.loop import StepReport, count_parameters


@dataclass(frozen=True)
class SeedResult:
    """The results of a seed as plain values, which `unfinished/` keeps until the run is finished.

    `scores`, `predictions`, `diagnostics` and `extra_eval` (primary metrics on more evaluation sets) are by the name of
    the task.
    `metadata` is that of the model folder.
    """

    seed: int
    scores: dict[str, dict[str, float]]
    predictions: dict[str, list[Any]]
    extra_eval: dict[str, dict[str, float]]
    metadata: dict[str, Any]
    log: list[dict[str, Any]]
    cost: dict[str, Any]  # tokens, flops and seconds of training
    predict_seconds: float
    diagnostics: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dict(json.loads(json.dumps(vars(self))))

    def primary_scores(self, experiment: Experiment) -> dict[str, float]:
        """Return the primary metric of every task."""
        return {run.data.name: self.scores[run.data.name][run.primary_metric] for run in experiment.runs}

    def selection_score(self, experiment: Experiment) -> float:
        """Return the mean of the primary metrics, which selects the best seed."""
        return statistics.fmean(self.primary_scores(experiment).values())


def evaluate_seed(
    experiment: Experiment, seed: int, model: Model, log: list[dict[str, Any]], cost: dict[str, Any]
) -> SeedResult:
    """Evaluate the trained model of a seed on every task."""
    scores, predictions, extra_eval, diagnostics, tasks, seconds = {}, {}, {}, {}, [], 0.0
    for run in experiment.runs:
        started = time.perf_counter()
        raw_predictions = run.predict(model)
        seconds += time.perf_counter() - started
        evaluation, name = run.evaluate(raw_predictions), run.data.name
        scores[name], predictions[name] = evaluation.metrics, [p.value for p in evaluation.predictions]
        splits = run.extra_eval.items()
        extra_eval[name] = {key: run.evaluate_split(model, evaluation.task, split) for key, split in splits}
        tasks.append(evaluation.task)
        diagnosed = evaluation.task.diagnose(run.data.train, run.dev.examples, evaluation.predictions)
        diagnostics[name] = diagnosed.to_json()
    metadata = experiment.metadata(tasks)
    return SeedResult(seed, scores, predictions, extra_eval, metadata, log, cost, seconds, diagnostics)


class ExperimentResults:
    """The results of all seeds and tasks of an experiment."""

    def __init__(self, experiment: Experiment, seeds: Sequence[SeedResult]):
        self.experiment, self.seeds = experiment, seeds

    def summarize(self, best_seed: int, model: Model, has_folder: bool) -> dict[str, Any]:
        """Return the results of the experiment; of several tasks also those of each."""
        experiment = self.experiment
        chosen_on_dev = {"chosen_on_dev": experiment.dev_choices}
        run_info = {
            **experiment.run_info,
            "best_seed": best_seed,
            "steps": experiment.config.total_steps(experiment.num_examples),
            "parameters": count_parameters(model),
            **{name: sum(each.cost[name] for each in self.seeds) for name in ("tokens", "flops", "seconds")},
            "changed_settings": experiment.changed_settings,
            **experiment.describe_model(model),
        }
        if not experiment.is_multitask:
            (only,) = experiment.runs
            speed = self._speed(model, has_folder)
            return {"task": only.task.task_type, **self._summarize_task(only), **chosen_on_dev, **run_info, **speed}
        tasks = {}
        for run in experiment.runs:
            label = {"data": run.data.label} if run.data.label else {}
            tasks[run.data.name] = {"task": run.task.task_type, **label, **self._summarize_task(run), **run_info}
        summaries = tasks.values()
        scores = [(each.seed, each.selection_score(experiment), each.primary_scores(experiment)) for each in self.seeds]
        return {
            "task": "multitask",
            "data": " + ".join(tasks),
            "primary_metric": "mean",
            **summarize_seeds([{"seed": seed, "mean": mean, **by_task} for seed, mean, by_task in scores]),
            "majority_score": None,
            "failed_seeds": sorted({seed for each in summaries for seed in each["failed_seeds"]}),
            **chosen_on_dev,
            **{name: sum(each[name] for each in summaries) for name in ("train_examples", "dev_examples")},
            "num_truncated": {n: sum(each["num_truncated"][n] for each in summaries) for n in ("train", "dev")},
            **run_info,
            "tasks": tasks,
        }

    def _summarize_task(self, run: TaskRun) -> dict[str, Any]:
        """Return the results of a task, as those of a run of it alone."""
        primary, trivial, name = run.primary_metric, run.trivial_score, run.data.name
        rows: list[dict[str, Any]] = []
        for each in self.seeds:
            rows.append({"seed": each.seed, primary: each.scores[name][primary], **each.scores[name]})
        summary = summarize_seeds(rows)
        extra_eval = {key: [each.extra_eval[name][key] for each in self.seeds] for key in run.extra_eval}
        return {
            "primary_metric": primary,
            **summary,
            **({"before": dict(run.before), "after": summary["mean"]} if run.before else {}),
            **({"extra_eval": extra_eval} if extra_eval else {}),
            "majority_score": trivial if math.isfinite(trivial) else None,
            "baselines": run.data.baselines(),
            "failed_seeds": [row["seed"] for row in rows if row[primary] <= trivial],
            "loss_unit": run.task.loss_unit,
            "train_examples": len(run.train.examples),
            "dev_examples": len(run.dev.examples),
            "num_truncated": {"train": run.train.num_truncated, "dev": run.dev.num_truncated},
            **run.task.describe_data(run.data.train, run.dev.examples),
        }

    def _speed(self, model: Model, has_folder: bool) -> dict[str, float]:
        if not self.experiment.measures_latency:
            return {}
        run = self.experiment.runs[0]
        total = len(self.seeds) * len(run.dev.examples)
        speed = {"examples_per_second": total / sum(each.predict_seconds for each in self.seeds)}
        if has_folder:
            speed["ms_per_text"] = model_latency_ms(model, run.task, run.dev.examples, run.dev.encoded)
        return speed

    def _diagnose(self, run: TaskRun, best_seed: int, model: Model) -> Diagnostics:
        """Return the diagnostics of the best seed, with attributions."""
        (best,) = (each for each in self.seeds if each.seed == best_seed)
        diagnostics = Diagnostics.from_json(best.diagnostics[run.data.name])
        num_tokens = sum(each.cost["tokens"] for each in self.seeds)
        return attribute_errors(self.experiment, run, model, diagnostics, num_tokens)

    def write(self, out: Path, summary: dict[str, Any], model: Model, metadata: dict[str, Any]) -> None:
        """Write the run folder: log, model, predictions, the report, and last `results.json`."""
        metric, seed, is_multitask = summary["primary_metric"], summary["best_seed"], self.experiment.is_multitask
        metadata = metadata | {
            "data": summary.get("data", ""),
            "results": {name: value for name, value in summary.items() if name != "tasks"},
            "selection": f"seed {seed}: the best {metric} on the dev examples of {len(self.seeds)} seed(s)",
        }
        for name, task_summary in summary.get("tasks", {}).items():
            metadata["tasks"][name]["results"] = task_summary
        write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for each in self.seeds for row in each.log))
        self.experiment.save(out / "model", model, metadata)
        for run in self.experiment.runs:
            name = run.data.name
            folder = out / "tasks" / name if is_multitask else out
            folder.mkdir(parents=True, exist_ok=True)
            gold, predictions = [e.gold for e in run.dev.examples], {e.seed: e.predictions[name] for e in self.seeds}
            content = {"gold": gold, "predictions": predictions, "task": run.task.to_json()}
            write_json(folder / "predictions.json", content)
            self._diagnose(run, seed, model).write(folder)
            if is_multitask:
                write_json(folder / "results.json", summary["tasks"][name])
        write_report(out, summary)
        base = " + ".join(map(short_name, str(summary["model"]).split(" + ")))
        write_run_card(out, f"{summary.get('data') or summary['task']} ({base})".replace("_", " "))
        write_json(out / "results.json", summary)


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
