"""`polyseme pretrain` and `polyseme recipes`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer


def pretrain(
    recipe: Annotated[str, typer.Argument(help="a name from `polyseme recipes`, or a recipe.json")],
    corpus: Annotated[Path, typer.Option(help="a corpus folder made by `polyseme prepare`")],
    out: Annotated[Path, typer.Option(help="the run folder to write, or to go on with")],
    overrides: Annotated[
        list[str], typer.Option("--set", help="path=value, e.g. optimizer.lr=1e-4; may be repeated")
    ] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="how long: 20m, 1h30m, 90s, 500steps or 1e9tokens")] = "",
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(
            "--init-from", help="a model folder to begin from, of the same sizes; or word vectors for its tokens"
        ),
    ] = None,
) -> None:
    """Pre-train a model. Ctrl-C and SIGTERM save and leave; --resume goes on exactly."""
    start_time = time.perf_counter()  # what is imported below takes seconds, which are the user's too
    from polyseme.cli.output import apply_overrides
    from polyseme.errors import ConfigError
    from polyseme.ngram.train import NgramRecipe, train_ngram
    from polyseme.recipes import get_recipe
    from polyseme.train.pretrain import pretrain as run
    from polyseme.train.recipe import BudgetConfig
    from polyseme.train.warm_start import init_from_model

    resolved_recipe = apply_overrides(get_recipe(recipe), overrides)
    if isinstance(resolved_recipe, NgramRecipe):
        if budget or resume or init_from:
            flags = "--budget, --resume and --init-from"
            raise ConfigError(f"{resolved_recipe.name} is counted in one go: {flags} are for what is trained")
        return print_results(out, train_ngram(resolved_recipe, corpus, out))
    if budget:
        resolved_recipe = resolved_recipe.replace(budget=BudgetConfig.parse(budget))
    print_results(
        out,
        run(
            resolved_recipe,
            corpus,
            out,
            resume,
            init_from_model(init_from, resolved_recipe, corpus) if init_from else None,
            start_time,
        ),
    )


def print_results(out: Path, results: dict[str, Any]) -> None:
    """What came of a run, said by the first rank alone."""
    from polyseme.train import distributed

    if distributed.init_process_group()[0] == 0:
        for name, value in results["valid"].items():
            print(f"valid {name}: {value:.4f}")
        parameters, tokens = results["parameters"], results["tokens"]
        print(f"{out}/model: {parameters:,} parameters, {tokens:,} tokens; see {out}/report.html")
    distributed.shutdown()


def recipes() -> None:
    """List the recipes with what each reproduces."""
    from polyseme.cli.output import print_table
    from polyseme.recipes import NGRAM_RECIPES, RECIPES

    rows = [
        (name, make_recipe().family, (make_recipe.__doc__ or "").split("\n")[0])
        for recipe_tables in (RECIPES, NGRAM_RECIPES)
        for name, make_recipe in recipe_tables.items()
    ]
    print_table(["recipe", "family", "what it is"], rows)
