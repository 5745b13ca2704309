"""`polyseme arpa`: export n-gram models to ARPA files, and import them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseme.errors import UnsupportedError

app = typer.Typer(help="Export and import ARPA files of n-gram models.", no_args_is_help=True, rich_markup_mode=None)


@app.command("export")
def export_arpa(
    model: Annotated[Path, typer.Argument(help="model folder of an n-gram model")],
    out: Annotated[Path, typer.Option(help="output file: .arpa or .arpa.gz")],
) -> None:
    """Export an n-gram model to an ARPA file."""
    from polyseme.io.atomic import ensure_new_file
    from polyseme.ngram.arpa import write_arpa
    from polyseme.ngram.model import NgramFolder, is_ngram

    if not is_ngram(model):
        raise UnsupportedError(f"{model} is not an n-gram model, and only these can be exported to ARPA")
    ensure_new_file(out)
    ngram_model = NgramFolder.load(model)
    write_arpa(out, ngram_model.ngrams, ngram_model.tokenizer)
    print(f"{out}: " + ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(ngram_model.ngrams.sizes, start=1)))


@app.command("import")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="ARPA file, plain or compressed (.gz .xz .bz2 .zst)")],
    out: Annotated[Path, typer.Option(help="output model folder")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="folder of the tokenizer whose tokens the words are; default: whitespace")
    ] = None,
) -> None:
    """Import an ARPA file as a model folder."""
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.ngram.arpa import read_arpa
    from polyseme.ngram.model import NgramFolder
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    ngrams, loaded_tokenizer = read_arpa(file, Tokenizer.load(tokenizer) if tokenizer else None)
    NgramFolder(out, ngrams, loaded_tokenizer).save(out, {"arpa": file.name})
    print(f"{out}: " + ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(ngrams.sizes, start=1)))
