"""`polyseme pretrain` and `polyseme recipes`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyseme.report.results import PretrainResult


def pretrain(
    recipe: Annotated[str, typer.Argument(help="a name from `polyseme recipes`, or a recipe.json")],
    corpus: Annotated[Path, typer.Option(help="a corpus folder made by `polyseme prepare`")],
    out: Annotated[Path, typer.Option(help="run folder to write, or to resume")],
    overrides: Annotated[
        list[str], typer.Option("--set", help="path=value, e.g. optimizer.lr=1e-4; may be repeated")
    ] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="training budget: 20m, 1h30m, 90s, 500steps or 1e9tokens")] = "",
    resume: Annotated[bool, typer.Option(help="resume the run in --out")] = False,
    init_from: Annotated[
        Path | None,
        typer.Option("--init-from", help="start from this model of the same sizes, or from word vectors"),
    ] = None,
) -> None:
    """Pre-train a model. Ctrl-C and SIGTERM save the run and stop it; --resume continues it exactly."""
    import polyseme
    from polyseme.cli.output import apply_overrides
    from polyseme.recipes import get_recipe

    chosen = apply_overrides(get_recipe(recipe), overrides)
    print_results(polyseme.pretrain(chosen, corpus, out, budget=budget, resume=resume, init_from=init_from))


def print_results(result: PretrainResult) -> None:
    """Print the results of a run, on the first rank only."""
    from polyseme.train import distributed

    if distributed.init_process_group()[0] == 0:
        for name, value in result.valid.losses.items():
            print(f"valid {name}: {value:.4f}")
        sizes = f"{result.num_parameters:,} parameters, {result.num_tokens:,} tokens"
        print(f"{result.model}: {sizes}; see {result.report}")
    distributed.shutdown()


def recipes(family: Annotated[str | None, typer.Option(help="only the recipes of this family")] = None) -> None:
    """List the recipes, with what each reproduces."""
    import polyseme
    from polyseme.cli.output import print_table
    from polyseme.recipes import get_recipe

    rows = [(name, get_recipe(name).family, about) for name, about in polyseme.list_recipes(family).items()]
    print_table(["recipe", "family", "what it is"], rows)
