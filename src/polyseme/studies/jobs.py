"""The jobs of a study: calibrate an arm, search its learning rate, train and measure one of its seeds."""

import contextlib
import datetime
import gc
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from polyseme.corpus.store import Corpus
from polyseme.errors import ModelError, UnsupportedError
from polyseme.io.hashes import HASHES_FILE
from polyseme.io.json import read_json_object, write_json
from polyseme.ngram.train import NgramRecipe, train_ngram
from polyseme.nn.model import build_meta
from polyseme.studies.arms import AnyRecipe, resolve_recipe, scale_run, trains_on_cpu
from polyseme.studies.base import Arm
from polyseme.studies.calibration import calibrate, device_name
from polyseme.studies.corpora import arm_corpus
from polyseme.studies.measurement import ArmModel, measure_arm, validation_loss
from polyseme.studies.metrics import METRICS, Metric
from polyseme.studies.plan import SEARCH_SEED, StudyPlan
from polyseme.train.monitoring.diagnostics import measure_unigram_loss
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import read_model_config

logger = logging.getLogger(__name__)
VOID_RATIO = 0.95  # of the unigram loss, above which a model has learned little more than word frequencies
MAX_EXTRA_RATES = 3  # beyond those of the study
JobKind = Literal["calibrate", "search", "pretrain", "rates", "answer", "train"]


@dataclass(frozen=True)
class Job:
    """A part of a study that runs on its own.

    `train` trains a model and measures it. `pretrain` is the first part of it, `rates` chooses the learning rate of one
    task for all seeds, and `answer` measures only what the questions of the study need.
    """

    kind: JobKind
    arm: str
    seed: int = 0
    metric: str = ""

    def __str__(self) -> str:
        if self.kind == "rates":
            return f"{self.arm}: rates of {self.metric}"
        return f"{self.arm}: {self.kind}" if self.kind in ("calibrate", "search") else f"{self.arm}: seed {self.seed}"


def run_job(plan: StudyPlan, job: Job) -> None:
    """Run a job in this process."""
    arm = plan.study.find_arm(job.arm)
    run = {"calibrate": calibrate_arm, "search": search_rate}
    if job.kind in run:
        run[job.kind](plan, arm)
    elif job.kind == "train":
        train_arm(plan, arm, job.seed)
    elif job.kind == "rates":
        choose_finetuning_rate(plan, arm, job.seed, METRICS[job.metric])
    elif not _repeats_first_seed(plan, arm, job.seed):
        if job.kind == "pretrain":
            pretrain_arm(plan, arm, job.seed)
        else:
            measure_seed(plan, arm, job.seed, only_asked=True)


def needs_calibration(plan: StudyPlan, arm: Arm) -> bool:
    """Return whether the steps of an arm have to be measured first."""
    if not plan.budget.is_wall_clock or "steps" in plan.read_arm_file(arm, "calibration.json"):
        return False
    recipe = resolve_recipe(arm, plan.options.overrides, plan.corpus)
    return isinstance(recipe, Recipe)


def needs_search(plan: StudyPlan, arm: Arm) -> bool:
    """Return whether the learning rate of an arm has to be chosen first."""
    if "lr" in plan.read_arm_file(arm, "lr.json"):
        return False
    return isinstance(resolve_recipe(arm, plan.options.overrides, plan.corpus), Recipe)


def calibrate_arm(plan: StudyPlan, arm: Arm) -> None:
    """Write `calibration.json` of an arm."""
    recipe = resolve_recipe(arm, plan.options.overrides, plan.corpus)
    assert isinstance(recipe, Recipe)
    corpus, lock = arm_corpus(plan, arm), plan.out / "cache" / "device.lock"
    write_json(
        plan.arm_folder(arm) / "calibration.json", calibrate(recipe, corpus, plan.budget, lock, trains_on_cpu(recipe))
    )


def arm_budget(plan: StudyPlan, arm: Arm) -> BudgetConfig:
    """Return the budget of an arm in steps or tokens."""
    if not plan.budget.is_wall_clock:
        return plan.budget
    return BudgetConfig(steps=plan.read_arm_file(arm, "calibration.json")["steps"])


def search_rate(plan: StudyPlan, arm: Arm) -> None:
    """Try each learning rate for a part of the budget; write `lr.json` of an arm after each.

    The loss on documents of the corpus that no result is measured on decides. A run that diverges loses, then one that
    learns little more than word frequencies. While the best rate is the largest or smallest, a few more are tried
    beyond it. Raise `ModelError` if all runs fail.
    """
    path, record = plan.arm_folder(arm) / "lr.json", plan.read_arm_file(arm, "lr.json")
    recipe = resolve_recipe(arm, plan.options.overrides, plan.corpus)
    assert isinstance(recipe, Recipe)
    corpus, rates = arm_corpus(plan, arm), record.get("rates", [])
    short = scale_run(recipe, arm_budget(plan, arm), plan.options.search_fraction)
    short = hold_out_others(short, Corpus.open(corpus).num_documents).replace(seed=SEARCH_SEED)
    if len(plan.study.lr_factors) == 1:
        (only_factor,) = plan.study.lr_factors
        write_json(path, {"lr": recipe.optimizer.lr * only_factor, "factor": only_factor, "rates": []})
        return
    unigram_loss = measure_unigram_loss(Corpus.open(corpus))
    while (factor := next_factor(plan.study.lr_factors, rates)) is not None:
        lr = recipe.optimizer.lr * factor
        folder = plan.arm_folder(arm) / f"search-{factor:g}"
        rate: dict[str, Any] = {"factor": factor, "lr": lr, "loss": None, "is_void": False}
        try:
            results = run_pretraining(short.replace(optimizer=short.optimizer.replace(lr=lr)), corpus, folder)
            rate |= {"loss": validation_loss(results), "steps": results["steps"]}
            rate["is_void"] = is_void(short, results, unigram_loss)
        except ModelError as error:
            rate["error"] = str(error)
        rates.append(rate)
        write_json(path, {"rates": rates})
        shutil.rmtree(folder, ignore_errors=True)
    best = best_rate(rates)
    if best["loss"] is None:
        reason = best.get("error", "its loss is not finite")
        path.unlink()  # so that the next run of the study tries again
        raise ModelError(f"no learning rate of {arm.name} can be trained, such as {best['lr']:g}: {reason}")
    write_json(path, {"lr": best["lr"], "factor": best["factor"], "seed": SEARCH_SEED, "rates": rates})


def hold_out_others(recipe: Recipe, num_documents: int) -> Recipe:
    """Return the recipe with twice as many held-out documents, none of which it held out before.

    They are evenly spaced, so the first ones lie half-way between them. A corpus of few documents holds out the same.
    """
    num_held_out = max(1, round(num_documents * recipe.valid_fraction))
    if not recipe.valid_fraction or 4 * num_held_out > num_documents:
        return recipe
    return recipe.replace(valid_fraction=2 * num_held_out / num_documents)


def best_rate(rates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the rate with the lowest loss, of those that learned more than word frequencies if there are any."""

    def quality(rate: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
        loss = rate["loss"]
        return loss is not None, not rate["is_void"], -(loss or 0.0), -abs(math.log(rate["factor"]))

    return max(rates, key=quality)


def next_factor(factors: Sequence[float], rates: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the next factor to try: those of the study, then beyond the edge while the best one is there.

    At most `MAX_EXTRA_RATES` more are tried; None if the search is over.
    """
    tried = [rate["factor"] for rate in rates]
    if left := [factor for factor in factors if factor not in tried]:
        return left[0]
    low, high, best = min(tried), max(tried), best_rate(rates)
    if len(tried) >= len(factors) + MAX_EXTRA_RATES or best["loss"] is None or best["factor"] not in (low, high):
        return None
    return float(2 * high if best["factor"] == high else low / 2)


def final_recipe(plan: StudyPlan, arm: Arm, seed: int) -> AnyRecipe:
    """Return the recipe of a seed with its budget and the learning rate that was chosen."""
    recipe = resolve_recipe(arm, plan.options.overrides, plan.corpus)
    if isinstance(recipe, NgramRecipe):
        return recipe
    lr = plan.read_arm_file(arm, "lr.json")["lr"]
    return recipe.replace(budget=arm_budget(plan, arm), seed=seed, optimizer=recipe.optimizer.replace(lr=lr))


def run_pretraining(recipe: AnyRecipe, corpus: Path, folder: Path) -> dict[str, Any]:
    """Run a recipe, continue an interrupted run of it, or return the results of a finished one."""
    if isinstance(recipe, NgramRecipe):
        is_finished = (folder / "results.json").is_file()
        return read_json_object(folder / "results.json") if is_finished else train_ngram(recipe, corpus, folder)
    if (folder / HASHES_FILE).is_file() and (folder / "results.json").is_file():
        return read_json_object(folder / "results.json")
    if recipe.compile:
        torch._dynamo.reset()  # several runs in one process
    return pretrain(recipe, corpus, folder, resume=(folder / "recipe.json").is_file())


def pretrain_arm(plan: StudyPlan, arm: Arm, seed: int) -> dict[str, Any]:
    """Train the model of a seed."""
    return run_pretraining(final_recipe(plan, arm, seed), arm_corpus(plan, arm), plan.run_folder(arm, seed))


def train_arm(plan: StudyPlan, arm: Arm, seed: int) -> None:
    """Train the model of a seed, measure every arm that uses it, write their rows, and delete the model."""
    if _repeats_first_seed(plan, arm, seed):
        for each in plan.evaluated_arms(arm):
            copy_row(plan, each, seed)
        return
    measure_seed(plan, arm, seed)
    folder = plan.run_folder(arm, seed)
    if plan.options.keep_models:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def measure_seed(plan: StudyPlan, arm: Arm, seed: int, only_asked: bool = False) -> None:
    """Train the model of a seed unless it is, and measure every arm that uses it.

    With `only_asked`, by the metrics that questions compare it by; the row is then not finished.
    """
    started, folder, recipe = time.perf_counter(), plan.run_folder(arm, seed), final_recipe(plan, arm, seed)
    if trains_on_cpu(recipe) and torch.cuda.is_available():
        _pretrain_on_cpu(plan, arm, seed)
    results = pretrain_arm(plan, arm, seed)
    gc.collect()
    torch.cuda.empty_cache()
    for each in plan.evaluated_arms(arm):
        if plan.is_done(each, seed):
            continue
        row = describe_training(plan, arm, recipe, results, folder / "model") | {"arm": each.name, "seed": seed}
        plan.row_path(each, seed).unlink(missing_ok=True)  # that of an error
        partial_path = plan.partial_row_path(each, seed)
        if partial_path.is_file():
            partial = read_json_object(partial_path)
            row["metrics"] = partial["metrics"]
            row["warnings"] = list(dict.fromkeys([*row["warnings"], *partial.get("warnings", [])]))
        model = _open_model(plan, each, seed, recipe, results)
        measure_arm(model, plan.study.asked_metrics(each.name) if only_asked else plan.study.metrics, row)
        if not only_asked:
            row["metrics"] = {name: facts for name, facts in row["metrics"].items() if facts}
            row["wall_seconds"] = round(time.perf_counter() - started, 1)
            write_json(plan.row_path(each, seed), row)
            partial_path.unlink(missing_ok=True)


def choose_finetuning_rate(plan: StudyPlan, arm: Arm, seed: int, metric: Metric) -> None:
    """Choose the learning rate of a task for all seeds of an arm, with the trained model of one of them."""
    trained = plan.study.find_arm(arm.from_arm or arm.name)
    with contextlib.suppress(UnsupportedError):  # which the rows say
        _open_model(plan, arm, seed, final_recipe(plan, trained, seed), {}).choose_lr(metric)


def _open_model(plan: StudyPlan, arm: Arm, seed: int, recipe: AnyRecipe, results: Mapping[str, Any]) -> ArmModel:
    folder = plan.run_folder(plan.study.find_arm(arm.from_arm or arm.name), seed) / "model"
    return ArmModel(plan, arm, seed, folder, results, recipe.max_len if isinstance(recipe, Recipe) else 0)


def _repeats_first_seed(plan: StudyPlan, arm: Arm, seed: int) -> bool:
    """Return whether a row is that of the first seed again: counts of n-grams have no seed."""
    is_counted = isinstance(resolve_recipe(arm, plan.options.overrides, plan.corpus), NgramRecipe)
    return is_counted and seed != plan.seeds[0]


def copy_row(plan: StudyPlan, arm: Arm, seed: int) -> None:
    """Write the row of a seed, and the values of its examples, as those of the first seed."""
    first = plan.seeds[0]
    if not plan.is_done(arm, first):
        raise ModelError(f"seed {first} failed, whose results are those of all seeds")
    row = read_json_object(plan.row_path(arm, first)) | {"seed": seed}
    for metric in row["metrics"].values():
        if "items" in metric:
            name = metric["items"].replace(f"seed-{first}.", f"seed-{seed}.", 1)
            shutil.copyfile(plan.arm_folder(arm) / metric["items"], plan.arm_folder(arm) / name)
            metric["items"] = name
    write_json(plan.row_path(arm, seed), row)


def describe_training(
    plan: StudyPlan, arm: Arm, recipe: AnyRecipe, results: dict[str, Any], model: Path
) -> dict[str, Any]:
    """Return what a row says about the training of its model."""
    corpus = Corpus.open(arm_corpus(plan, arm))
    unigram_loss = measure_unigram_loss(corpus)
    return {
        "arm": arm.name,
        "seed": 0,
        "recipe": recipe.to_json(),
        "lr": recipe.optimizer.lr if isinstance(recipe, Recipe) else None,
        "steps": results["steps"],
        "tokens": results["tokens"],
        "parameters": results["parameters"],
        "non_embedding_parameters": count_non_embedding(model) if isinstance(recipe, Recipe) else 0,
        "train_seconds": round(results["device_hours"] * 3600, 2),
        "device": device_name(trains_on_cpu(recipe)),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "torch": torch.__version__,
        "commit": current_commit(),
        "valid": results["valid"],
        "unigram_loss": unigram_loss,
        "is_void": is_void(recipe, results, unigram_loss),
        "warnings": list(results.get("warnings", [])),
        "metrics": {},
    }


def is_void(recipe: AnyRecipe, results: dict[str, Any], unigram_loss: float) -> bool:
    """Return whether a model is not clearly better than word frequencies, so that it shows nothing about its arm."""
    if isinstance(recipe, NgramRecipe) or recipe.objective.is_sparse:
        return False
    loss = validation_loss(results)
    return loss is None or loss > VOID_RATIO * unigram_loss


def count_non_embedding(model: Path) -> int:
    """Return the number of parameters of the trunk without those of its embeddings."""
    trunk = build_meta(read_model_config(model)[0]).trunk
    return sum(p.numel() for name, p in trunk.named_parameters() if "embeddings" not in name)


@cache
def current_commit() -> str:
    """Return the commit of this code; empty if it is not in a repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return ""


def _pretrain_on_cpu(plan: StudyPlan, arm: Arm, seed: int) -> None:
    """Train a model in a process that sees no GPU."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "polyseme.studies.worker", str(plan.out), "pretrain", arm.name, str(seed)]
    status = subprocess.run(command, env=environment).returncode
    if status:
        raise ModelError(
            f"the training on the CPU ended with status {status}: its error is in the line before this one"
        )
