"""From the arguments of `pretrain` to a run: the recipe with its overrides, or that of the run to resume."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyseme.config import Config, override_config
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError, DataError
from polyseme.ngram.train import NgramRecipe, train_ngram
from polyseme.objectives.distillation import Distillation
from polyseme.recipes import NGRAM_RECIPES, RECIPES, best, find_named_recipe, get_recipe
from polyseme.train import distributed
from polyseme.train.pretrain import pretrain
from polyseme.train.recipe import BudgetConfig, Recipe
from polyseme.train.run_folder import read_run_record
from polyseme.train.warm_start import init_from_model

NGRAM_PROBLEM = "{} counts n-grams in one pass: budget, resume and init_from do not apply"


@dataclass(frozen=True)
class RunArguments:
    """What identifies a run: its recipe, its corpus, and the model it starts from."""

    recipe: Recipe | NgramRecipe
    corpus: Path
    init_from: Path | None = None
    derived_recipe: Recipe | None = None  # before the overrides, of a new run of the recipe `best`


def launch_pretraining(
    recipe: Any,
    corpus: Path | None,
    out: Path,
    overrides: Mapping[str, Any],
    resume: bool = False,
    init_from: Path | None = None,
    start_time: float | None = None,
) -> dict[str, Any]:
    """Resolve the arguments of a run, run it, and return its results."""
    run = resolve_arguments(recipe, corpus, out, overrides, resume, init_from)
    if isinstance(run.recipe, NgramRecipe):
        if resume or init_from:
            raise ConfigError(NGRAM_PROBLEM.format(run.recipe.name))
        return train_ngram(run.recipe, run.corpus, out)
    if resume and recipe is None and isinstance(run.recipe.objective, Distillation) and run.recipe.objective.teacher:
        raise ConfigError(f"{out} is a distillation of {run.recipe.objective.teacher}: resume it as one, by `distill`")
    initial_model = init_from_model(run.init_from, run.recipe, run.corpus) if run.init_from else None
    named_recipe = run.derived_recipe or find_named_recipe(run.recipe.name)
    return pretrain(run.recipe, run.corpus, out, resume, initial_model, start_time, named_recipe=named_recipe)


def resolve_arguments(
    recipe: Any,
    corpus: Path | None,
    out: Path,
    overrides: Mapping[str, Any],
    resume: bool = False,
    init_from: Path | None = None,
) -> RunArguments:
    """Return the recipe with its overrides, the corpus, and the initial model of a new run or of one to resume.

    What is not passed is that of the run in `out`. The name of its recipe stands for its saved recipe, which includes
    the overrides; a recipe passed in another form has to be equal, except for a longer budget.
    """
    record = read_run_record(out) if resume and (out / "recipe.json").is_file() else None
    if recipe is None and record is None:
        problem = f"there is no run to resume in {out}" if resume else "the recipe is missing"
        raise ConfigError(f"{problem}: pass the name of a recipe, such as bert-tiny, or a recipe.json")
    if record is None:
        if corpus is None:
            raise ConfigError("`corpus` is missing: pass the folder of a prepared corpus")
        if recipe == best.NAME:
            derived_recipe = _derive_best(corpus, overrides)
            return RunArguments(_override(derived_recipe, overrides), corpus, init_from, derived_recipe)
        base = recipe if isinstance(recipe, Config) else get_recipe(str(recipe))
        return RunArguments(_override(base, overrides), corpus, init_from)
    base = _saved_recipe(record, recipe, out)
    _check_budget(base, record, overrides, out)
    if corpus is None:
        corpus = Path(record["corpus"])
        if not corpus.is_dir():
            raise DataError(f"there is no corpus at {corpus}, where the run in {out} was started: pass its `corpus`")
    if init_from is None and "initialized_from" in record:
        init_from = Path(record["initialized_from"])
    return RunArguments(_override(base, overrides), corpus, init_from)


def _derive_best(corpus: Path, overrides: Mapping[str, Any]) -> Recipe:
    """Return the recipe `best` for a corpus, this device and the budget among the overrides."""
    budget = _override(best.best().replace(budget=BudgetConfig()), overrides).budget
    _, num_ranks = distributed.init_process_group()
    with distributed.share_failure():
        device = distributed.on_rank_zero(lambda: best.ComputeDevice.detect(num_ranks))
        return best.derive_recipe(budget, Corpus.open(corpus).num_tokens, device)


def _saved_recipe(record: dict[str, Any], recipe: Any, out: Path) -> Any:
    """Return the recipe of a run to resume, unless another is passed that is more than its name."""
    saved = record["recipe"]
    if isinstance(recipe, Config):
        return recipe
    if recipe is not None and str(recipe) not in (*RECIPES, *NGRAM_RECIPES):
        return get_recipe(str(recipe))
    if recipe is not None and recipe != saved.get("name"):
        raise ConfigError(f"{out} was started with the recipe {saved.get('name')!r}, not {recipe!r}")
    return (NgramRecipe if saved.get("kind") == NgramRecipe.__name__ else Recipe).from_json(saved)


def _check_budget(recipe: Any, record: dict[str, Any], overrides: Mapping[str, Any], out: Path) -> None:
    """Raise if the recipe has another budget than the run to resume, unless a budget is passed, which extends it."""
    is_passed = any(path.partition(".")[0] == "budget" for path in overrides)
    if isinstance(recipe, Recipe) and not is_passed and isinstance(record["recipe"].get("budget"), dict):
        saved_budget = BudgetConfig.from_json(record["recipe"]["budget"], "budget")
        if recipe.budget != saved_budget:
            difference = f"budget was {saved_budget}, now {recipe.budget}"
            raise ConfigError(
                f"{out} was started with another recipe: {difference}; pass a larger `budget` to extend it"
            )


def _override(recipe: Any, overrides: Mapping[str, Any]) -> Any:
    """Return the recipe with its overrides; two that set its budget are an error."""
    if isinstance(recipe, NgramRecipe) and any(path.partition(".")[0] == "budget" for path in overrides):
        raise ConfigError(NGRAM_PROBLEM.format(recipe.name))
    overrides = {recipe.expand_path(path): value for path, value in overrides.items()}
    budgets = [(path, value) for path, value in _flatten(overrides) if path.partition(".")[0] == "budget" and value]
    if len(budgets) > 1:
        settings = " and ".join(f"{path}={value}" for path, value in budgets)
        raise ConfigError(f"{settings} both set the length of the run: pass one of them")
    return override_config(recipe, overrides)


def _flatten(overrides: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            pairs += _flatten(value, f"{prefix}{name}.")
        else:
            is_empty = isinstance(value, BudgetConfig) and value == BudgetConfig()
            pairs.append((f"{prefix}{name}", None if is_empty else value))
    return pairs
