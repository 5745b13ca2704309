"""Read docs/coverage.json, the rows of docs/coverage.md, and format them."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "coverage.json"


@dataclass(frozen=True)
class Row:
    """Something that a deck shows, and what reproduces it: commands, a Python name, or a page with our results.

    `at` is a text of the deck at that place. A row that is `cited` is a competing system that a deck only cites.
    """

    deck: str
    kind: str
    at: str
    what: str
    run: tuple[str, ...] = ()
    python: str = ""
    see: str = ""
    cited: bool = False


@dataclass(frozen=True)
class Coverage:
    """All rows, the titles of the decks, and the commands that prepare what the rows read."""

    setup: tuple[str, ...]
    titles: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def commands(self) -> list[str]:
        """Every command once, in an order in which they can be run."""
        return list(dict.fromkeys([*self.setup, *(command for row in self.rows for command in row.run)]))


def load_coverage() -> Coverage:
    content = json.loads(DATA.read_text(encoding="utf-8"))
    rows = [
        Row(deck["id"], **{name: tuple(value) if name == "run" else value for name, value in row.items()})
        for deck in content["decks"]
        for row in deck["rows"]
    ]
    return Coverage(tuple(content["setup"]), {deck["id"]: deck["title"] for deck in content["decks"]}, tuple(rows))


def words_of(command: str) -> list[str]:
    """Return the words of a command after `polyseme`."""
    program, *words = shlex.split(command)
    assert program == "polyseme", command
    return words


def format_setup() -> str:
    return "```bash\n" + "\n".join(load_coverage().setup) + "\n```"


def format_rows() -> str:
    """Format a table for each deck."""
    coverage = load_coverage()
    parts = []
    for number, (deck, title) in enumerate(coverage.titles.items(), 1):
        lines = [f"### {number}. {title}", "", "| kind | what the deck shows | here |", "|---|---|---|"]
        for row in coverage.rows:
            if row.deck == deck:
                cells = [f"`{command}`" for command in row.run] + [f"`{row.python}`"] * bool(row.python)
                cells += [f"[{row.see.split('/')[-1]}]({row.see})"] * bool(row.see)
                kind = "cited" if row.cited else row.kind
                lines.append(f"| {kind} | {row.what} | {'<br>'.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
