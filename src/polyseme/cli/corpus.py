"""`polyseme prepare` and `polyseme verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseme.cli.output import SOURCES
from polyseme.errors import UserError

STEPS = "nfc, control, boilerplate=10, short=200, long=1000000, language=0.5"


def prepare(
    source: Annotated[list[str], typer.Argument(help=SOURCES)],
    tokenizer: Annotated[
        Path, typer.Option(help="a folder with a tokenizer, a published vocabulary, or events (MIDI)")
    ],
    out: Annotated[Path, typer.Option(help="the corpus folder to write, or to go on with")],
    append: Annotated[bool, typer.Option("--append", help="add these sources to the finished corpus at --out")] = False,
    key: Annotated[str, typer.Option(help="the key or column of the text; a+b joins two")] = "text",
    split: Annotated[str, typer.Option(help="what is a document in a text file: file, blank (lines) or line")] = "file",
    format: Annotated[str, typer.Option(help="the format, where the names of the files do not tell")] = "",
    lang: Annotated[str, typer.Option(help="the language of sources that do not say their own")] = "en",
    clean: Annotated[str, typer.Option(help=f"steps, with their limits: {STEPS}; or none")] = "nfc,control",
    duplicates: Annotated[str, typer.Option(help="near (exact ones too), exact or none")] = "near",
    threshold: Annotated[float, typer.Option(help="how alike near duplicates are: Jaccard of 5-word shingles")] = 0.8,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    workers: Annotated[int | None, typer.Option(help="processes; by default one a core", min=1)] = None,
    cluster: Annotated[str, typer.Option(help="the address of a dask scheduler whose workers do the work")] = "",
) -> None:
    """Turn text into a corpus: cleaned, without duplicates, in hashed shards. Killed, it goes on where it stopped."""
    from polyseme.corpus.build.prepare import prepare as run
    from polyseme.text.tokenizer import Tokenizer

    manifest = run(
        source, Tokenizer.load(tokenizer), out, key=key, split=split, lang=lang, format=format, clean=clean,
        duplicates=duplicates, threshold=threshold, skip_bad=skip_bad, append=append, workers=workers, cluster=cluster,
    )  # fmt: skip
    print(f"{out}: " + ", ".join(f"{value:,} {name}" for name, value in manifest["counts"].items()))
    removed = manifest["removed"]
    for step, did in removed["cleaning"].items():
        if did["removed"] or did["changed"]:
            said = f"{did['removed']:,} documents removed, {did['changed']:,} changed"
            print(f"{step}: {said}, such as {did['examples'][0]['where']}")
    if (found := removed.get("duplicates")) and found["exact"] + found["near"]:
        example = found["examples"][0]
        print(
            f"duplicates: {found['exact']:,} exact and {found['near']:,} near ones removed, such as "
            f"{example['where']} repeats {example['of']}"
        )
    if removed["blank"]:
        print(f"{removed['blank']:,} blank documents were passed over")
    if removed["empty"]:
        print(f"{removed['empty']:,} documents leave no token, such as {removed['empty_places'][0]}")
    if removed["bad"]:
        print(f"{removed['bad']:,} bad rows were skipped, such as {removed['bad_rows'][0]}")


def verify(folder: Annotated[Path, typer.Argument(help="a corpus folder or a model folder")]) -> None:
    """Check every hash of a corpus, or every tensor of a model."""
    if (folder / "manifest.json").exists() or (folder / ".work").is_dir():
        from polyseme.corpus.store import verify as verify_corpus

        verify_corpus(folder)
    elif (folder / "config.json").exists():
        from polyseme.ngram.model import is_ngram, verify_ngrams
        from polyseme.weights.folder import verify_model

        verify_ngrams(folder) if is_ngram(folder) else verify_model(folder)
    else:
        raise UserError(f"{folder} is neither a corpus (manifest.json) nor a model (config.json)")
    print(f"{folder}: whole")
