"""`polyseme explain`: alignment, beam, and attention of a translation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    model: Annotated[Path, typer.Argument(help="folder of a sequence-to-sequence model")],
    text: Annotated[str, typer.Option(help="text to translate and explain")],
    out: Annotated[Path, typer.Option(help="output HTML page")],
    num_beams: Annotated[int, typer.Option(help="width of the beam search", min=1)] = 4,
    length_penalty: Annotated[
        float, typer.Option(help="beam search: scores are divided by length to this power")
    ] = 1.0,
) -> None:
    """Write a page about one translation: alignment, beam search tree, cross attention by layer and head."""
    from polyseme.explain.translation import explain_translation
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import ensure_new_file, write_text

    ensure_new_file(out)
    write_text(out, explain_translation(load_neural(model), text, num_beams, length_penalty))
    print(f"{out}: the translation of {text!r}")
