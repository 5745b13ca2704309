"""`polyseme score`: how likely is a text?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def score(
    model: Annotated[Path, typer.Argument(help="a model folder with a language-model head")],
    data: Annotated[Path, typer.Option(help="a text file, one text a line")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Log-probability and perplexity of each line; pseudo-perplexity for a masked model."""
    import json

    import polyseme
    from polyseme.cli.output import read_texts

    opened = polyseme.load(model)
    lines = read_texts(data)
    found = opened.score(lines)
    for line, s in zip(lines, found):
        if as_json:
            row = {
                "log_probability": s.log_probability,
                "tokens": s.tokens,
                "perplexity": s.perplexity,
                "text": line,
            }
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(f"{s.log_probability:12.4f}  {s.tokens:5d} tokens  {s.perplexity:12.4f}  {line}")
    total, tokens = sum(s.log_probability for s in found), sum(s.tokens for s in found)
    if not as_json:
        print(f"{total:12.4f}  {tokens:5d} tokens  {math.exp(-total / max(tokens, 1)):12.4f}  (all)")
