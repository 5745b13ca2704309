"""`polyseme pairs`: parallel text to a corpus of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pairs(
    source: Annotated[
        list[str],
        typer.Argument(help="two files of lines, or .tsv, .jsonl, .po, .mo; plain or packed; or gettext::lang=de"),
    ],
    tokenizer: Annotated[Path, typer.Option(help="the tokenizer of both sides, or of the source side")],
    out: Annotated[Path, typer.Option(help="the corpus folder to write")],
    target_tokenizer: Annotated[Path | None, typer.Option(help="the tokenizer of the target side, if another")] = None,
    keys: Annotated[str, typer.Option(help="the columns or keys of the two sides, as en+de")] = "",
    max_tokens: Annotated[int, typer.Option(help="pairs with a side of more tokens are left out", min=1)] = 250,
    max_length_ratio: Annotated[
        float, typer.Option(help="pairs of which one side is so many times the other; 0 is none")
    ] = 0.0,
) -> None:
    """Turn parallel text into a corpus of pairs, for translation: `polyseme pretrain transformer-tiny`."""
    from polyseme.corpus.build.parallel import prepare_parallel
    from polyseme.errors import ConfigError
    from polyseme.text.tokenizer import Tokenizer

    side_keys = tuple(keys.split("+")) if keys else None
    if side_keys is not None and len(side_keys) != 2:
        raise ConfigError(f"--keys {keys!r} does not name two sides, as en+de does")
    target = Tokenizer.load(target_tokenizer) if target_tokenizer else None
    manifest = prepare_parallel(source, Tokenizer.load(tokenizer), out, target, side_keys, max_tokens, max_length_ratio)
    counts, removed = manifest["counts"], manifest["removed"]
    print(f"{out}: {counts['documents']:,} pairs, {counts['tokens']:,} tokens")
    reason_texts = {
        "empty": "with an empty side",
        "too_long": f"of more than {max_tokens} tokens",
        "length_ratio": "of uneven length",
        "duplicate": "that were there already",
    }
    for reason, count in removed["pairs"].items():
        print(f"{count:,} pairs {reason_texts[reason]} were left out, such as {removed['examples'][reason]}")
