"""`polyseme arpa`: export n-gram models to ARPA files, and import them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from polyseme.errors import UnsupportedError
from polyseme.io.lock import locks_folder

app = Typer(help="Export and import ARPA files of n-gram models.", no_args_is_help=True, rich_markup_mode=None)


@app.command("export")
def export_arpa(
    model: Annotated[Path, Argument(help="Folder of an n-gram model.")],
    out: Annotated[Path, Option(help="Output file: .arpa or .arpa.gz.")],
) -> None:
    """Export an n-gram model to an ARPA file."""
    from polyseme.io.atomic import ensure_new_file
    from polyseme.io.model_path import resolve_model
    from polyseme.ngram.arpa import write_arpa
    from polyseme.ngram.model import NgramFolder, is_ngram

    model = resolve_model(model)
    if not is_ngram(model):
        raise UnsupportedError(f"{model} is not an n-gram model, and only these can be exported to ARPA")
    ensure_new_file(out)
    folder = NgramFolder.load(model)
    write_arpa(out, folder.ngrams, folder.tokenizer)
    _print_sizes(out, folder.ngrams.sizes)


@app.command("import")
@locks_folder("arpa import")
def import_arpa(
    file: Annotated[Path, Argument(help="ARPA file, plain or compressed (.gz .xz .bz2 .zst).")],
    out: Annotated[Path, Option(help="Output model folder.")],
    tokenizer: Annotated[Path | None, Option(help="Tokenizer whose tokens the words are; default: whitespace.")] = None,
) -> None:
    """Import an ARPA file as a model folder."""
    from polyseme.io.atomic import ensure_new_directory
    from polyseme.ngram.arpa import read_arpa
    from polyseme.ngram.model import NgramFolder
    from polyseme.text.tokenizer import Tokenizer

    ensure_new_directory(out)
    ngrams, loaded_tokenizer = read_arpa(file, Tokenizer.load(tokenizer) if tokenizer else None)
    NgramFolder(out, ngrams, loaded_tokenizer).save(out, {"arpa": file.name})
    _print_sizes(out, ngrams.sizes)


def _print_sizes(out: Path, sizes: Sequence[int]) -> None:
    print(f"{out}: " + ", ".join(f"{size:,} {n}-grams" for n, size in enumerate(sizes, start=1)))
