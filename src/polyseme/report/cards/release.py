"""Sections of the card of a published model: its use, benchmarks, contamination and license.

They are in the metadata of `polyseme.json`: `intended_use` and `limits` (lists of lines), `benchmarks` (rows with
`data`, `metric`, `mean`, and perhaps `std`, `seeds` and `note`), `contamination` (the JSON of `polyseme overlap`),
`command` (the one that trained it) and `license` (`id`, `name`, `url`, `notice`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from polyseme.io.json import has_shape
from polyseme.report.cards.readme import escape, format_code, format_list, format_table

_LICENSE_SHAPE = {"id": str, "name": str, "url": str, "notice": str}
_COUNTS = ("num_examples", "num_compared", "num_contaminated", "num_half_contaminated")
_SHAPES = {
    "intended_use": [str],
    "limits": [str],
    "benchmarks": [{"data": str, "metric": str, "mean": float}],
    "contamination": [{"name": str, "n": int, **dict.fromkeys(_COUNTS, int)}],
    "command": str,
    "license": _LICENSE_SHAPE,
}


def read_release(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a published model that the metadata has in the expected form."""
    return {name: metadata[name] for name, shape in _SHAPES.items() if has_shape(metadata.get(name), shape)}


def release_sections(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each section by its title; empty if the metadata does not have it."""
    facts = read_release(metadata)
    return {
        "Intended use": format_list(facts.get("intended_use", ())),
        "Benchmarks": _format_benchmarks(facts.get("benchmarks", ())),
        "Contamination": _format_contamination(facts.get("contamination", ())),
        "Command": format_code(facts["command"], "bash") if "command" in facts else "",
        "License": _format_license(facts["license"]) if "license" in facts else "",
    }


def _format_benchmarks(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = []
    for row in rows:
        std = f" ± {row['std']:.1f}" if row.get("std") is not None else ""
        cells.append([row["data"], row["metric"], f"{row['mean']:.1f}{std}", row.get("seeds", ""), row.get("note", "")])
    note = "Scores × 100 on dev sets: mean ± standard deviation over the seeds of fine-tuning."
    return f"{note}\n\n" + format_table(["data", "metric", "score", "seeds", "how"], cells)


def _format_contamination(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulate how many texts share an n-gram with the training text."""
    if not rows:
        return ""
    cells = []
    for row in rows:
        share = f"{row['num_contaminated'] / row['num_compared']:.2%}" if row["num_compared"] else "–"
        cells.append([row["name"], row["n"], *(f"{row[name]:,}" for name in _COUNTS), share])
    header = ["set", "n", "texts", "of n words or more", "share an n-gram", "share half of theirs", "rate"]
    note = (
        "Texts of the evaluation sets that have an n-gram of words in common with the training text, as "
        "`polyseme overlap` counts them. The training text was not filtered by them."
    )
    return f"{note}\n\n" + format_table(header, cells)


def _format_license(terms: Mapping[str, Any]) -> str:
    return f"[{escape(terms['name'])}]({terms['url']}). {terms['notice']}"
