"""`polyseme encode`: what a model sees of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def encode(
    model: Annotated[Path, typer.Argument(help="a model folder")],
    text: Annotated[str, typer.Argument(help="a text")],
    text_pair: Annotated[str | None, typer.Argument(help="a second text, read as a pair")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print pieces, input ids, segment mask and attention mask: the padded view that other tools use."""
    from dataclasses import asdict

    import polyseme
    from polyseme.cli.output import print_json, print_table

    encoded = polyseme.load(model).encode(text, text_pair)
    if as_json:
        print_json(asdict(encoded))
        return
    rows = zip(encoded.tokens, encoded.input_ids, encoded.token_type_ids, encoded.attention_mask)
    print_table(["token", "input id", "token type id", "attention"], list(rows))
