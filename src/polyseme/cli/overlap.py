"""`polyseme overlap`: contamination of evaluation sets by a corpus."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table
from polyseme.errors import DataError

if TYPE_CHECKING:
    from polyseme.corpus.inspect.contamination import ContaminatedExample, ContaminationResult
    from polyseme.corpus.sources.sources import SourceReader

MAX_EXCERPT_CHARS = 240
SetsOption = Annotated[
    list[str], Option("--evaluation-set", help="Evaluation set, in any format that prepare reads; may be repeated.")
]


def overlap(
    corpus: Annotated[Path, Argument(help="Corpus folder from `polyseme prepare`.")],
    evaluation_sets: SetsOption,
    more_evaluation_sets: Annotated[list[str] | None, Argument(help="More evaluation sets.")] = None,
    n: Annotated[int, Option(help="N-gram length in words: 8 as in GPT-2, 13 as in GPT-3.")] = 8,
    text_column: options.TextColumnOption = "",
    num_shown: Annotated[int, Option(help="Number of examples shown per set.", min=0)] = 3,
    skip_bad: options.SkipBadOption = False,
    allow_large: options.AllowLargeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure how much of evaluation sets occurs in a corpus.

    It prints the fraction of each set's word n-grams, and the worst examples.
    """
    from dataclasses import asdict

    from polyseme.corpus.inspect.contamination import measure_contamination
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.corpus.store import Corpus

    opened = Corpus.open(corpus)
    names = (*evaluation_sets, *(more_evaluation_sets or ()))
    settings: dict[str, Any] = {"default_split": "line", "skip_bad": skip_bad, "allow_large": allow_large}
    sources = {name: open_sources([name], text_column, **settings) for name in names}
    locations: dict[str, list[str]] = {name: [] for name in sources}

    def texts(name: str, reader: "SourceReader") -> Iterator[str]:
        for document in reader:
            locations[name].append(document.location)
            yield document.text
        if not locations[name]:
            raise DataError(f"there is no text in {name}")

    results = measure_contamination(opened, {name: texts(name, each) for name, each in sources.items()}, n, num_shown)
    for reader in sources.values():
        reader.log_skipped()
    if as_json:
        rows = [asdict(each) | {"rates": each.rates} for each in results]
        for row in rows:
            for example in row["worst_examples"]:
                example["location"] = locations[row["name"]][example["example_number"] - 1]
        print_json(rows)
        return
    header = ["set", "examples", f"{n}-grams", "found", "share", "contaminated", "half or more"]
    print_table(header, [_table_row(each) for each in results])
    for each in results:
        for line in (
            *_skipped_notes(each),
            *(_match_line(match, locations, each.name) for match in each.worst_examples),
        ):
            print(line)


def _table_row(each: "ContaminationResult") -> list[Any]:
    shares = {name: "-" if share is None else f"{share:.2%}" for name, share in each.rates.items()}
    counts = [f"{getattr(each, name):,} ({shares[name]})" for name in ("num_contaminated", "num_half_contaminated")]
    return [each.name, each.num_examples, each.num_ngrams, each.num_matched, shares["num_matched"], *counts]


def _skipped_notes(each: "ContaminationResult") -> Iterator[str]:
    """Yield notes about what was not compared."""
    if each.num_too_short:
        yield f"{each.name}: {each.num_too_short:,} examples of fewer than {each.n} words are too short to compare"
    if each.num_unknown:
        num_uncovered = each.num_examples - each.num_compared - each.num_too_short
        suffix = f"; {num_uncovered:,} examples have no other" if num_uncovered else ""
        ngrams = f"{each.num_unknown:,} {each.n}-grams with a word unknown to the tokenizer"
        yield f"{each.name}: {ngrams} are left out{suffix}"


def _match_line(match: "ContaminatedExample", locations: dict[str, list[str]], name: str) -> str:
    location = locations[name][match.example_number - 1] or f"example {match.example_number}"
    excerpt = match.longest_match[:MAX_EXCERPT_CHARS] + "…" * (len(match.longest_match) > MAX_EXCERPT_CHARS)
    return f"{name} {location}: {match.num_matched:,} of {match.num_ngrams:,} found: “{excerpt}”"
