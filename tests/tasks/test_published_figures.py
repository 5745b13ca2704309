"""The published figures, against the lectures that show them, where those are at hand."""

import json
from pathlib import Path

import pytest

from polyseme.tasks import benchmark

LECTURES = Path(__file__).parents[2].parent / "shared/seeds"
TABLES = json.loads((Path(benchmark.__file__).parent / "published.json").read_text(encoding="utf-8"))
ROWS = [(name, row) for name, table in TABLES.items() for row in table["rows"]]


def test_every_row_has_its_source_and_a_value_for_each_column():
    assert len(ROWS) > 30
    for name, row in ROWS:
        assert row["source"].strip(), row
        assert len(row["values"]) == len(TABLES[name]["columns"]), row


@pytest.mark.skipif(not LECTURES.is_dir(), reason="needs the lectures")
def test_every_figure_stands_in_a_lecture():
    """Not that it stands in its cell, but that nobody made it up."""
    text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in sorted(LECTURES.glob("*.txt")))
    for _, row in ROWS:
        for value in row["values"]:
            assert value is None or f"{value:g}" in text or str(value) in text, (row["system"], value)
