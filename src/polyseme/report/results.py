"""Typed results of runs: metrics, and paths to the model and the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from polyseme.report.diagnostics import Diagnostics
from polyseme.report.notebook import NotebookResult

_LM_TERMS = ("next", "masked", "previous")  # the loss terms that are language-model losses, most specific first


def metric_title(metric: str, positive_label: str = "") -> str:
    """Return the name of a metric for people: `f1` of a classification names its positive label."""
    return f"f1 (of {positive_label!r})" if metric == "f1" and positive_label else metric


@dataclass(frozen=True)
class ValidationResult(NotebookResult):
    """Losses on held-out text in nats, by loss term; empty if no text was held out."""

    losses: dict[str, float]

    @property
    def perplexity(self) -> float:
        """The exponential of the language-model loss; nan if there is none."""
        if "perplexity" in self.losses:
            return self.losses["perplexity"]
        return next((math.exp(self.losses[term]) for term in _LM_TERMS if term in self.losses), math.nan)


@dataclass(frozen=True)
class _RunResult(NotebookResult):
    """A finished run in the folder `out`."""

    out: Path

    @property
    def model(self) -> Path:
        """The model folder, of the best seed if there are several."""
        return self.out / "model"

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.out / "report.html"


@dataclass(frozen=True)
class PretrainResult(_RunResult):
    """A finished pre-training run: its folder, validation losses, and sizes.

    `warnings` say what is wrong with a run that ended but did not train: it diverged, or predicted nothing.
    """

    valid: ValidationResult
    num_parameters: int
    num_tokens: int
    num_steps: int
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_results(cls, out: Path, results: Mapping[str, Any]) -> Self:
        """From the dictionary in `results.json`."""
        valid, warnings = ValidationResult(dict(results["valid"])), tuple(results.get("warnings", ()))
        return cls(Path(out), valid, results["parameters"], results["tokens"], results["steps"], warnings)


@dataclass(frozen=True)
class FinetuneResult(_RunResult):
    """A finished fine-tuning run: the mean and standard deviation of every metric over the seeds.

    `baselines` are the metrics of simple models, `tasks` the results of each of several tasks, `grid` the mean score of
    every point of a grid search, and `details` the content of `results.json`.
    """

    primary_metric: str
    mean: dict[str, float]
    std: dict[str, float | None]
    seeds: tuple[dict[str, Any], ...]
    best_seed: int
    failed_seeds: tuple[int, ...]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    tasks: dict[str, "FinetuneResult"] = field(default_factory=dict)
    grid: dict[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def diagnostics(self) -> Diagnostics:
        """What the best model gets right and wrong on the dev examples; of one task, since each has its own."""
        return Diagnostics.read(self.out)

    @classmethod
    def from_results(cls, out: Path, results: Mapping[str, Any]) -> "FinetuneResult":
        """From the dictionary in `results.json`."""
        tasks = {name: cls.from_results(Path(out), each) for name, each in results.get("tasks", {}).items()}
        return cls(
            Path(out), results["primary_metric"], dict(results["mean"]), dict(results["std"]),
            tuple(results["seeds"]), results["best_seed"], tuple(results["failed_seeds"]),
            results.get("baselines", {}), tasks, results.get("grid", {}), results,
        )  # fmt: skip


@dataclass(frozen=True)
class EvaluationResult(NotebookResult):
    """The metrics of a task model on labeled examples, its size and its speed.

    `chosen_on_dev` is what was selected on these same examples, so that their scores are optimistic.
    """

    metrics: dict[str, float]
    num_examples: int
    num_parameters: int
    examples_per_second: float
    ms_per_text: float
    chosen_on_dev: tuple[str, ...] = ()
    positive_label: str = ""  # whose F1 `f1` is, in a classification
