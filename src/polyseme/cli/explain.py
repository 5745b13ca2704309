"""`polyseme explain`: a look inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    model: Annotated[Path, typer.Argument(help="a model folder that writes a target for a source")],
    text: Annotated[str, typer.Option(help="a text whose translation is explained")],
    out: Annotated[Path, typer.Option(help="the HTML page to write")],
    num_beams: Annotated[int, typer.Option(help="the width of the beam", min=1)] = 4,
    length_penalty: Annotated[float, typer.Option(help="scores are divided by length to this power")] = 1.0,
) -> None:
    """A page of one translation: alignment, the beam as a tree with scores, cross attention by layer and head."""
    import polyseme
    from polyseme.explain.translation import explain_translation
    from polyseme.io.atomic import ensure_new_file, write_text

    ensure_new_file(out)
    write_text(out, explain_translation(polyseme.load(model), text, num_beams, length_penalty))
    print(f"{out}: the translation of {text!r}")
