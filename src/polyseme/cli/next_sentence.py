"""`polyseme next`: does B follow A?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def next_sentence(
    model: Annotated[Path, typer.Argument(help="a model folder with a next-sentence head")],
    a: Annotated[str, typer.Argument(help="the first text")],
    b: Annotated[str, typer.Argument(help="the text that may follow it")],
) -> None:
    """Print the probability that B follows A."""
    import polyseme

    print(f"{polyseme.load(model).next_sentence(a, b):.4f}")
