"""Self-contained HTML pages: page, key figures, tables, figures with captions, collapsed parts, next steps."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyseme.report.style import STYLE

# Control characters are shown as control pictures, U+2400 and following.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_MIN_TOC_SECTIONS = 5


@dataclass(frozen=True)
class Cell:
    """A table cell with a bar or a heat color behind its value; `share` is between 0 and 1."""

    value: Any
    share: float
    kind: str = "bar"  # or heat


@dataclass(frozen=True)
class Html:
    """A table cell that is already HTML; it is aligned as text unless `is_number`."""

    content: str
    is_number: bool = False


def html_page(title: str, lead: str, sections: Sequence[tuple[str, str]], top: str = "", script: str = "") -> str:
    """Render a page from its title, lead (HTML) and sections (heading, HTML); empty sections are omitted.

    `top` (HTML) stands before the sections: warnings and key figures; `script` (HTML) after them. A long page has a
    table of contents.
    """
    filled = [(heading, content) for heading, content in sections if content]
    anchors = [
        f"s{i}-{re.sub(r'[^a-z0-9]+', '-', heading.lower()).strip('-')}" for i, (heading, _) in enumerate(filled)
    ]
    links = "".join(f'<a href="#{anchor}">{escape(h)}</a>' for anchor, (h, _) in zip(anchors, filled))
    contents = f'<nav aria-label="Contents">{links}</nav>\n' if len(filled) >= _MIN_TOC_SECTIONS else ""
    body = "\n".join(
        f'<section><h2 id="{anchor}">{escape(heading)}</h2>\n{content}</section>'
        for anchor, (heading, content) in zip(anchors, filled)
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head>\n"
        f'<body><header><h1>{escape(title)}</h1><p class="lead">{lead}</p>\n{top}{contents}</header>\n'
        f"<main>{body}</main>\n{script}</body></html>\n"
    )


def escape(text: str) -> str:
    """Escape text for HTML; control characters become visible and lone surrogates question marks."""
    return html.escape(text.translate(_CONTROL_PICTURES).encode("utf-8", "replace").decode())


def key_figures(figures: Sequence[tuple[str, Any, str]]) -> str:
    """Render the most important figures of a page as cards: label, value, and a detail in small print or nothing."""
    cards = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(_format_cell(value))}</dd>"
        + (f'<dd class="detail">{escape(detail)}</dd>' if detail else "")
        + "</div>"
        for label, value, detail in figures
    )
    return f'<dl class="figures">{cards}</dl>' if cards else ""


def warning(text: str) -> str:
    """Render a warning."""
    return f'<p class="warning" role="alert"><b>Warning:</b> {escape(text)}</p>'


def figure(chart: str, caption: str) -> str:
    """Render a chart (HTML) with a sentence that says what to look for; empty if there is no chart."""
    caption_html = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure><div class="plot">{chart}</div>{caption_html}</figure>' if chart else ""


def collapsed(summary: str, content: str) -> str:
    """Render a part that the reader opens by a click; it is open in print, and empty if there is no content."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>" if content else ""


def next_steps(steps: Sequence[tuple[str, str]]) -> str:
    """Render suggestions: what each is for, and its command, which one click selects (or no command)."""
    parts = (f"<li>{escape(text)}{f'<pre>{escape(command)}</pre>' if command else ''}</li>" for text, command in steps)
    return f'<ol class="steps">{"".join(parts)}</ol>' if steps else ""


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Render a table of escaped cells; text follows the direction of its script, numbers are right-aligned.

    A cell is a value, a `Cell` with a bar or heat color, or `Html`. A wide table scrolls inside its box.
    """

    def column_attributes(column: Sequence[Any]) -> tuple[str, str]:
        filled = [cell.value if isinstance(cell, Cell) else cell for cell in column if cell != ""]
        if filled and all(map(_is_number, filled)):
            return "n", ""
        is_wide = any(len(_visible_text(cell)) > 40 for cell in filled)
        return ("w" if is_wide else ""), " dir=auto"

    attributes = [column_attributes([row[i] for row in rows]) for i in range(len(header))]

    def table_cell(cell: Any, tag: str, classes: str, direction: str) -> str:
        style = ""
        if isinstance(cell, Cell):
            classes, style = f"{classes} {cell.kind}".strip(), f' style="--share:{100 * cell.share:.4g}%"'
            cell = cell.value
        content = cell.content if isinstance(cell, Html) else escape(_format_cell(cell))
        class_attribute = f' class="{classes}"' if classes else ""
        return f"<{tag}{class_attribute}{direction}{style}>{content}</{tag}>"

    def table_row(cells: Sequence[Any], tag: str) -> str:
        return f"<tr>{''.join(table_cell(cell, tag, *names) for names, cell in zip(attributes, cells))}</tr>"

    header_row = f"<thead>{table_row(header, 'th')}</thead>" if any(header) else ""
    body = "".join(table_row(row, "td") for row in rows)
    return f'<div class="scroll"><table>{header_row}<tbody>{body}</tbody></table></div>'


def code(value: Any) -> str:
    """Render a text, or a value as indented JSON, as a code block."""
    return f"<pre>{escape(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def paragraph(text: str) -> str:
    """Render a paragraph."""
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """Render a note in small print."""
    return f'<p class="note">{escape(text)}</p>'


def quote(text: str) -> str:
    """Render a quotation, in the direction of its script."""
    return f'<blockquote dir="auto">{escape(text)}</blockquote>'


def columns(*parts: str) -> str:
    """Render parts side by side, or below each other on a narrow screen; empty ones are omitted."""
    return f'<div class="side">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def bold(text: str) -> Html:
    """Return a table cell in bold, aligned as it would be otherwise."""
    return Html(f"<b>{escape(text)}</b>", _is_number(text))


def _visible_text(cell: Any) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", cell.content)) if isinstance(cell, Html) else str(cell)


def _is_number(cell: Any) -> bool:
    if isinstance(cell, Html):
        return cell.is_number
    return isinstance(cell, int | float) or (len(str(cell)) < 30 and re.match(r"[-+−]?\d", str(cell)) is not None)


def _format_cell(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.4g}" if isinstance(value, float) else str(value)
