"""The page of a study as Markdown."""

import re
from collections.abc import Sequence

from polyseme.report.pages.compare_tables import Table
from polyseme.studies.analysis.content import Block, BulletList, CodeBlock, FigureBlock, Paragraph, Section

_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])/(?:[\w.+\\-]+/)+([\w.+\\-]+)/?")
MARKER = "<!-- Generated from the files of a study: run `polyseme study` instead of editing it. -->"


def markdown_page(title: str, lead: str, sections: Sequence[Section], figure: str) -> str:
    """Render a page for publication; `figure` is the name of the file of the figure.

    Of absolute paths, which say nothing to readers elsewhere, only the last part is shown.
    """
    parts = [f"# {_escape(title)}", MARKER, _escape(lead)]
    for heading, blocks in sections:
        parts += [f"## {_escape(heading)}", *(_render(block, figure) for block in blocks)]
    return _ABSOLUTE_PATH.sub(r"\1", "\n\n".join(parts)) + "\n"


def _render(block: Block, figure: str) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, BulletList):
        return "\n".join(f"- **{_escape(term)}** {_escape(text)}" for term, text in block.labeled)
    if isinstance(block, CodeBlock):
        return "\n".join(f"    {line}" for line in block.text.splitlines())
    if isinstance(block, FigureBlock):
        return f"![Scores of all arms]({figure})\n\n{_escape(block.caption)}"
    assert isinstance(block, Paragraph)
    return _escape(block.text)


def _table(table: Table) -> str:
    rows = [
        [f"**{_escape(cell)}**" if (i, j) in table.best else _escape(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    rule = ["---"] * len(table.header)
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*map(_escape, table.header)], rule, *rows))


def _escape(text: str) -> str:
    """Escape what Markdown would read as markup, in a line of its own or a cell of a table."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
