"""`polyseme pretrain`, `recipes` and `families`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import FAMILY_NAMES, RECIPE_NAMES, complete
from polyseme.cli.output import parse_settings, print_json, print_table, print_wrapped, print_wrapped_table
from polyseme.errors import ConfigError

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
    describe: Annotated[
        str | None,
        Option(metavar="NAME", help="What this recipe costs; does it fit here?", autocompletion=complete(RECIPE_NAMES)),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the recipes and what they reproduce.

    The objectives have the names that --set objective=NAME takes. With --describe: parameters, memory, tokens and
    floating-point operations of one recipe, computed without allocating it.
    """
    import polyseme
    from polyseme.errors import ConfigError
    from polyseme.recipes import get_recipe

    if describe is not None:
        if family is not None:
            raise ConfigError(f"--family {family} has no effect with --describe: drop one of them")
        description = polyseme.describe_recipe(describe)
        if as_json:
            print_json(description.to_json())
        else:
            print_wrapped(f"{description.name}: {polyseme.list_recipes().get(describe, 'a recipe of your own')}", 2)
            print_wrapped_table(["", ""], description.to_rows())
        return
    rows = []
    for name, about in polyseme.list_recipes(family).items():
        recipe = get_recipe(name)
        objective = getattr(recipe, "objective", None)
        rows.append((name, recipe.family, "" if objective is None else type(objective).__name__, about))
    header = ["recipe", "family", "objective", "what it is"]
    if as_json:
        print_json([dict(zip(header, row)) for row in rows])
    else:
        print_wrapped_table(header, rows)


def families(
    chart: Annotated[Path | None, Option(help="Draw the sizes by the month of their publication (.svg).")] = None,
    years: Annotated[str | None, Option(help="Years of --chart, as 2017-2020; default: 2018-2019.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the families and their sizes.

    Sizes are numbers of parameters without heads.
    """
    from polyseme.families import ALL_FAMILIES
    from polyseme.families.summary import summarize_families

    if years and chart is None:
        raise ConfigError("--years has no effect without --chart")
    if chart is not None:
        _draw_releases(chart, years or "2018-2019", as_json)
        return
    if as_json:
        print_json([row._asdict() for row in summarize_families()])
        return
    rows = [(*row[:6], _describe_published(row)) for row in summarize_families()]
    print_wrapped_table(["family", "size", "layers", "dim", "heads", "parameters", "published"], rows)
    print("\nParameters are counted without heads; after a comma or ≈: what the paper prints.")
    for family in ALL_FAMILIES.values():
        print()
        print_wrapped(f"{family.name}: {family.paper}; {family.tokenizer}; {family.objective}", 2)
        for departure in family.departures:
            print_wrapped(f"  departs: {departure}", 4, 2)


def _draw_releases(chart: Path, years: str, as_json: bool) -> None:
    """Write the chart of sizes by date, and print its points."""
    from polyseme.families.releases import list_releases, release_chart
    from polyseme.io.atomic import ensure_new_file, write_text
    from polyseme.report.svg import standalone_svg

    match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?", years)
    if not match:
        raise ConfigError(f"--years {years} is not a year or two years, such as 2018-2019")
    if chart.suffix != ".svg":
        raise ConfigError(f"--chart {chart} does not end in .svg")
    releases = list_releases(int(match[1]), int(match[2] or match[1]))
    ensure_new_file(chart)
    write_text(chart, standalone_svg(release_chart(releases)))
    if as_json:
        print_json([{**release._asdict(), "month": f"{release.month:%Y-%m}"} for release in releases])
        return
    rows = [(f"{each.month:%Y-%m}", each.name, each.num_params, _mark(each.is_published)) for each in releases]
    print_table(["month", "model", "parameters", "published"], rows)
    print(chart)


def _mark(is_published: bool) -> str:
    return "yes" if is_published else ""


def _describe_published(row: "FamilySummary") -> str:
    """Say whether the number of parameters is the published one, and what the paper prints if it differs."""
    count, _, paper = row.published_params.partition(" ")
    if not count:
        return f"≈ {paper.strip('()').removeprefix('paper: ')}" if paper else ""
    is_same = "yes" if count == f"{row.num_params:,}" else count
    return f"{is_same}, {paper.strip('()').removeprefix('paper: ')}" if paper else is_same
