"""`polyseme arpa`: models of n-grams to the format that other tools read, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseme.errors import UnsupportedError

app = typer.Typer(help="Write and read ARPA files of n-grams.", no_args_is_help=True, rich_markup_mode=None)


@app.command("export")
def export_arpa(
    model: Annotated[Path, typer.Argument(help="a model folder of n-grams")],
    out: Annotated[Path, typer.Option(help="the file to write: .arpa or .arpa.gz")],
) -> None:
    """Write a model of n-grams as an ARPA file."""
    from polyseme.io.atomic import ensure_new_file
    from polyseme.ngram.arpa import write_arpa
    from polyseme.ngram.model import NgramLM, is_ngram

    if not is_ngram(model):
        raise UnsupportedError(f"{model} is no model of n-grams, and only these are written as ARPA")
    ensure_new_file(out)
    ngram_model = NgramLM.open(model)
    write_arpa(out, ngram_model.ngrams, ngram_model.tokenizer)
    print(f"{out}: " + ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(ngram_model.ngrams.sizes, start=1)))


@app.command("import")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="an ARPA file, plain or packed (.gz .xz .bz2 .zst)")],
    out: Annotated[Path, typer.Option(help="the model folder to write")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="a folder with the tokenizer whose pieces the words are; else words by spaces")
    ] = None,
) -> None:
    """Make a model folder from an ARPA file."""
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.ngram.arpa import read_arpa
    from polyseme.ngram.model import NgramLM
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    ngrams, loaded_tokenizer = read_arpa(file, Tokenizer.load(tokenizer) if tokenizer else None)
    NgramLM(out, ngrams, loaded_tokenizer).save(out, {"arpa": file.name})
    print(f"{out}: " + ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(ngrams.sizes, start=1)))
