"""`polyseme overlap`: is an evaluation set in a corpus already?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyseme.corpus.inspect.contamination import ContaminatedExample, ContaminationResult
    from polyseme.corpus.sources.sources import SourceReader


def overlap(
    corpus: Annotated[Path, typer.Argument(help="a corpus folder made by `polyseme prepare`")],
    evaluation_sets: Annotated[
        list[str], typer.Option("--evaluation-set", help="evaluation sets, as prepare reads text; may be repeated")
    ],
    more_evaluation_sets: Annotated[list[str] | None, typer.Argument(help="further evaluation sets")] = None,
    n: Annotated[int, typer.Option(help="how many words are compared: 8 for GPT-2, 13 for GPT-3")] = 8,
    key: Annotated[str, typer.Option(help="the key or column of the text")] = "text",
    num_shown: Annotated[int, typer.Option(help="how many examples of each set are shown", min=0)] = 3,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print the share of each evaluation set's word n-grams that occur in a corpus, and the examples with most."""
    from dataclasses import asdict

    from polyseme.cli.output import print_json, print_table
    from polyseme.corpus.inspect.contamination import measure_contamination as run
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.corpus.store import Corpus
    from polyseme.errors import DataError

    opened_corpus = Corpus.open(corpus)
    sources_by_set = {
        name: open_sources([name], key=key, split="line", skip_bad=skip_bad)
        for name in (*evaluation_sets, *(more_evaluation_sets or ()))
    }
    locations: dict[str, list[str]] = {name: [] for name in sources_by_set}

    def texts(name: str, sources: SourceReader) -> Iterator[str]:
        for document in sources:
            locations[name].append(document.location)
            yield document.text
        if not locations[name]:
            raise DataError(f"there is no text in {name}")

    overlaps = run(
        opened_corpus, {name: texts(name, sources) for name, sources in sources_by_set.items()}, n, num_shown
    )
    if as_json:
        rows = [asdict(set_overlap) | {"rates": set_overlap.rates} for set_overlap in overlaps]
        for row in rows:
            row["worst_examples"] = [
                match | {"location": locations[row["name"]][match["example_number"] - 1]}
                for match in row["worst_examples"]
            ]
        print_json(rows)
        return
    print_table(
        ["set", "examples", f"{n}-grams", "found", "share", "examples touched", "half or more"],
        [_table_row(set_overlap) for set_overlap in overlaps],
    )
    for set_overlap in overlaps:
        for line in (
            *_skipped_notes(set_overlap),
            *(
                _match_line(match, locations[set_overlap.name], set_overlap.name)
                for match in set_overlap.worst_examples
            ),
        ):
            print(line)


def _table_row(set_overlap: ContaminationResult) -> list[int | str]:
    shares = {name: "-" if share is None else f"{share:.2%}" for name, share in set_overlap.rates.items()}
    contaminated, half_contaminated = (
        f"{getattr(set_overlap, name):,} ({shares[name]})" for name in ("num_contaminated", "num_half_contaminated")
    )
    return [
        set_overlap.name,
        set_overlap.num_examples,
        set_overlap.num_ngrams,
        set_overlap.num_matched,
        shares["num_matched"],
        contaminated,
        half_contaminated,
    ]


def _skipped_notes(set_overlap: ContaminationResult) -> Iterator[str]:
    """What the shares do not speak of."""
    if set_overlap.num_too_short:
        num_too_short = f"{set_overlap.num_too_short:,} examples of fewer than {set_overlap.n} words"
        yield f"{set_overlap.name}: {num_too_short} are too short to compare"
    if set_overlap.num_unknown:
        num_uncovered = set_overlap.num_examples - set_overlap.num_compared - set_overlap.num_too_short
        suffix = f", {num_uncovered:,} examples have no other" if num_uncovered else ""
        num_unknown = f"{set_overlap.num_unknown:,} {set_overlap.n}-grams with a word unknown to the tokenizer"
        yield f"{set_overlap.name}: {num_unknown} are left out{suffix}"


def _match_line(match: ContaminatedExample, locations: list[str], name: str) -> str:
    location = locations[match.example_number - 1] or f"example {match.example_number}"
    excerpt = match.longest_match if len(match.longest_match) <= 240 else match.longest_match[:240] + "…"
    return f"{name} {location}: {match.num_matched:,} of {match.num_ngrams:,} found: “{excerpt}”"
