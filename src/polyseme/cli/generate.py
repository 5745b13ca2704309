"""`polyseme generate`: let a model write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    model: Annotated[Path, typer.Argument(help="a model folder that can write")],
    prompt: Annotated[str | None, typer.Option(help="what to go on with; for T5 and its like, the source")] = None,
    data: Annotated[Path | None, typer.Option(help="prompts, one a line")] = None,
    most: Annotated[int, typer.Option(help="how many tokens at most", min=1)] = 100,
    sample: Annotated[bool, typer.Option("--sample", help="draw tokens; else the likeliest is taken")] = False,
    temperature: Annotated[float | None, typer.Option(help="below 1 what is likely gets likelier")] = None,
    top_k: Annotated[int | None, typer.Option(help="draw from the k likeliest")] = None,
    top_p: Annotated[float | None, typer.Option(help="draw from the likeliest that have this share")] = None,
    repetition: Annotated[float, typer.Option(help="above 1: what was said is less likely to be said again")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    copies: Annotated[int, typer.Option(help="how many texts to draw", min=1)] = 1,
    beams: Annotated[int, typer.Option(help="the width of a beam search; 0 is none", min=0)] = 0,
    penalty: Annotated[float, typer.Option(help="scores of a beam are divided by length to this power")] = 1.0,
    best: Annotated[int, typer.Option(help="how many texts of the beam to show", min=1)] = 1,
    prefix: Annotated[str, typer.Option(help="how the text that is written has to begin")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a text")] = False,
) -> None:
    """Go on with a text, token by token; a single text is shown while it is written."""
    import json

    import polyseme
    from polyseme.cli.output import read_texts
    from polyseme.errors import UserError
    from polyseme.generation.sample import Sampling
    from polyseme.generation.text import Search

    if (prompt is None) == (data is None):
        raise UserError("give --prompt with a text to go on with, or --data with one a line")
    draws = sample or any(value is not None for value in (temperature, top_k, top_p)) or copies > 1
    share = 1.0 if top_p is None else top_p
    warmth = (1.0 if draws else 0.0) if temperature is None else temperature
    search = Search(most, Sampling(warmth, top_k or 0, share, repetition, seed), copies, beams, penalty, best)
    opened = polyseme.load(model)
    if prompt is not None and not (as_json or beams or copies > 1):
        pieces = opened.stream(prompt, search, prefix)
        first = next(pieces, "")  # what cannot be done is said before anything is shown
        print((prefix if opened.sourced else prompt + prefix) + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return
    prompts = [prompt] if prompt is not None else read_texts(data or Path())
    for text, found in zip(prompts, opened.generate(prompts, search, prefix)):
        for each in found:
            if as_json:
                row = {"prompt": text, "text": prefix + each.text, "log_probability": each.score,
                       "tokens": len(each.tokens), "finished": each.finished}  # fmt: skip
                print(json.dumps(row, ensure_ascii=False))
            else:
                shown = prefix + each.text if opened.sourced else text + prefix + each.text
                print(f"{each.score:10.4f}  {shown}" if beams else shown)
