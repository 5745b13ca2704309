"""`polyseme families`: list the architectures."""

from __future__ import annotations

from typing import Annotated

import typer


def families(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List the families with their sizes and numbers of parameters (without heads)."""
    from polyseme.cli.output import print_json, print_table
    from polyseme.families import FAMILIES
    from polyseme.families.summary import FamilySummary, summarize_families

    if as_json:
        print_json([row._asdict() for row in summarize_families()])
        return
    print_table(FamilySummary._fields, summarize_families())
    for family in FAMILIES.values():
        print(f"\n{family.name}: {family.paper}; {family.tokenizer}; {family.objective}")
        for departure in family.departures:
            print(f"  departs: {departure}")
