"""`polyseme fill`: predict masked tokens."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def fill(
    model: Annotated[Path, typer.Argument(help="model folder")],
    text: Annotated[str, typer.Argument(help="text with one or more mask tokens, such as [MASK]")],
    top_k: Annotated[int, typer.Option(help="number of predictions per mask", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Predict the masked tokens of a text, most likely first."""
    import polyseme
    from polyseme.cli.output import print_json

    predictions = polyseme.load(model).fill(text, top_k)
    if as_json:
        print_json([[asdict(candidate) for candidate in candidates] for candidates in predictions])
        return
    for number, candidates in enumerate(predictions, start=1):
        if len(predictions) > 1:
            print(f"mask {number}")
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token}")
