"""Read the pages of the documentation, and write the parts of them that are generated.

Run `python tests/design/pages.py` to write the generated tables into their pages.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "polyseme"
README = ROOT / "README.md"
GUIDES = ROOT / "docs" / "guide"
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def pages() -> list[Path]:
    """Return all pages of the documentation."""
    roots = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    return [*roots, *sorted((ROOT / "docs").rglob("*.md"))]


def guides() -> list[Path]:
    """Return the guides in the order in which the README links to them, which is the order of reading."""
    return [ROOT / path for path in re.findall(r"\]\((docs/guide/[^)#]+)\)", read(README))]


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


def section(page: Path, name: str) -> str:
    """Return the part of a page between `<!-- NAME -->` and `<!-- end -->`."""
    match = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", read(page), re.DOTALL)
    assert match, f"{page.name} has no part <!-- {name} --> … <!-- end -->"
    return match[1]


def layers() -> tuple[tuple[str, ...], ...]:
    """Return LAYERS of test_design.py, which is the one table of the import order."""
    tree = ast.parse(read(ROOT / "tests" / "design" / "test_design.py"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LAYERS":
            return ast.literal_eval(node.value)
    raise AssertionError("test_design.py has no LAYERS")


def format_layers() -> str:
    """Format the import order as a table, lowest layer first."""
    lines = ["| layer | may import the layers above it in this table |", "|---|---|"]
    for number, units in enumerate(layers(), 1):
        names = ["polyseme/__init__.py" if unit == "__init__" else unit for unit in units]
        lines.append(f"| {number} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def generated() -> dict[tuple[Path, str], str]:
    """Return the generated parts: (page, name of the part) to its text."""
    from polyseme.families.summary import format_markdown

    return {(README, "families"): format_markdown(), (ARCHITECTURE, "layers"): format_layers()}


if __name__ == "__main__":
    for (target, part), table in generated().items():
        target.write_text(read(target).replace(section(target, part), table + "\n"), encoding="utf-8")
