"""Typed results of runs: metrics, and paths to the model and the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from polyseme.report.notebook import NotebookResult

_LM_TERMS = ("next", "masked", "previous")  # the loss terms that are language-model losses, most specific first


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
    """A finished pre-training run: its folder, validation losses, and sizes."""

    valid: ValidationResult
    num_parameters: int
    num_tokens: int
    num_steps: int

    @classmethod
    def from_results(cls, out: Path, results: Mapping[str, Any]) -> Self:
        """From the dictionary in `results.json`."""
        valid = ValidationResult(dict(results["valid"]))
        return cls(Path(out), valid, results["parameters"], results["tokens"], results["steps"])


@dataclass(frozen=True)
class FinetuneResult(_RunResult):
    """A finished fine-tuning run: the mean and standard deviation of every metric over the seeds."""

    primary_metric: str
    mean: dict[str, float]
    std: dict[str, float | None]
    seeds: tuple[dict[str, Any], ...]
    best_seed: int
    failed_seeds: tuple[int, ...]

    @classmethod
    def from_results(cls, out: Path, results: Mapping[str, Any]) -> Self:
        """From the dictionary in `results.json`."""
        return cls(
            Path(out), results["primary_metric"], dict(results["mean"]), dict(results["std"]),
            tuple(results["seeds"]), results["best_seed"], tuple(results["failed_seeds"]),
        )  # fmt: skip
