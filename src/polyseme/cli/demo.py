"""`polyseme demo`: the whole way, on text that is already here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="the folder to write")] = Path("runs/demo"),
    minutes: Annotated[float, typer.Option(help="how long to pre-train", min=0.01)] = 4.0,
    seeds: Annotated[int, typer.Option(help="how many fine-tuning runs for each row", min=1)] = 3,
) -> None:
    """Pre-train a small BERT on Python's own documentation, fine-tune it, and write a report; under six minutes."""
    import shutil

    from polyseme.errors import ConfigError
    from polyseme.io.atomic import is_occupied
    from polyseme.pipelines.demo import MARKER_FILE, run_demo

    if is_occupied(out):
        if not (out / MARKER_FILE).is_file():
            raise ConfigError(f"{out} holds something that is not a demo: choose another --out")
        shutil.rmtree(out)
    print(f"see {run_demo(out, minutes, seeds)}")
