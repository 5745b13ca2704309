"""`polyseme tokenizer train`: learn a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Learn a vocabulary from text.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Learn a vocabulary from text."""


@app.command()
def train(
    source: Annotated[list[str], typer.Argument(help="text files, folders, .jsonl; plain, .gz or .xz; or python-docs")],
    out: Annotated[Path, typer.Option(help="the folder to write")],
    vocab_size: Annotated[int, typer.Option(help="how many pieces at most")],
    kind: Annotated[str, typer.Option(help="wordpiece (as BERT) or bpe (byte-level, as GPT-2)")] = "wordpiece",
    lowercase: Annotated[bool | None, typer.Option(help="default: on for wordpiece, off for bpe")] = None,
    min_frequency: Annotated[int, typer.Option(help="how often a piece must occur")] = 2,
    key: Annotated[str, typer.Option(help="the key of the text in JSON lines")] = "text",
    split: Annotated[str, typer.Option(help="what is a document in a text file: file, blank (lines) or line")] = "file",
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
) -> None:
    """Train a tokenizer on text, check it, and save it where `transformers` opens it too."""
    from polyseme.cli.output import empty_or_new
    from polyseme.corpus.sources import open_sources
    from polyseme.errors import UserError
    from polyseme.files import whole_folder
    from polyseme.progress import progress
    from polyseme.text.tokenizer import Tokenizer

    empty_or_new(out)
    sources = open_sources(source, key=key, split=split, skip_bad=skip_bad)
    if next(iter(sources), None) is None:
        raise UserError(f"there is no text in {', '.join(source)}")
    with progress("read", None, "characters") as bar:

        def texts():  # type: ignore[no-untyped-def]
            for document in sources:
                bar.advance(len(document.text))
                yield document.text

        made = Tokenizer.train(kind, texts(), vocab_size, lowercase, min_frequency)  # type: ignore[arg-type]
    with whole_folder(out) as folder:
        made.save(folder)
    print(f"{out}: {made.kind}, {made.vocab_size} pieces, {'lower case' if made.lowercase else 'case kept'}")
