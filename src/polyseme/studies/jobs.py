"""The jobs of a study: prepare, calibrate, search a learning rate, train a seed of an arm, and measure it."""

import contextlib
import datetime
import gc
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from polyseme.corpus.store import Corpus
from polyseme.errors import ModelError
from polyseme.io.hashes import HASHES_FILE
from polyseme.io.json import read_json_object, write_json
from polyseme.ngram.train import NgramRecipe, train_ngram
from polyseme.nn.model import build_meta
from polyseme.studies.arms import AnyRecipe, resolve_recipe, scale_run, trains_on_cpu
from polyseme.studies.base import Arm
from polyseme.studies.calibration import calibrate, device_name
from polyseme.studies.corpora import arm_corpus, prepare_corpus
from polyseme.studies.measurement import ArmModel, measure_arm, validation_loss
from polyseme.studies.metrics import METRICS
from polyseme.studies.plan import SEARCH_SEED, StudyPlan
from polyseme.train.monitoring.diagnostics import measure_unigram_loss
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.weights.folder import read_model_config

VOID_RATIO = 0.95  # of the unigram loss, above which a model has learned little more than word frequencies
MAX_EXTRA_RATES = 5  # beyond those of the study
JobKind = Literal["prepare", "calibrate", "search", "pretrain", "measure"]


@dataclass(frozen=True)
class Job:
    """A part of a study that runs on its own.

    `prepare` prepares the corpus of an arm, which others may share. `measure` measures one metric of a row, or with an
    empty `metric` all that need no fine-tuning.
    """

    kind: JobKind
    arm: str
    seed: int = 0
    metric: str = ""

    def __str__(self) -> str:
        if self.kind in ("prepare", "calibrate", "search"):
            return f"{self.arm}: {self.kind}"
        return f"{self.arm}: seed {self.seed}" + (f", {self.metric}" if self.metric else "")


def run_job(plan: StudyPlan, job: Job) -> None:
    """Run a job in this process."""
    arm = plan.study.find_arm(job.arm)
    if job.kind == "prepare":
        prepare_corpus(plan, arm)
    elif job.kind == "calibrate":
        calibrate_arm(plan, arm)
    elif job.kind == "search":
        search_rate(plan, arm)
    elif job.kind == "pretrain":
        pretrain_arm(plan, arm, job.seed)
    else:
        measure_row(plan, arm, job.seed, metrics_of(plan, job))


def measurements(plan: StudyPlan, arm: Arm, seed: int) -> list[Job]:
    """Return the jobs that measure what is missing in the row of an arm: one for each task, one for all else."""
    if plan.is_done(arm, seed):
        return []
    jobs = [Job("measure", arm.name, seed, name if needs_finetuning(arm, name) else "") for name in plan.study.metrics]
    known = plan.read_partial_row(arm, seed).get("metrics", ())
    return [job for job in dict.fromkeys(jobs) if not set(metrics_of(plan, job)) <= set(known)]


def metrics_of(plan: StudyPlan, job: Job) -> list[str]:
    """Return the metrics that a job measures."""
    arm = plan.study.find_arm(job.arm)
    return [job.metric] if job.metric else [name for name in plan.study.metrics if not needs_finetuning(arm, name)]


def needs_finetuning(arm: Arm, metric: str) -> bool:
    """Return whether an arm is trained on a task for a metric."""
    return METRICS[metric].kind == "task" and arm.transfer != "none"


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
            if not results["valid"]:
                rate["error"] = "no documents are held out that show its loss: hold out more (`valid_fraction`)"
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


def remove_searches(plan: StudyPlan) -> None:
    """Remove the runs of finished searches, which stay if the study is killed while it removes one."""
    for arm in plan.study.arms:
        if "lr" in plan.read_arm_file(arm, "lr.json"):
            for folder in plan.arm_folder(arm).glob("search-*"):
                shutil.rmtree(folder, ignore_errors=True)


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


def is_trained(plan: StudyPlan, arm: Arm, seed: int) -> bool:
    """Return whether the model of a seed is there."""
    folder = plan.run_folder(arm, seed)
    is_counted = isinstance(resolve_recipe(arm, plan.options.overrides, plan.corpus), NgramRecipe)
    return (folder / "results.json").is_file() and (is_counted or (folder / HASHES_FILE).is_file())


def pretrain_arm(plan: StudyPlan, arm: Arm, seed: int) -> dict[str, Any]:
    """Train the model of a seed."""
    return run_pretraining(final_recipe(plan, arm, seed), arm_corpus(plan, arm), plan.run_folder(arm, seed))


def measure_row(plan: StudyPlan, arm: Arm, seed: int, names: Sequence[str]) -> None:
    """Measure an arm by those metrics that its row does not have yet; the model is trained unless it is."""
    trained = plan.trained_arm(arm)
    recipe, results = final_recipe(plan, trained, seed), pretrain_arm(plan, trained, seed)
    folder = plan.run_folder(trained, seed) / "model"
    gc.collect()
    torch.cuda.empty_cache()
    model = ArmModel(plan, arm, seed, folder, results, recipe.max_len if isinstance(recipe, Recipe) else 0)
    row = {"arm": arm.name, "seed": seed} | describe_training(plan, trained, recipe, results, folder)
    measure_arm(model, names, row)


def finish_rows(plan: StudyPlan, arm: Arm, seed: int) -> None:
    """Write the rows of a seed whose metrics are all measured, for every arm that uses its model; delete the model."""
    for each in plan.evaluated_arms(arm):
        row = plan.read_partial_row(each, seed)
        metrics = row.get("metrics", {})
        if set(plan.study.metrics) <= set(metrics):
            row["metrics"] = {name: metrics[name] for name in plan.study.metrics if metrics[name]}
            del row["is_unfinished"]
            write_json(plan.row_path(each, seed), row)
            plan.partial_row_path(each, seed).unlink()
    folder = plan.run_folder(arm, seed)
    if all(plan.is_done(each, seed) for each in plan.evaluated_arms(arm)):
        shutil.rmtree(folder / "checkpoints" if plan.options.keep_models else folder, ignore_errors=True)


def repeats_first_seed(plan: StudyPlan, arm: Arm, seed: int) -> bool:
    """Return whether a row is that of the first seed again: counts of n-grams have no seed."""
    is_counted = isinstance(resolve_recipe(arm, plan.options.overrides, plan.corpus), NgramRecipe)
    return is_counted and seed != plan.seeds[0]


def copy_rows(plan: StudyPlan, arm: Arm, seed: int) -> None:
    """Write the rows on the model of an arm, and the values of their examples, as those of the first seed."""
    first = plan.seeds[0]
    for each in plan.evaluated_arms(arm):
        if plan.is_done(each, seed) or not plan.is_done(each, first):
            continue
        row, folder = read_json_object(plan.row_path(each, first)) | {"seed": seed}, plan.arm_folder(each)
        for metric in row["metrics"].values():
            if "items" in metric:
                name = metric["items"].replace(f"seed-{first}.", f"seed-{seed}.", 1)
                shutil.copyfile(folder / metric["items"], folder / name)
                metric["items"] = name
        write_json(plan.row_path(each, seed), row)


def describe_training(
    plan: StudyPlan, arm: Arm, recipe: AnyRecipe, results: dict[str, Any], model: Path
) -> dict[str, Any]:
    """Return what a row says about the training of its model."""
    corpus = Corpus.open(arm_corpus(plan, arm))
    unigram_loss = measure_unigram_loss(corpus)
    return {
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
