"""`polyseme gradients`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_table, read_texts
from polyseme.errors import ConfigError

DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def gradients(
    models: Annotated[list[Path], Argument(help="Folders of causal language models.")],
    data: options.TextsOption,
    out: Annotated[Path, Option(help="Output .svg file.")],
    max_distance: Annotated[int, Option(help="Maximum distance in tokens.")] = 50,
) -> None:
    """Plot the gradient norm of a prediction by distance.

    One line per model shows the vanishing gradients of RNNs.
    """
    from polyseme.explain.gradients import gradients_by_distance, plot_gradients
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import write_text

    if out.suffix != ".svg":
        raise ConfigError(f"--out {out} does not end in .svg")
    texts = read_texts(data)
    curves = {}
    for folder in models:
        language_model = load_neural(folder)
        config = language_model.model.config
        name = " ".join(part for part in (config.family, getattr(config.trunk, "cell", "")) if part)
        label = name if name not in curves else f"{name} ({folder})"
        curves[label] = gradients_by_distance(language_model, texts, max_distance)
    write_text(out, plot_gradients(curves))
    distances = [distance for distance in DISTANCES if distance <= max_distance]
    print_table(["model", *map(str, distances)], [[n, *(f"{c[d]:.2e}" for d in distances)] for n, c in curves.items()])
    print(f"{out}: gradient norm by distance, {len(curves)} models")
