"""`polyseme prepare` and `polyseme verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseme.errors import UserError


def prepare(
    source: Annotated[list[str], typer.Argument(help="text files, folders, .jsonl; plain, .gz or .xz; or python-docs")],
    tokenizer: Annotated[Path, typer.Option(help="a folder with a tokenizer, or BERT's vocab.txt")],
    out: Annotated[Path, typer.Option(help="the corpus folder to write, or to go on with")],
    key: Annotated[str, typer.Option(help="the key of the text in JSON lines")] = "text",
    split: Annotated[str, typer.Option(help="what is a document in a text file: file, blank (lines) or line")] = "file",
    lang: Annotated[str, typer.Option(help="the language, for the sentence splitter")] = "en",
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
) -> None:
    """Turn text into a corpus: sentences, tokens, hashed shards. Killed, it goes on where it stopped."""
    from polyseme.corpus.prepare import prepare as run
    from polyseme.text.tokenizer import Tokenizer

    manifest = run(source, Tokenizer.load(tokenizer), out, key=key, split=split, lang=lang, skip_bad=skip_bad)
    counts = manifest["counts"]
    print(f"{out}: " + ", ".join(f"{value:,} {name}" for name, value in counts.items()))
    skipped = manifest["skipped"]
    if skipped["bad"]:
        print(f"{skipped['bad']:,} bad rows were skipped, the first: {skipped['bad_rows'][0]}")


def verify(folder: Annotated[Path, typer.Argument(help="a corpus folder or a model folder")]) -> None:
    """Check every hash of a corpus, or every tensor of a model."""
    if (folder / "manifest.json").exists():
        from polyseme.corpus.store import verify as verify_corpus

        verify_corpus(folder)
    elif (folder / "config.json").exists():
        from polyseme.weights.folder import verify_model

        verify_model(folder)
    else:
        raise UserError(f"{folder} is neither a corpus (manifest.json) nor a model (config.json)")
    print(f"{folder}: whole")
