"""`polyseme prepare` and `polyseme verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyseme.cli.output import SOURCES_HELP
from polyseme.errors import DataError

CLEANING_STEPS = "nfc, control, boilerplate=10, min_chars=200, max_chars=1000000, language=0.5"


def prepare(
    source: Annotated[list[str], typer.Argument(help=SOURCES_HELP)],
    tokenizer: Annotated[
        Path, typer.Option(help="a folder with a tokenizer, a published vocabulary, or events (MIDI)")
    ],
    out: Annotated[Path, typer.Option(help="the corpus folder to write, or to go on with")],
    append: Annotated[bool, typer.Option("--append", help="add these sources to the finished corpus at --out")] = False,
    key: Annotated[str, typer.Option(help="the key or column of the text; a+b joins two")] = "text",
    split: Annotated[str, typer.Option(help="what is a document in a text file: file, blank (lines) or line")] = "file",
    format: Annotated[str, typer.Option(help="the format, where the names of the files do not tell")] = "",
    lang: Annotated[str, typer.Option(help="the language of sources that do not say their own")] = "en",
    clean: Annotated[str, typer.Option(help=f"steps, with their limits: {CLEANING_STEPS}; or none")] = "nfc,control",
    dedup: Annotated[str, typer.Option(help="near (exact ones too), exact or none")] = "near",
    dedup_threshold: Annotated[
        float, typer.Option(help="how alike near duplicates are: Jaccard of 5-word shingles")
    ] = 0.8,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows and count them")] = False,
    num_workers: Annotated[int | None, typer.Option(help="processes; by default one a core", min=1)] = None,
    dask_address: Annotated[str, typer.Option(help="the address of a dask scheduler whose workers do the work")] = "",
) -> None:
    """Turn text into a corpus: cleaned, without duplicates, in hashed shards. Killed, it goes on where it stopped."""
    from polyseme.corpus.build.prepare import prepare as run
    from polyseme.text.tokenizer import Tokenizer

    manifest = run(
        source, Tokenizer.load(tokenizer), out, key=key, split=split, lang=lang, format=format, clean=clean,
        dedup=dedup, dedup_threshold=dedup_threshold, skip_bad=skip_bad, append=append, num_workers=num_workers,
        dask_address=dask_address,
    )  # fmt: skip
    print(f"{out}: " + ", ".join(f"{value:,} {name}" for name, value in manifest["counts"].items()))
    removed = manifest["removed"]
    for step, stats in removed["cleaning"].items():
        if stats["removed"] or stats["changed"]:
            summary = f"{stats['removed']:,} documents removed, {stats['changed']:,} changed"
            print(f"{step}: {summary}, such as {stats['examples'][0]['location']}")
    if (duplicate_stats := removed.get("duplicates")) and duplicate_stats["exact"] + duplicate_stats["near"]:
        example = duplicate_stats["examples"][0]
        print(
            f"duplicates: {duplicate_stats['exact']:,} exact and {duplicate_stats['near']:,} near ones removed, "
            f"such as {example['location']} repeats {example['duplicate_of']}"
        )
    if removed["num_blank"]:
        print(f"{removed['num_blank']:,} blank documents were passed over")
    if removed["num_empty"]:
        print(f"{removed['num_empty']:,} documents leave no token, such as {removed['empty_locations'][0]}")
    if removed["num_bad"]:
        print(f"{removed['num_bad']:,} bad rows were skipped, such as {removed['bad_row_messages'][0]}")


def verify(folder: Annotated[Path, typer.Argument(help="a corpus folder or a model folder")]) -> None:
    """Check every hash of a corpus, or every tensor of a model."""
    if (folder / "manifest.json").exists() or (folder / ".work").is_dir():
        from polyseme.corpus.store import verify_corpus

        verify_corpus(folder)
    elif (folder / "config.json").exists():
        from polyseme.ngram.model import is_ngram, verify_ngrams
        from polyseme.weights.folder import verify_model

        verify_ngrams(folder) if is_ngram(folder) else verify_model(folder)
    else:
        raise DataError(f"{folder} is neither a corpus (manifest.json) nor a model (config.json)")
    print(f"{folder}: whole")
