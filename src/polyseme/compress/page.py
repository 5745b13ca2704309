"""The page of a compressed model: what was done, before and after, and quality against size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from polyseme.report.charts import Series, line_chart
from polyseme.report.html import (
    bold,
    code,
    collapsed,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    note,
    paragraph,
)
from polyseme.report.svg import Axis

if TYPE_CHECKING:
    from polyseme.compress.result import CompressionResult, CompressionRow, CurvePoint

LOG_RANGE = 4.0  # of sizes from which on their axis is logarithmic
CAPTION = "Each point is a model. Up is better if the score counts what is right, down if it is a loss."


def compression_page(compressed: CompressionResult) -> str:
    """Return one self-contained page of a compressed."""
    summary, *notes = compressed.notes or ("A smaller model.",)
    sections = [
        ("Before and after", _comparison(compressed)),
        (f"Quality against {compressed.curve_unit}", _curve_section(compressed)),
        ("Notes", "".join(map(paragraph, notes))),
        ("Settings", _settings(compressed.record)),
    ]
    return html_page(
        f"Compression: {compressed.out.name}", escape(summary), sections, key_figures(_figures(compressed))
    )


def _figures(compressed: CompressionResult) -> list[tuple[str, str, str]]:
    """Return cards of the size, the first speed and the quality after compression, each with its ratio or change."""
    figures = [(row.measure, row.cells[2], _change(row)) for row in compressed.rows if row.measure != "parameters"]
    return figures[:4]


def _change(row: CompressionRow) -> str:
    _, before, _, ratio = row.cells
    return f"before: {before}" + ("" if row.ratio is None else f" (× {ratio})")


def _comparison(compressed: CompressionResult) -> str:
    header, rows = compressed.table
    device = compressed.record.get("device")
    return html_table(header, rows) + (note(f"Times: median of single texts, {device}.") if device else "")


def _curve_section(compressed: CompressionResult) -> str:
    """Draw the curve, one line per series, with the original and the model that was written; list its points."""
    points = [point for point in compressed.curve if math.isfinite(point.size) and math.isfinite(point.score)]
    if not points:
        return ""
    sizes = [point.size for point in points]
    is_log = min(sizes) > 0 and max(sizes) / min(sizes) >= LOG_RANGE
    series = [_series(name, points) for name in dict.fromkeys(point.series for point in points)]
    series[1:] = [replace(line, point_labels=()) for line in series[1:]]
    marked = {"original": points[:1], "this model": [point for point in points if point.chosen]}
    series += [
        Series(name, [(p.size, p.score) for p in chosen], color, show_points=True, radius=6)
        for (name, chosen), color in zip(marked.items(), ("var(--s8)", "var(--s4)"))
        if chosen
    ]
    chart = line_chart(series, Axis(compressed.curve_unit, log=is_log), Axis(compressed.curve_metric), height=320)
    return figure(chart, CAPTION) + _curve_table(compressed, points)


def _series(name: str, points: Sequence[CurvePoint]) -> Series:
    ordered = sorted((point for point in points if point.series == name), key=lambda point: point.size)
    band = [(p.size, p.score - (p.std or 0), p.score + (p.std or 0)) for p in ordered]
    return Series(
        name or "amounts",
        [(point.size, point.score) for point in ordered],
        show_points=True,
        band=band if any(point.std for point in ordered) else (),
        point_labels=[point.label for point in ordered],
    )


def _curve_table(compressed: CompressionResult, points: Sequence[CurvePoint]) -> str:
    has_series = len({point.series for point in points}) > 1
    rows = []
    for point in points:
        score = f"{point.score:.4g}" + ("" if point.std is None else f" ± {point.std:.2g}")
        cells = [*([point.series or "–"] if has_series else []), point.label, f"{point.size:,.4g}", score]
        rows.append([bold(cell) for cell in cells] if point.chosen else cells)
    header = [*(["series"] if has_series else []), "model", compressed.curve_unit, compressed.curve_metric]
    return html_table(header, rows) + (note("Bold: the model in this folder.") if any(p.chosen for p in points) else "")


def _settings(record: Mapping[str, Any]) -> str:
    """List plain settings as a table; the rest is collapsed."""
    plain = [[name, _format(value)] for name, value in record.items() if not isinstance(value, dict | list | tuple)]
    nested = {name: value for name, value in record.items() if isinstance(value, dict | list | tuple)}
    table = html_table(["setting", "value"], plain) if plain else ""
    return table + collapsed("Details", code(nested) if nested else "")


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "yes" if value is True else "no" if value is False else "–" if value in (None, "") else f"{value}"
