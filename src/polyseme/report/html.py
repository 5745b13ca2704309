"""Self-contained HTML pages: page, table, code, note and other elements."""

import html
import json
from collections.abc import Sequence
from typing import Any

STYLE = """
:root { --ink: #1c2230; --soft: #5b6478; --line: #dfe3ea; --paper: #ffffff; --tint: #f5f7fa; --mark: #2b6cb0; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 58rem; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p.lead { color: var(--soft); margin-top: 0; } p.note { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--tint); padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; border-radius: 4px; }
code { background: var(--tint); padding: .05rem .3rem; border-radius: 3px; } svg { max-width: 100%; height: auto; }
b.code { color: var(--mark); border-bottom: 2px solid var(--mark); font-weight: 600; }
blockquote { margin: .5rem 0; padding: .6rem 1rem; background: var(--tint); border-radius: 4px; font-size: .92rem;
             white-space: pre-wrap; overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto; }
div.side { display: flex; flex-wrap: wrap; gap: 0 3.5rem; align-items: flex-start; }
td.w { overflow-wrap: anywhere; min-width: 11rem; } td.n { white-space: nowrap; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
"""
# Control characters are shown as control pictures, U+2400 and following.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def html_page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """Render a page from its title, lead (HTML) and sections (heading, HTML); empty sections are omitted."""
    body = "\n".join(f"<h2>{escape(heading)}</h2>\n{content}" for heading, content in sections if content)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f'<body><h1>{escape(title)}</h1><p class="lead">{lead}</p>\n{body}\n</body></html>\n'
    )


def escape(text: str) -> str:
    """Escape text for HTML; control characters become visible and lone surrogates question marks."""
    return html.escape(text.translate(_CONTROL_PICTURES).encode("utf-8", "replace").decode())


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Render a table of escaped cells; text follows the direction of its script, numbers are right-aligned."""

    def is_number(cell: Any) -> bool:
        return isinstance(cell, int | float) or str(cell)[:1].isdigit()

    def column_attributes(column: Sequence[Any]) -> str:
        filled = [cell for cell in column if cell != ""]
        if filled and all(map(is_number, filled)):
            return " class=n"
        return " class=w dir=auto" if any(len(str(cell)) > 40 for cell in filled) else " dir=auto"

    attributes = [column_attributes([row[i] for row in rows]) for i in range(len(header))]

    def table_row(cells: Sequence[Any], tag: str) -> str:
        inner = "".join(f"<{tag}{k}>{escape(_format_cell(c))}</{tag}>" for k, c in zip(attributes, cells))
        return f"<tr>{inner}</tr>"

    header_row = table_row(header, "th") if any(header) else ""
    return f"<table>{header_row}{''.join(table_row(row, 'td') for row in rows)}</table>"


def code(value: Any) -> str:
    """Render a text, or a value as indented JSON, as a code block."""
    return f"<pre>{escape(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def note(text: str) -> str:
    """Render a note in small print."""
    return f'<p class="note">{escape(text)}</p>'


def quote(text: str) -> str:
    """Render a quotation, in the direction of its script."""
    return f'<blockquote dir="auto">{escape(text)}</blockquote>'


def columns(*parts: str) -> str:
    """Render parts side by side; empty ones are omitted."""
    return f'<div class="side">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def _format_cell(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.4g}" if isinstance(value, float) else str(value)
