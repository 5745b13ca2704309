"""`polyseme distill`: a smaller model, taught by a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def distill(
    teacher: Annotated[Path, typer.Argument(help="the model folder of the teacher")],
    corpus: Annotated[Path, typer.Option(help="a corpus folder made with the teacher's tokenizer")],
    out: Annotated[Path, typer.Option(help="the run folder to write, or to go on with")],
    recipe: Annotated[
        str, typer.Option(help="a name from `polyseme recipes`, or a recipe.json; default: half the teacher's layers")
    ] = "",
    overrides: Annotated[list[str], typer.Option("--set", help="path=value, e.g. objective.temperature=1")] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="how long: 20m, 1h30m, 90s, 500steps or 1e9tokens")] = "",
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
) -> None:
    """Teach a smaller model what a larger one guesses. Ctrl-C and SIGTERM save and leave; --resume goes on exactly."""
    from polyseme.cli.output import apply_overrides
    from polyseme.cli.pretrain import print_results
    from polyseme.compress.distill import derive_recipe, with_distillation
    from polyseme.compress.distill import distill as run
    from polyseme.recipes import get_training_recipe
    from polyseme.train.recipe import BudgetConfig

    resolved_recipe = get_training_recipe(recipe) if recipe else derive_recipe(teacher)
    resolved_recipe = apply_overrides(with_distillation(resolved_recipe, teacher), overrides)
    if budget:
        resolved_recipe = resolved_recipe.replace(budget=BudgetConfig.parse(budget))
    print_results(out, run(resolved_recipe, teacher, corpus, out, resume))
