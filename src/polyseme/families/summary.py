"""The table of families, generated: what README and `polyseme families` show."""

from __future__ import annotations

from typing import NamedTuple

from polyseme.families import FAMILIES
from polyseme.nn.model import outline


class Row(NamedTuple):
    family: str
    size: str
    layers: int
    dim: int
    heads: int
    parameters: int
    published: str


def rows() -> list[Row]:
    """One row a size, the parameters of the bare model counted on the meta device."""
    found = []
    for family in FAMILIES.values():
        for size in family.sizes:
            spec = family.spec(size, heads=False)
            count = sum(p.numel() for p in outline(spec).parameters())
            published = f"{family.published[size]:,}" if size in family.published else ""
            if size in family.printed:
                published += f" (paper: {family.printed[size]})"
            trunk = spec.trunk
            found.append(Row(family.name, size, trunk.num_layers, trunk.dim, trunk.num_heads, count, published))
    return found


def markdown() -> str:
    """The README's table."""
    lines = [
        "| family | paper | tokenizer | pre-trained by | sizes (parameters without heads) |",
        "|---|---|---|---|---|",
    ]
    counted = rows()
    for family in FAMILIES.values():
        sizes = ", ".join(
            f"{r.size} {r.parameters:,}" + (f" (paper: {family.printed[r.size]})" if r.size in family.printed else "")
            for r in counted
            if r.family == family.name
        )
        lines.append(f"| `{family.name}` | {family.paper} | {family.tokenizer} | {family.objective} | {sizes} |")
    return "\n".join(lines)
