"""`polyseme gradients`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_table, read_texts
from polyseme.errors import ConfigError


def gradients(
    models: Annotated[list[Path], Argument(help="Folders of causal or masked language models.")],
    data: options.TextsOption,
    out: Annotated[Path, Option(help="Output figure (.svg), or page (.html) with its numbers (.json) next to it.")],
    max_distance: Annotated[int, Option(help="Maximum distance in tokens.")] = 50,
) -> None:
    """Plot the gradient norm of a prediction by distance.

    One line per model shows the vanishing gradients of RNNs; a masked model has one line for each side.
    """
    from polyseme.explain.explanation import check_page_path
    from polyseme.explain.gradients import explain_gradients
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import ensure_new_file, write_text
    from polyseme.report.svg import standalone_svg

    if out.suffix not in (".svg", ".html"):
        raise ConfigError(f"--out {out} does not end in .svg or .html")
    if out.suffix == ".html":
        check_page_path(out)
    else:
        ensure_new_file(out)
    texts = read_texts(data)
    explanation = explain_gradients((load_neural(folder) for folder in models), texts, max_distance=max_distance)
    if out.suffix == ".html":
        explanation.save(out)
    else:
        write_text(out, standalone_svg(explanation.figures["gradients"]))
    for header, rows in explanation.tables:
        print_table(header, rows)
    print(f"{out}: gradient norm by distance, {len(models)} models")
