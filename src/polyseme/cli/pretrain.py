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
    set_: Annotated[list[str], typer.Option("--set", help="path=value, e.g. optim.rate=1e-4; may be repeated")] = [],  # noqa: B006
    budget: Annotated[str, typer.Option(help="how long: 20m, 1h30m, 90s, 500steps or 1e9tokens")] = "",
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
    begin: Annotated[
        Path | None,
        typer.Option("--from", help="a model folder to begin from, of the same sizes; or word vectors for its tokens"),
    ] = None,
) -> None:
    """Pre-train a model. Ctrl-C and SIGTERM save and leave; --resume goes on exactly."""
    began = time.perf_counter()  # what is imported below takes seconds, which are the user's too
    from polyseme.cli.output import set_values
    from polyseme.errors import UserError
    from polyseme.ngram.train import NgramRecipe, count_corpus
    from polyseme.recipes import find_any
    from polyseme.train.pretrain import pretrain as run
    from polyseme.train.recipe import BudgetSpec
    from polyseme.train.warm_start import begin_from

    chosen = set_values(find_any(recipe), set_)
    if isinstance(chosen, NgramRecipe):
        if budget or resume or begin:
            raise UserError(
                f"{chosen.name} is counted in one go: --budget, --resume and --from are for what is trained"
            )
        return tell(out, count_corpus(chosen, corpus, out))
    if budget:
        chosen = chosen.replace(budget=BudgetSpec.parse(budget))
    tell(out, run(chosen, corpus, out, resume, begin_from(begin, chosen, corpus) if begin else None, began))


def tell(out: Path, results: dict[str, Any]) -> None:
    """What came of a run, said by the first rank alone."""
    from polyseme.train import distributed

    if distributed.start()[0] == 0:
        for name, value in results["valid"].items():
            print(f"valid {name}: {value:.4f}")
        parameters, tokens = results["parameters"], results["tokens"]
        print(f"{out}/model: {parameters:,} parameters, {tokens:,} tokens; see {out}/report.html")
    distributed.stop()


def recipes() -> None:
    """List the recipes with what each reproduces."""
    from polyseme.cli.output import print_table
    from polyseme.recipes import COUNTED, RECIPES

    rows = [
        (name, make().family, (make.__doc__ or "").split("\n")[0])
        for makers in (RECIPES, COUNTED)
        for name, make in makers.items()
    ]
    print_table(["recipe", "family", "what it is"], rows)
