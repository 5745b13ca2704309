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
    tokenizer: Annotated[Path, typer.Option(help="tokenizer folder, a published vocabulary, or `events` for MIDI")],
    out: Annotated[Path, typer.Option(help="corpus folder to write, or to continue")],
    append: Annotated[bool, typer.Option("--append", help="add these sources to the finished corpus in --out")] = False,
    key: Annotated[str, typer.Option(help="key or column of the text; a+b joins two")] = "text",
    split: Annotated[
        str, typer.Option(help="document unit in text files: file, blank (separated by blank lines), or line")
    ] = "file",
    format: Annotated[str, typer.Option(help="file format, if the file names do not show it")] = "",
    lang: Annotated[str, typer.Option(help="language of sources that do not name one")] = "en",
    clean: Annotated[
        str, typer.Option(help=f"cleaning steps with their thresholds: {CLEANING_STEPS}; or none")
    ] = "nfc,control",
    dedup: Annotated[str, typer.Option(help="deduplication: near (includes exact), exact, or none")] = "near",
    dedup_threshold: Annotated[
        float, typer.Option(help="near duplicates: minimum Jaccard similarity of 5-word shingles (MinHash LSH)")
    ] = 0.8,
    skip_bad: Annotated[bool, typer.Option(help="skip bad rows and count them")] = False,
    num_workers: Annotated[int | None, typer.Option(help="worker processes; default: one per core", min=1)] = None,
    dask_address: Annotated[str, typer.Option(help="address of a Dask scheduler whose workers to use")] = "",
) -> None:
    """Clean, deduplicate and tokenize text into a corpus. An interrupted run continues where it stopped."""
    from polyseme.corpus.build.prepare import PrepareConfig
    from polyseme.corpus.build.prepare import prepare as run
    from polyseme.text.tokenizer import Tokenizer

    config = PrepareConfig(
        key, split, lang, format, clean, dedup, dedup_threshold, skip_bad, append, num_workers, dask_address
    )
    manifest = run(source, Tokenizer.load(tokenizer), out, config)
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


def verify(folder: Annotated[Path, typer.Argument(help="corpus folder or model folder")]) -> None:
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
