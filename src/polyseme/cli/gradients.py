"""`polyseme gradients`: from how far back do models learn?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gradients(
    models: Annotated[list[Path], typer.Argument(help="model folders that predict what comes next")],
    data: Annotated[Path, typer.Option(help="a text file, one text a line")],
    out: Annotated[Path, typer.Option(help="the .svg file to write")],
    max_distance: Annotated[int, typer.Option(help="how many tokens back to look")] = 50,
) -> None:
    """Draw the norm of a prediction's gradient by distance, a line for each model: the vanishing gradient of RNNs."""
    import polyseme
    from polyseme.cli.output import print_table, read_texts
    from polyseme.errors import ConfigError, UnsupportedError
    from polyseme.explain.gradients import gradients_by_distance, plot_gradients
    from polyseme.io.atomic import atomic_write

    if out.suffix != ".svg":
        raise ConfigError(f"--out {out} does not end in .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError('a picture needs matplotlib: pip install "polyseme[report]"') from None
    texts = read_texts(data)
    curves = {}
    for folder in models:
        language_model = polyseme.load(folder)
        config = language_model.model.config
        name = " ".join(part for part in (config.family, getattr(config.trunk, "cell", "")) if part)
        label = name if name not in curves else f"{name} ({folder})"
        curves[label] = gradients_by_distance(language_model, texts, max_distance)
    atomic_write(out, lambda path: plot_gradients(curves, path))
    offsets = [offset for offset in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500) if offset <= max_distance]
    print_table(["model", *map(str, offsets)], [[n, *(f"{c[p]:.2e}" for p in offsets)] for n, c in curves.items()])
    print(f"{out}: norm of the gradient by distance, {len(curves)} models")
