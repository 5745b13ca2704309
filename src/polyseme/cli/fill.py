"""`polyseme fill`: what stands behind a mask."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def fill(
    model: Annotated[Path, typer.Argument(help="a model folder")],
    text: Annotated[str, typer.Argument(help="a text with one or several [MASK]")],
    top: Annotated[int, typer.Option(help="how many guesses for each mask", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Fill in the masks of a text, best guesses first."""
    import polyseme
    from polyseme.cli.output import print_json

    found = polyseme.load(model).fill(text, top)
    if as_json:
        print_json([[asdict(guess) for guess in guesses] for guesses in found])
        return
    for number, guesses in enumerate(found, start=1):
        if len(found) > 1:
            print(f"mask {number}")
        for guess in guesses:
            print(f"{guess.probability:7.2%}  {guess.piece}")
