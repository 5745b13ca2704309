"""`polyseme next`: next-sentence prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def next_sentence(
    model: Annotated[Path, typer.Argument(help="folder of a model with a next-sentence head")],
    a: Annotated[str, typer.Argument(help="first text")],
    b: Annotated[str, typer.Argument(help="candidate next text")],
) -> None:
    """Print the probability that B follows A."""
    import polyseme

    print(f"{polyseme.load(model).next_sentence(a, b):.4f}")
