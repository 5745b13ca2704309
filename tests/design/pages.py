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
STUDIES = ROOT / "docs" / "results" / "studies.md"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def pages() -> list[Path]:
    """Return all pages of the documentation."""
    roots = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    return [*roots, *sorted((ROOT / "docs").rglob("*.md"))]


def guides() -> list[Path]:
    """Return the guides in reading order, which is the order of the README's section "Read more"."""
    contents = read(README).split("\n## Read more\n")[1]
    return [ROOT / path for path in re.findall(r"\]\((docs/guide/[^)#]+)\)", contents)]


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
        names = [f"polyseme/{unit}.py" if unit.startswith("__") else unit for unit in units]
        lines.append(f"| {number} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def generated() -> dict[tuple[Path, str], str]:
    """Return the generated parts: (page, name of the part) to its text."""
    from polyseme.families import summary as families
    from polyseme.studies.catalog import summary as studies

    return {
        (GUIDES / "families.md", "families"): families.format_markdown(),
        (ARCHITECTURE, "layers"): format_layers(),
        (STUDIES, "studies"): studies.format_markdown(),
    }


if __name__ == "__main__":
    for (target, part), table in generated().items():
        start, end = f"<!-- {part} -->\n", "<!-- end -->"
        before, rest = read(target).split(start)
        after = rest.split(end, 1)[1]
        target.write_text(before + start + table + "\n" + end + after, encoding="utf-8")
