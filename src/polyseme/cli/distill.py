"""`polyseme distil`: a smaller model, taught by a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def distil(
    teacher: Annotated[Path, typer.Argument(help="the model folder of the teacher")],
    corpus: Annotated[Path, typer.Option(help="a corpus folder made with the teacher's tokenizer")],
    out: Annotated[Path, typer.Option(help="the run folder to write, or to go on with")],
    recipe: Annotated[
        str, typer.Option(help="a name from `polyseme recipes`, or a recipe.json; default: half the teacher's layers")
    ] = "",
    set_: Annotated[list[str], typer.Option("--set", help="path=value, e.g. objective.temperature=1")] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="how long: 20m, 1h30m, 90s, 500steps or 1e9tokens")] = "",
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
) -> None:
    """Teach a smaller model what a larger one guesses. Ctrl-C and SIGTERM save and leave; --resume goes on exactly."""
    from polyseme.cli.output import set_values
    from polyseme.cli.pretrain import tell
    from polyseme.compress.distill import distil as run
    from polyseme.compress.distill import student_of, taught
    from polyseme.errors import UserError
    from polyseme.recipes import find_recipe
    from polyseme.train.recipe import BudgetSpec
    from polyseme.weights.folder import read_spec

    if not teacher.is_dir():
        raise UserError(f"there is no model folder at {teacher}")
    chosen = find_recipe(recipe) if recipe else student_of(read_spec(teacher)[0], find_recipe("distilbert-tiny"))
    chosen = set_values(taught(chosen), set_)
    if budget:
        chosen = chosen.replace(budget=BudgetSpec.parse(budget))
    tell(out, run(chosen, teacher, corpus, out, resume))
