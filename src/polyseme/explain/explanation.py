"""`Explanation`: what looking inside a model gives: a page, its numbers, and its figures."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyseme.errors import ConfigError
from polyseme.io.atomic import ensure_new_file, write_text
from polyseme.report.svg import standalone_svg

PrintedTable = tuple[Sequence[str], Sequence[Sequence[Any]]]  # header and rows


@dataclass(frozen=True)
class Explanation:
    """A self-contained HTML page, the numbers in it as plain values for JSON, and its figures (SVG by name).

    `summary` and `tables` (header and rows) are what the command line prints.
    """

    page: str = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    figures: dict[str, str] = field(repr=False)
    summary: str
    tables: Sequence[PrintedTable] = field(default=(), repr=False)

    def save(self, out: str | Path) -> list[Path]:
        """Write `page.html`, the numbers as `page.json`, and each figure as `page-NAME.svg`; return the paths.

        An existing file is an error, and then nothing is written.
        """
        page = check_page_path(out)
        contents = {page: self.page, page.with_suffix(".json"): format_record(self.record) + "\n"}
        for name, chart in self.figures.items():
            contents[page.with_name(f"{page.stem}-{name}.svg")] = standalone_svg(chart)
        for path in contents:
            ensure_new_file(path)
        for path, content in contents.items():
            write_text(path, content)
        return list(contents)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.page)}" style="width:100%;height:40rem;border:0"></iframe>'


def format_record(value: Any, indent: str = "") -> str:
    """Return JSON with a line per key and per object of a list; a list of numbers or texts stays on one line."""
    deeper = f"{indent}  "
    if isinstance(value, dict) and value:
        lines = [
            f"{json.dumps(name, ensure_ascii=False)}: {format_record(part, deeper)}" for name, part in value.items()
        ]
        return f"{{\n{deeper}" + f",\n{deeper}".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(part, dict) for part in value):
        return f"[\n{deeper}" + f",\n{deeper}".join(format_record(part, deeper) for part in value) + f"\n{indent}]"
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # a lone surrogate is no character


def check_page_path(out: str | Path) -> Path:
    """Return the path of a page; one that does not end in .html is an error, as is an existing page or JSON file."""
    page = Path(out)
    if page.suffix != ".html":
        raise ConfigError(f"the page {page} does not end in .html")
    ensure_new_file(page)
    ensure_new_file(page.with_suffix(".json"))
    return page
