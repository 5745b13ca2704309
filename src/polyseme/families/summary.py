"""Table of families and sizes, shown in the documentation and by `polyseme families`."""

from functools import cache
from typing import NamedTuple

from polyseme.families import ALL_FAMILIES
from polyseme.nn.model import build_meta


class FamilySummary(NamedTuple):
    """One published size of a family."""

    family: str
    size: str
    num_layers: int
    dim: int
    num_heads: int
    num_params: int
    published_params: str


@cache
def summarize_families() -> tuple[FamilySummary, ...]:
    """Return one row per size, with the parameters of the model without heads counted on the meta device."""
    summaries = []
    for family in ALL_FAMILIES.values():
        for size in family.sizes:
            config = family.model_config(size, with_heads=False)
            num_params = sum(p.numel() for p in build_meta(config).parameters())
            published = f"{family.num_params[size]:,}" if size in family.num_params else ""
            if size in family.paper_params:
                published += f" (paper: {family.paper_params[size]})"
            trunk = config.trunk
            summaries.append(
                FamilySummary(family.name, size, trunk.num_layers, trunk.dim, trunk.num_heads, num_params, published)
            )
    return tuple(summaries)


def format_markdown() -> str:
    """Return the table of families in Markdown."""
    lines = [
        "| family | paper | tokenizer | pre-trained by | sizes (parameters without heads) |",
        "|---|---|---|---|---|",
    ]
    summaries = summarize_families()
    for family in ALL_FAMILIES.values():
        sizes = ", ".join(
            f"{summary.size} {summary.num_params:,}"
            + (f" (paper: {family.paper_params[summary.size]})" if summary.size in family.paper_params else "")
            for summary in summaries
            if summary.family == family.name
        )
        lines.append(f"| `{family.name}` | {family.paper} | {family.tokenizer} | {family.objective} | {sizes} |")
    return "\n".join(lines)
