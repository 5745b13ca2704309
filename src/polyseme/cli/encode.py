"""`polyseme encode`: tokens and ids of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def encode(
    model: Annotated[Path, typer.Argument(help="model folder")],
    text: Annotated[str, typer.Argument(help="text to encode")],
    text_pair: Annotated[str | None, typer.Argument(help="second text of a pair")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print tokens, input ids, token type ids and attention mask, as other tools show them."""
    from dataclasses import asdict

    import polyseme
    from polyseme.cli.output import print_json, print_table

    encoded = polyseme.load(model).encode(text, text_pair)
    if as_json:
        print_json(asdict(encoded))
        return
    rows = zip(encoded.tokens, encoded.input_ids, encoded.token_type_ids, encoded.attention_mask)
    print_table(["token", "input id", "token type id", "attention"], list(rows))
