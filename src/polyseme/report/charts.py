"""Charts: loss curves as hand-written SVG, other charts with matplotlib."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from polyseme.report.html import columns, escape, html_table

_WIDTH, _HEIGHT, _LEFT_MARGIN = 430, 230, 62  # of `line_chart`, in pixels
_COLORS = _GRAY, _BLUE, _ORANGE, _GREEN, _PURPLE = "#8a94a6", "#2b6cb0", "#c05621", "#2f855a", "#6b46c1"


def loss_chart(rows: Sequence[dict[str, Any]], references: dict[str, float] | None = None, unit: str = "nats") -> str:
    """Chart training and validation loss by step, one chart per loss term."""
    charts = []
    for name in sorted({name for row in rows for name in row.get("loss", {})}):
        points = [(r["step"], r["loss"][name]) for r in rows if name in r.get("loss", {})]
        window = len(points) // 40
        series = [Series("training", points, "#b9c4d6" if window > 1 else _BLUE)]
        if window > 1:
            smoothed = np.convolve([value for _, value in points], np.ones(window) / window, "valid").tolist()
            window_ends = [step for step, _ in points[window - 1 :]]
            series.append(Series(f"training, mean of {window}", list(zip(window_ends, smoothed)), _BLUE))
        valid_points = [(r["step"], r["valid"][name]) for r in rows if name in r.get("valid", {})]
        series.append(Series("held-out", valid_points, _ORANGE, show_points=True))
        for label, reference in (references or {}).items():
            ends = [(points[0][0], reference), (points[-1][0], reference)]
            series.append(Series(label, ends, "#5b6478", 'stroke-dasharray="2 3"'))
        charts.append(line_chart(series, "step", f"{name} loss ({unit})"))
    return columns(*charts)


@dataclass(frozen=True)
class Series:
    """A line of a chart; `style` holds extra SVG attributes of its path."""

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    style: str = ""
    show_points: bool = False


def line_chart(series: Sequence[Series], x_label: str, y_label: str) -> str:
    """Draw lines as an inline SVG with integer ticks on the x-axis; points that are not finite are skipped.

    Every run ends with such a chart, and matplotlib would take longer to draw it than a small run takes.
    """
    visible = [replace(line, points=[p for p in line.points if all(map(math.isfinite, p))]) for line in series]
    visible = [line for line in visible if line.points]
    if not visible:
        return ""
    top = 8 + 16 * math.ceil(len(visible) / 2)
    (x0, x1), (y0, y1) = ((min(v), max(v)) for v in zip(*(point for line in visible for point in line.points)))
    x1, margin = max(x1, x0 + 1), 0.04 * (y1 - y0) or 1
    y0, y1 = y0 - margin, y1 + margin

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        pixel_x = _LEFT_MARGIN + (x - x0) / (x1 - x0) * (_WIDTH - _LEFT_MARGIN - 12)
        return pixel_x, top + (y1 - y) / (y1 - y0) * _HEIGHT

    parts: list[str] = []
    for index, line in enumerate(visible):
        parts += _draw_line(line, index, [to_pixels(*point) for point in line.points])
    axes = f"M{_LEFT_MARGIN} {top}v{_HEIGHT}H{_WIDTH}"
    for tick in _ticks(x0, x1, 6, min_step=1):
        x, y = to_pixels(tick, y0)
        axes += f"M{x:.1f} {y:.1f}v4"
        parts.append(_svg_text(x, y + 17, f"{tick:,.10g}"))
    for tick in _ticks(y0, y1, 6):
        x, y = to_pixels(x0, tick)
        axes += f"M{x:.1f} {y:.1f}h-4"
        parts.append(_svg_text(x - 8, y + 4, f"{tick:,.10g}", 'text-anchor="end"'))
    middle, total_height = top + _HEIGHT / 2, top + _HEIGHT + 44
    parts.append(_svg_text((_LEFT_MARGIN + _WIDTH) / 2, top + _HEIGHT + 36, x_label))
    parts.append(_svg_text(12, middle, y_label, f'text-anchor="middle" transform="rotate(-90 12 {middle})"'))
    return (
        f'<svg width="{_WIDTH}" height="{total_height}" viewBox="0 0 {_WIDTH} {total_height}" '
        f'font-size="11" fill="#1c2230" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}'
        f'<path d="{axes}" fill="none" stroke="#5b6478"/></svg>'
    )


def _draw_line(line: Series, index: int, coordinates: list[tuple[float, float]]) -> list[str]:
    """Draw a line, its legend and its points."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in coordinates)
    legend_x, legend_y = _LEFT_MARGIN + 180 * (index % 2), 16 * (index // 2)
    dots = coordinates if line.show_points or len(coordinates) == 1 else ()
    return [
        f'<path d="M{path}M{legend_x} {legend_y + 8}h18" fill="none" stroke="{line.color}" stroke-width="1.6" '
        f"{line.style}/>",
        _svg_text(legend_x + 23, legend_y + 12, line.label, ""),
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{line.color}"/>' for x, y in dots),
    ]


def _svg_text(x: float, y: float, content: str, attributes: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'


def _ticks(low: float, high: float, max_ticks: int, min_step: float = 0.0) -> list[float]:
    """Return about `max_ticks` round numbers in a range, spaced by 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), min_step)
    return [round(step * i, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def histograms(bins_by_name: dict[str, tuple[Sequence[int], Sequence[int]]], y_label: str) -> str:
    """Draw histograms (bin edges, counts) over logarithmic axes; tables if matplotlib is not installed."""
    try:
        figure, axes = _figure(len(bins_by_name), 1, (4.25 * max(len(bins_by_name), 1), 2.9))
    except ImportError:
        tables = []
        for name, (bin_edges, counts) in bins_by_name.items():
            spans = [f"{low:,} to {high - 1:,}" for low, high in pairwise(bin_edges)]
            tables.append(html_table([name, y_label], list(zip(spans, counts))))
        return columns(*tables)
    for (name, (bin_edges, counts)), axis in zip(bins_by_name.items(), axes[0]):
        axis.stairs(counts, bin_edges, fill=True, color=_BLUE, edgecolor="white", linewidth=0.8)
        _label_axes(axis, name, y_label)
        axis.yaxis.set_major_formatter(_format_tick)
    return _to_svg(figure)


def log_line_chart(points: Sequence[tuple[int, int]], x_label: str, y_label: str) -> str:
    """Draw a curve over a logarithmic x-axis; a table if matplotlib is not installed."""
    try:
        figure, ((axis,),) = _figure(1, 1, (4.25, 2.9))
    except ImportError:
        return html_table([x_label, y_label], points)
    axis.plot(*zip(*points), "o-", color=_BLUE, markersize=3)
    axis.set_ylim(bottom=0)
    _label_axes(axis, x_label, y_label)
    axis.yaxis.set_major_formatter(_format_tick)
    return _to_svg(figure)


def mean_std_chart(curves_by_name: dict[str, dict[int, tuple[float, float]]], x_label: str, y_label: str) -> str:
    """Draw curves (x to mean and deviation) over a logarithmic x-axis; a table if matplotlib is not installed."""
    try:
        figure, ((axis,),) = _figure(1, 1, (5.6, 3.4))
    except ImportError:
        xs = sorted({x for curve in curves_by_name.values() for x in curve})
        rows = [[n, *(f"{c[x][0]:.4f}" if x in c else "" for x in xs)] for n, c in curves_by_name.items()]
        return html_table([x_label, *map(str, xs)], rows)
    for (name, curve), color in zip(curves_by_name.items(), _COLORS):
        xs = sorted(curve)
        means, deviations = np.array([curve[x] for x in xs]).T
        axis.plot(xs, means, "o-", color=color, markersize=3.5, label=name)
        axis.fill_between(xs, means - deviations, means + deviations, color=color, alpha=0.15, linewidth=0)
    _label_axes(axis, x_label, y_label)
    axis.legend(frameon=False, fontsize=8)
    return _to_svg(figure)


def attention_grid(tokens: Sequence[str], maps: np.ndarray) -> str:
    """Draw attention maps [layers, heads, tokens, tokens] as a grid; empty if matplotlib is not installed."""
    num_layers, num_heads = maps.shape[:2]
    try:
        size = max(2.4, 0.22 * len(tokens))
        figure, axes = _figure(num_heads, num_layers, (num_heads * size + 1, num_layers * size + 0.6))
    except ImportError:
        return ""
    for layer, head in np.ndindex(num_layers, num_heads):
        axis = axes[layer][head]
        axis.imshow(maps[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="equal")
        axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        axis.set_yticks(range(len(tokens)), tokens if head == 0 else [], fontsize=7)
        axis.spines[:].set_visible(False)
    return _to_svg(figure)


def _figure(num_columns: int, num_rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(num_rows, max(num_columns, 1), squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _format_tick(value: float, _: int) -> str:
    return f"{value:,.0f}"


def _label_axes(axis: Any, x_label: str, y_label: str) -> None:
    """Label both axes; the x-axis is logarithmic."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(_format_tick)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)


def _to_svg(figure: Any) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "polyseme", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
