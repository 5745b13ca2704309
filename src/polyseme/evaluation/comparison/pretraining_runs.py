"""Pre-training runs as read from their folders, with their costs and curves, for comparison."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import DataError
from polyseme.io.json import read_json
from polyseme.report.run_page import read_log

TOKEN_TERMS = ("masked", "next", "previous")  # loss terms of one prediction per token


@dataclass(frozen=True)
class LossCurve:
    """A loss in nats against steps, tokens, floating-point operations and minutes; all are of one length."""

    steps: tuple[int, ...]
    tokens: tuple[float, ...]
    flops: tuple[float, ...]
    minutes: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class PretrainRun:
    """A finished pre-training run.

    `loss` is the mean of the losses of token predictions on held-out text, in nats, or the first loss of a model that
    has none. `bits_per_character` is that loss for each character of the held-out text, which does not depend on the
    tokenizer; of a masked model it counts every token as if it were masked, so it compares only with models that mask
    as much. None is unknown.
    """

    path: Path
    recipe: str
    family: str
    losses: dict[str, float]
    loss: float | None
    perplexity: float | None
    bits_per_character: float | None
    num_tokens: int
    flops: float
    minutes: float
    num_parameters: int
    num_steps: int
    is_masked: bool
    train_curve: LossCurve
    valid_curve: LossCurve
    name: str = ""


def is_pretrain_run(folder: Path) -> bool:
    """Whether a folder is a pre-training run, by the file that only these have."""
    return (folder / "recipe.json").is_file()


def read_pretrain_run(folder: Path) -> PretrainRun:
    """Read a finished pre-training run from `recipe.json`, `results.json` and `log.jsonl`."""
    if not (folder / "results.json").is_file():
        raise DataError(f"{folder} is not a finished run: there is no results.json")
    try:
        recipe, results = read_json(folder / "recipe.json")["recipe"], read_json(folder / "results.json")
        return _parse_run(folder, recipe, results, read_log(folder))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: recipe.json, results.json or log.jsonl is damaged ({error})") from None


def _parse_run(folder: Path, recipe: dict[str, Any], results: dict[str, Any], log: list[dict[str, Any]]) -> PretrainRun:
    valid = {str(name): float(value) for name, value in results["valid"].items()}
    loss, steps, minutes = token_loss(valid), int(results["steps"]), 60 * float(results["device_hours"])
    characters = results.get("characters_per_token")
    # what was spent at each validation, between the start and the end
    spent = {row["step"]: row["spent"] for row in log if "spent" in row}
    anchors = {0: (0.0, 0.0, 0.0)}
    anchors |= {int(step): (s["tokens"], s["flops"], s["seconds"] / 60) for step, s in spent.items()}
    anchors[steps] = (float(results["tokens"]), float(results["flops"]), minutes)
    train_rows = {int(row["step"]): token_loss(row["loss"]) for row in log if "loss" in row}
    valid_rows = {int(row["step"]): token_loss(row["valid"]) for row in log if "valid" in row}
    return PretrainRun(
        path=folder,
        recipe=str(recipe["name"]),
        family=str(recipe["family"]),
        losses=valid,
        loss=loss,
        perplexity=valid.get("perplexity"),
        bits_per_character=None if loss is None or not characters else loss / float(characters) / math.log(2),
        num_tokens=int(results["tokens"]),
        flops=float(results["flops"]),
        minutes=minutes,
        num_parameters=int(results["parameters"]),
        num_steps=steps,
        is_masked="masked" in valid and "next" not in valid,
        train_curve=_curve(train_rows, anchors),
        valid_curve=_curve(valid_rows, anchors),
    )


def token_loss(losses: dict[str, float]) -> float | None:
    """Return the mean loss of token predictions in nats; that of n-grams is for each token, without sentence ends."""
    if "perplexity_words" in losses:
        return math.log(losses["perplexity_words"])
    terms = TOKEN_TERMS[1:] if "next" in losses else TOKEN_TERMS  # of a hybrid model, the likelihood
    values = [float(losses[term]) for term in terms if term in losses] or [*map(float, losses.values())][:1]
    return statistics.fmean(values) if values else None


def _curve(losses: dict[int, float | None], anchors: dict[int, tuple[float, float, float]]) -> LossCurve:
    """Return the curve of losses by step; costs between two known ones are interpolated."""
    steps = sorted(step for step, loss in losses.items() if loss is not None)
    known_steps = sorted(anchors)
    columns = [
        np.interp(steps, known_steps, [anchors[step][i] for step in known_steps]).tolist() if steps else []
        for i in range(3)
    ]
    tokens, flops, minutes = map(tuple, columns)
    return LossCurve(tuple(steps), tokens, flops, minutes, tuple(losses[step] or 0.0 for step in steps))


def pretraining_table(runs: list[PretrainRun] | tuple[PretrainRun, ...]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table of pre-training runs."""
    header = ["run", "recipe", "loss", "perplexity", "bits/char", "tokens", "FLOPs", "minutes", "parameters"]
    rows = []
    for run in runs:
        quality = [_format(run.loss, ".4f"), _format(run.perplexity, ",.2f"), _format(run.bits_per_character, ".4f")]
        cost = [f"{run.num_tokens:,}", f"{run.flops:.3g}", f"{run.minutes:.1f}", f"{run.num_parameters:,}"]
        rows.append([run.name, run.recipe, *quality, *cost])
    return header, rows


def _format(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)
