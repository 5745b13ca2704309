"""`polyseme prepare`, `pairs`, `describe` and `verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_table
from polyseme.errors import ConfigError
from polyseme.io.limits import MAX_INTEGER

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus

CLEAN_HELP = "Cleaning steps with their thresholds: nfc, control, boilerplate=10, min_chars=200, max_chars=1000000, "
CLEAN_HELP += "language=0.5; or none."
THRESHOLD_HELP = "Near duplicates: minimum Jaccard similarity of 5-word shingles (MinHash LSH)."
PAIRS_HELP = (
    "Two files of lines, or .tsv, .csv, .jsonl, .parquet, .po, .mo, plain or compressed, with their columns as in "
)
PAIRS_HELP += "FILE::text=en,pair=de; or gettext::lang=de."
RATIO_HELP = "Drop pairs whose lengths differ by more than this factor; 0: keep all."


def prepare(
    source: options.SourceArgument,
    tokenizer: Annotated[Path, Option(help="Folder of a tokenizer, model or run; a vocabulary; or `events` (MIDI).")],
    out: Annotated[Path, Option(help="Corpus folder to write, or to continue.")],
    append: Annotated[bool, Option("--append", help="Add these sources to the finished corpus in --out.")] = False,
    text_column: options.TextColumnOption = "",
    split: options.SplitOption = "file",
    format: options.FormatOption = "",
    lang: options.LangOption = "en",
    clean: Annotated[str, Option(help=CLEAN_HELP)] = "nfc,control",
    dedup: Annotated[str, Option(help="Deduplication: near (includes exact), exact, or none.")] = "near",
    dedup_threshold: Annotated[float, Option(help=THRESHOLD_HELP)] = 0.8,
    skip_bad: options.SkipBadOption = False,
    allow_large: options.AllowLargeOption = False,
    num_workers: Annotated[int | None, Option(help="Worker processes; default: one per core.", min=1)] = None,
    dask_address: Annotated[str, Option(help="Address of a Dask scheduler whose workers to use.")] = "",
) -> None:
    """Clean, deduplicate and tokenize text into a corpus. An interrupted run continues where it stopped."""
    import polyseme

    corpus = polyseme.prepare(
        source, polyseme.Tokenizer.load(tokenizer), out, text_column=text_column, split=split, lang=lang,
        format=format, clean=clean, dedup=dedup, dedup_threshold=dedup_threshold, skip_bad=skip_bad, append=append,
        num_workers=num_workers, allow_large=allow_large, dask_address=dask_address,
    )  # fmt: skip
    _print_removed(out, corpus)


def _print_removed(out: Path, corpus: "Corpus") -> None:
    """Print the sizes of a corpus, and what was removed."""
    print(f"{out}: " + ", ".join(f"{value:,} {name}" for name, value in corpus.manifest["counts"].items()))
    removed = corpus.manifest["removed"]
    for step, stats in removed["cleaning"].items():
        if stats["removed"] or stats["changed"]:
            summary = f"{stats['removed']:,} documents removed, {stats['changed']:,} changed"
            print(f"{step}: {summary}, such as {stats['examples'][0]['location']}")
    if (duplicates := removed.get("duplicates")) and duplicates["exact"] + duplicates["near"]:
        first = duplicates["examples"][0]
        counts = f"{duplicates['exact']:,} exact and {duplicates['near']:,} near ones removed"
        print(f"duplicates: {counts}, such as {first['location']}, which repeats {first['duplicate_of']}")
    if removed["num_blank"]:
        print(f"{removed['num_blank']:,} blank documents were skipped")
    if removed["num_empty"]:
        print(f"{removed['num_empty']:,} documents have no tokens, such as {removed['empty_locations'][0]}")
    if removed["num_bad"]:
        print(f"{removed['num_bad']:,} bad rows were skipped, such as {removed['bad_row_messages'][0]}")


def pairs(
    source: Annotated[list[str], Argument(help=PAIRS_HELP)],
    tokenizer: Annotated[Path, Option(help="Tokenizer of both sides, or of the source side.")],
    out: Annotated[Path, Option(help="Output corpus folder.")],
    target_tokenizer: Annotated[Path | None, Option(help="Tokenizer of the target side, if it differs.")] = None,
    keys: Annotated[str, Option(help="Columns or keys of the two sides, such as en+de.")] = "",
    max_tokens: Annotated[int, Option(help="Drop pairs with a side longer than this.", min=1)] = 250,
    max_length_ratio: Annotated[float, Option(help=RATIO_HELP)] = 0.0,
) -> None:
    """Prepare parallel text for a translation model. Train one with `polyseme pretrain transformer-tiny`."""
    from polyseme.corpus.build.parallel import prepare_parallel
    from polyseme.text.tokenizer import Tokenizer

    side_keys = tuple(keys.split("+")) if keys else None
    if side_keys is not None and len(side_keys) != 2:
        raise ConfigError(f"--keys {keys!r} does not name two sides, as en+de does")
    target = Tokenizer.load(target_tokenizer) if target_tokenizer else None
    manifest = prepare_parallel(source, Tokenizer.load(tokenizer), out, target, side_keys, max_tokens, max_length_ratio)
    counts, removed = manifest["counts"], manifest["removed"]
    print(f"{out}: {counts['documents']:,} pairs, {counts['tokens']:,} tokens")
    reasons = {
        "empty": "with an empty side",
        "too_long": f"of more than {max_tokens} tokens",
        "length_ratio": "of different lengths",
        "duplicate": "that are duplicates",
    }
    for reason, count in removed["pairs"].items():
        print(f"{count:,} pairs {reasons[reason]} were dropped, such as {removed['examples'][reason]}")


def describe(
    corpus: Annotated[Path, Argument(help="Corpus folder from `polyseme prepare`.")],
    out: Annotated[Path | None, Option(help="Output page; default: description.html in the corpus folder.")] = None,
    seed: Annotated[int, Option(help="Random seed of the sampled documents.", min=0, max=MAX_INTEGER)] = 0,
    num_samples: Annotated[int, Option(help="Number of sampled documents.")] = 5,
    top_k: Annotated[int, Option(help="Number of frequent tokens shown, at word starts and inside words.")] = 50,
) -> None:
    """Write a page of corpus statistics.

    It shows sizes, sources, lengths, tokens, entropy, removed documents and samples.
    """
    from polyseme.corpus.inspect.page import render_page, summary_rows
    from polyseme.corpus.inspect.statistics import compute_statistics
    from polyseme.corpus.store import Corpus
    from polyseme.io.atomic import write_text

    out = out or corpus / "description.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {out}: the page is HTML, so its name must end in .html")
    if seed < 0:
        raise ConfigError(f"seed is {seed}, expected 0 or more")
    statistics = compute_statistics(Corpus.open(corpus), seed, num_samples, top_k)
    write_text(out, render_page(statistics))
    print_table([str(corpus), ""], summary_rows(statistics))
    print(f"{out}: all statistics")


def verify(
    folder: Annotated[Path, Argument(help="Folder of a corpus, model, tokenizer or run.")],
    update: Annotated[bool, Option("--update", help="Accept changed files: write their hashes again.")] = False,
) -> None:
    """Check every file of a folder for damage.

    It compares hashes, finds missing and added files, and checks the structure and that weights are finite. An edited
    README.md is mentioned, and is no damage.
    """
    import polyseme

    verified = polyseme.verify(folder, update)
    if verified.has_hashes:
        print(f"{folder}: intact ({verified.kind})")
    else:
        print(f"{folder}: readable, but it contains no hashes: only the structure of the {verified.kind} was checked")
    for path in verified.edited_cards:
        print(f"{path} was edited since it was written, which is no damage")
