"""`polyseme pretrain`, `recipes` and `families`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import FAMILY_NAMES, RECIPE_NAMES, complete
from polyseme.cli.output import parse_settings, print_json, print_wrapped, print_wrapped_table

if TYPE_CHECKING:
    from polyseme.families.summary import FamilySummary
    from polyseme.report.results import PretrainResult

RECIPE_HELP = "A name from `polyseme recipes`, or a recipe.json; not needed with --resume."


def pretrain(
    out: options.RunOption,
    recipe: Annotated[str | None, Argument(help=RECIPE_HELP, autocompletion=complete(RECIPE_NAMES))] = None,
    corpus: Annotated[Path | None, Option(help="Corpus folder from `polyseme prepare`.")] = None,
    overrides: options.SetOption = [],
    budget: options.BudgetOption = "",
    seed: options.SeedOption = None,
    resume: options.ResumeOption = False,
    init_from: Annotated[Path | None, Option(help="Model of the same sizes, or word vectors, to start from.")] = None,
) -> None:
    """Pre-train a model. Ctrl-C and SIGTERM save the run and stop it; --resume continues it exactly."""
    import time

    start_time = time.perf_counter()
    from polyseme.recipes.launch import launch_pretraining
    from polyseme.report.results import PretrainResult

    settings = parse_settings(overrides, seed=seed, budget=budget)
    results = launch_pretraining(recipe, corpus, out, settings, resume, init_from, start_time)
    print_results(PretrainResult.from_results(out, results))


def print_results(run_result: "PretrainResult") -> None:
    """Print the results of a run, on the first rank only."""
    from polyseme.train import distributed

    if distributed.init_process_group()[0] == 0:
        for name, value in run_result.valid.losses.items():
            print(f"valid {name}: {value:.4f}")
        sizes = f"{run_result.num_parameters:,} parameters, {run_result.num_tokens:,} tokens"
        print(f"{run_result.model}: {sizes}; see {run_result.report}")
        for warning in run_result.warnings:
            print(f"warning: {warning}")
    distributed.shutdown()


def recipes(
    family: Annotated[
        str | None, Option(help="Only the recipes of this family.", autocompletion=complete(FAMILY_NAMES))
    ] = None,
) -> None:
    """List the recipes and what they reproduce.

    The objectives have the names that --set objective=NAME takes.
    """
    import polyseme
    from polyseme.recipes import get_recipe

    rows = []
    for name, about in polyseme.list_recipes(family).items():
        recipe = get_recipe(name)
        objective = getattr(recipe, "objective", None)
        rows.append((name, recipe.family, "" if objective is None else type(objective).__name__, about))
    print_wrapped_table(["recipe", "family", "objective", "what it is"], rows)


def families(as_json: options.JsonOption = False) -> None:
    """List the families and their sizes.

    Sizes are numbers of parameters without heads.
    """
    from polyseme.families import ALL_FAMILIES
    from polyseme.families.summary import summarize_families

    if as_json:
        print_json([row._asdict() for row in summarize_families()])
        return
    rows = [(*row[:6], _describe_published(row)) for row in summarize_families()]
    print_wrapped_table(["family", "size", "layers", "dim", "heads", "parameters", "published"], rows)
    print("\nParameters are counted without heads; after a comma: what the paper prints.")
    for family in ALL_FAMILIES.values():
        print()
        print_wrapped(f"{family.name}: {family.paper}; {family.tokenizer}; {family.objective}", 2)
        for departure in family.departures:
            print_wrapped(f"  departs: {departure}", 4, 2)


def _describe_published(row: "FamilySummary") -> str:
    """Say whether the number of parameters is the published one, and what the paper prints if it differs."""
    count, _, paper = row.published_params.partition(" ")
    is_same = "yes" if count == f"{row.num_params:,}" else count
    return f"{is_same}, {paper.strip('()').removeprefix('paper: ')}" if paper else is_same
