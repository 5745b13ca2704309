"""`polyseme published`: published tables, with our results next to them."""

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.completion import PUBLISHED_TABLES, complete
from polyseme.cli.output import print_json, print_table, print_wrapped_table
from polyseme.errors import ConfigError

RUNS_HELP = (
    "Our results: folders of fine-tuning runs, benchmarks and studies; JSON that `evaluate` printed; or a JSON file "
    "with a row of your own, such as the scores that a server returned: "
    '{"system": "NAME", "split": "test", "values": {"COLUMN": VALUE}}.'
)


def published(
    table: Annotated[
        str, Argument(help="Name of a table; none: list all.", autocompletion=complete(PUBLISHED_TABLES))
    ] = "",
    runs: Annotated[list[Path], Argument(help=RUNS_HELP)] = [],
    markdown: Annotated[bool, Option("--markdown", help="Print a table in Markdown.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show a published table, with our results as further rows.

    Rows of ours are marked, with the number of seeds and the split that they were measured on.
    """
    from dataclasses import asdict

    import polyseme
    from polyseme.datasets.published import format_published

    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other")
    if not table:
        names = polyseme.list_published_tables()
        if as_json:
            print_json(names)
        elif markdown:
            print(_to_markdown(["table", "content"], [*map(list, names.items())]))
        else:
            print_wrapped_table(["table", "content"], list(names.items()))
        return
    comparison = polyseme.published_table(table, runs)
    if as_json:
        skipped = ("score_columns", "average_of")
        print_json({name: value for name, value in asdict(comparison).items() if name not in skipped})
        return
    header, rows, notes = format_published(comparison)
    if markdown:
        print(_to_markdown(header, rows) + "\n\n" + "\n".join(f"- {note}" for note in notes))
        return
    width = shutil.get_terminal_size().columns
    print(textwrap.fill(comparison.description, width))
    print_table(*_transpose(header, rows) if _width(header, rows) > max(width, 100) else (header, rows))
    for note in notes:
        print(textwrap.fill(note, width, subsequent_indent="   "))


def _to_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(len(row[i]) for row in (header, *rows)) for i in range(len(header)))


def _transpose(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Swap rows and columns if that makes the table narrower."""
    first, *others = map(list, zip(header, *rows))
    is_narrower = _width(first, others) < _width(header, rows)
    return (first, others) if is_narrower else (list(header), [*map(list, rows)])
