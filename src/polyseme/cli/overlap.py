"""`polyseme overlap`: is an evaluation set in a corpus already?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyseme.corpus.inspect.contamination import Match, Overlap
    from polyseme.corpus.sources.sources import Sources


def overlap(
    corpus: Annotated[Path, typer.Argument(help="a corpus folder made by `polyseme prepare`")],
    with_: Annotated[list[str], typer.Option("--with", help="evaluation sets, as prepare reads text; may be repeated")],
    more: Annotated[list[str] | None, typer.Argument(help="further evaluation sets")] = None,
    n: Annotated[int, typer.Option(help="how many words are compared: 8 for GPT-2, 13 for GPT-3")] = 8,
    key: Annotated[str, typer.Option(help="the key or column of the text")] = "text",
    show: Annotated[int, typer.Option(help="how many examples of each set are shown", min=0)] = 3,
    skip_bad: Annotated[bool, typer.Option(help="go on past bad rows")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print the share of each evaluation set's word n-grams that occur in a corpus, and the examples with most."""
    from dataclasses import asdict

    from polyseme.cli.output import print_json, print_table
    from polyseme.corpus.inspect.contamination import overlap as run
    from polyseme.corpus.sources.sources import open_sources
    from polyseme.corpus.store import Corpus
    from polyseme.errors import UserError

    opened = Corpus.open(corpus)
    sets = {name: open_sources([name], key=key, split="line", skip_bad=skip_bad) for name in (*with_, *(more or ()))}
    places: dict[str, list[str]] = {name: [] for name in sets}

    def texts(name: str, sources: Sources) -> Iterator[str]:
        for document in sources:
            places[name].append(document.where)
            yield document.text
        if not places[name]:
            raise UserError(f"there is no text in {name}")

    found = run(opened, {name: texts(name, sources) for name, sources in sets.items()}, n, show)
    if as_json:
        rows = [asdict(each) | {"shares": each.shares} for each in found]
        for row in rows:
            row["worst"] = [match | {"where": places[row["name"]][match["example"] - 1]} for match in row["worst"]]
        print_json(rows)
        return
    print_table(
        ["set", "examples", f"{n}-grams", "found", "share", "examples touched", "half or more"],
        [_row(each) for each in found],
    )
    for each in found:
        for said in (*_left_out(each), *(_line(match, places[each.name], each.name) for match in each.worst)):
            print(said)


def _row(each: Overlap) -> list[int | str]:
    shares = {name: "-" if share is None else f"{share:.2%}" for name, share in each.shares.items()}
    touched, half = (f"{getattr(each, name):,} ({shares[name]})" for name in ("touched", "half"))
    return [each.name, each.examples, each.grams, each.found, shares["found"], touched, half]


def _left_out(each: Overlap) -> Iterator[str]:
    """What the shares do not speak of."""
    if each.short:
        yield f"{each.name}: {each.short:,} examples of fewer than {each.n} words are too short to compare"
    if each.unknown:
        alone = each.examples - each.compared - each.short
        also = f", {alone:,} examples have no other" if alone else ""
        yield f"{each.name}: {each.unknown:,} {each.n}-grams with a word unknown to the tokenizer are left out{also}"


def _line(match: Match, places: list[str], name: str) -> str:
    where = places[match.example - 1] or f"example {match.example}"
    stretch = match.stretch if len(match.stretch) <= 240 else match.stretch[:240] + "…"
    return f"{name} {where}: {match.found:,} of {match.grams:,} found: “{stretch}”"
