"""Charts as inline SVG: lines, bars with intervals, scatter plots, histograms, reliability diagrams.

Colors are variables of the page, so that charts follow its light, dark and print style. No chart needs a package.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyseme.report.html import escape
from polyseme.report.svg import (
    DASHES,
    Axis,
    Points,
    Scale,
    color,
    downsample,
    format_number,
    path_of,
    shorten,
    svg_image,
    svg_text,
    text_width,
)

WIDTH = 640  # of a chart's coordinates; it is scaled to its column
_X_AXIS_HEIGHT = 46
_LABEL_SIZE = 18  # of texts on a phone, in these coordinates: margins are wide enough for it
_MAX_LABEL = 40  # characters of a line's label
_MAX_DIRECT_LABEL = 14  # characters of a label at the end of a line; longer labels are in a legend above the chart


@dataclass(frozen=True)
class Series:
    """A line of a chart; one without a label has no legend.

    `band` holds (x, low, high) of an area around it, for instance of a standard deviation. `point_labels` are written
    above the points, except for those that would overlap.
    """

    label: str
    points: Points
    color: str = ""
    dash: str | None = None
    show_points: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    is_faint: bool = False
    point_labels: Sequence[str] = ()
    radius: float = 3.2  # of points


@dataclass(frozen=True)
class Panel:
    """One of several line charts above each other that share their x-axis."""

    series: Sequence[Series]
    y: Axis
    height: float = 260


def line_chart(
    series: Sequence[Series], x: Axis | str, y: Axis | str, height: float = 260, direct_labels: bool | None = None
) -> str:
    """Draw lines; points that are not finite, or not positive on a logarithmic axis, are skipped.

    Few lines with short labels are labeled at their ends, others in a legend above the chart, unless `direct_labels`
    says which.
    """
    return panel_chart([Panel(series, _as_axis(y), height)], x, direct_labels)


def panel_chart(panels: Sequence[Panel], x: Axis | str, direct_labels: bool | None = None) -> str:
    """Draw line charts above each other on one x-axis; those without points are omitted."""
    x = _as_axis(x)
    visible = [replace(panel, series=_visible_series(panel, x)) for panel in panels]
    visible = [panel for panel in visible if panel.series]
    if not visible:
        return ""
    labels = [line.label for panel in visible if len(panel.series) > 1 for line in panel.series if line.label]
    is_direct = len(labels) <= 8 and all(len(label) <= _MAX_DIRECT_LABEL for label in labels)
    label_size = _LABEL_SIZE if direct_labels is None else 12
    is_direct = is_direct if direct_labels is None else direct_labels
    right = 10 + (max((text_width(label, label_size) for label in labels), default=14) if is_direct else 18)
    y_scales = [_y_scale(panel) for panel in visible]
    ticks = [
        [(tick, panel.y.format(tick)) for tick in scale.ticks(max(2, int(panel.height / 45)), panel.y)]
        for panel, scale in zip(visible, y_scales)
    ]
    left = 12 + max(text_width(text, _LABEL_SIZE) for labeled in ticks for _, text in labeled or [(0, "0")])
    xs = [point[0] for panel in visible for line in panel.series for point in line.points]
    x_scale = Scale.fit(xs, x, left, WIDTH - right)
    parts, top = [], 0.0
    for panel, scale, labeled in zip(visible, y_scales, ticks):
        parts.append(
            f'<g transform="translate(0 {top:.0f})">{_draw_panel(panel, x_scale, scale, labeled, is_direct)}</g>'
        )
        top += 28 + panel.height + 16
    parts.append(_draw_x_axis(x_scale, x, top - 16))
    label = "; ".join(f"{panel.y.label} by {x.label}" for panel in visible)
    legend = "" if is_direct or not labels else _legend([line for panel in visible for line in panel.series])
    return legend + svg_image(WIDTH, top - 16 + _X_AXIS_HEIGHT, "".join(parts), label)


def _as_axis(axis: Axis | str) -> Axis:
    return Axis(axis) if isinstance(axis, str) else axis


def _visible_series(panel: Panel, x: Axis) -> list[Series]:
    """Return the lines with their drawable points, colors and dashes."""

    def is_drawable(point: Sequence[float]) -> bool:
        is_positive = (point[0] > 0 or not x.log) and (point[1] > 0 or not panel.y.log)
        return all(map(math.isfinite, point)) and is_positive

    series = []
    for index, line in enumerate(panel.series):
        points = downsample([(float(a), float(b)) for a, b in line.points if is_drawable((a, b))])
        if points:
            band = [triple for triple in line.band if is_drawable(triple)]
            dash = DASHES[index % len(DASHES)] if line.dash is None else line.dash
            label = shorten(line.label, _MAX_LABEL)
            line_color = line.color or color(index)
            series.append(replace(line, label=label, points=points, band=band, color=line_color, dash=dash))
    return series


def _y_scale(panel: Panel) -> Scale:
    values = [point[1] for line in panel.series for point in line.points]
    values += [bound for line in panel.series for triple in line.band for bound in triple[1:]]
    return Scale.fit(values, panel.y, 28 + panel.height, 28, margin=0.04)


def _draw_panel(
    panel: Panel, x_scale: Scale, y_scale: Scale, ticks: Sequence[tuple[float, str]], is_direct: bool
) -> str:
    """Draw one panel: grid, y-axis labels, lines, and labels at the ends of the lines."""
    parts = [svg_text(0, 14, panel.y.label, attributes=' style="fill:var(--soft)"')]
    grid = "".join(f"M{x_scale.start:.1f} {y_scale(tick):.1f}H{x_scale.end:.1f}" for tick, _ in ticks)
    parts.append(f'<path d="{grid}" style="stroke:var(--grid)"/>')
    parts += [svg_text(x_scale.start - 8, y_scale(tick) + 4, text, "end") for tick, text in ticks]
    for line in panel.series:
        parts.append(_draw_line(line, x_scale, y_scale))
    if is_direct and len(panel.series) > 1:
        labeled = [line for line in panel.series if line.label]
        heights = _spread([y_scale(line.points[-1][1]) for line in labeled], 19)
        parts += [
            svg_text(x_scale.end + 7, y + 4, line.label, attributes=f' style="fill:{line.color}"')
            for line, y in zip(labeled, heights)
        ]
    return "".join(parts)


def _draw_line(line: Series, x_scale: Scale, y_scale: Scale) -> str:
    """Draw a line with its band and points; the mouse shows the values of points."""
    pixels = [(x_scale(x), y_scale(y)) for x, y in line.points]
    parts = []
    if line.band:
        upper = [(x_scale(x), y_scale(high)) for x, _, high in line.band]
        lower = [(x_scale(x), y_scale(low)) for x, low, _ in reversed(line.band)]
        parts.append(f'<path d="{path_of([*upper, *lower])}Z" style="fill:{line.color};opacity:.16"/>')
    dash = f";stroke-dasharray:{line.dash}" if line.dash else ""
    faint = ";opacity:.35;stroke-width:1.2" if line.is_faint else ";stroke-width:2"
    title = f"<title>{escape(line.label)}</title>" if line.label else ""
    parts.append(
        f'<path d="{path_of(pixels)}" fill="none" stroke-linejoin="round" '
        f'style="stroke:{line.color}{faint}{dash}">{title}</path>'
    )
    if line.show_points or len(pixels) == 1:
        prefix = f"{line.label}: " if line.label else ""
        for (x, y), (px, py) in zip(line.points, pixels):
            label = f"{prefix}{format_number(y, 4)} at {format_number(x, 4)}"
            position = f'cx="{px:.1f}" cy="{py:.1f}" r="{line.radius:g}"'
            parts.append(f'<circle {position} style="fill:{line.color}"><title>{escape(label)}</title></circle>')
    return "".join(parts) + _draw_point_labels(line, pixels, x_scale)


def _draw_point_labels(line: Series, pixels: Points, x_scale: Scale) -> str:
    """Write labels above the points of a line, from right to left; one that would overlap is left out."""
    parts: list[str] = []
    left, height = math.inf, 0.0
    for (x, y), label in reversed(list(zip(pixels, line.point_labels))):
        half = text_width(label, _LABEL_SIZE) / 2
        x = max(min(x, x_scale.end + 18 - half), x_scale.start + half)
        if x + half > left and abs(y - height) < _LABEL_SIZE:
            continue
        left, height = x - half, y
        parts.append(svg_text(x, y - 9, label, "middle", f' style="fill:{line.color}"'))
    return "".join(parts)


def _draw_x_axis(x_scale: Scale, x: Axis, y: float) -> str:
    ticks = x_scale.ticks(6, x)
    marks = "".join(f"M{x_scale(tick):.1f} {y:.1f}v5" for tick in ticks)
    parts = [
        f'<path d="M{x_scale.start:.1f} {y:.1f}H{x_scale.end:.1f}{marks}" fill="none" style="stroke:var(--faint)"/>'
    ]
    parts += [svg_text(x_scale(tick), y + 20, x.format(tick), "middle") for tick in ticks]
    middle = (x_scale.start + x_scale.end) / 2
    parts.append(svg_text(middle, y + 39, x.label, "middle", ' style="fill:var(--soft)"'))
    return "".join(parts)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move label positions apart so that they do not overlap; their order stays."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for _ in range(20):
        for i in range(len(placed) - 1):
            overlap = gap - (placed[i + 1] - placed[i])
            if overlap > 0.01:
                placed[i], placed[i + 1] = placed[i] - overlap / 2, placed[i + 1] + overlap / 2
    return [placed[order.index(i)] for i in range(len(heights))]


def _legend(series: Sequence[Series]) -> str:
    entries = {line.label: line for line in reversed(series) if line.label}
    parts = []
    for label, line in reversed(entries.items()):
        dash = f";stroke-dasharray:{line.dash}" if line.dash else ""
        sample = f'<path d="M1 6h24" style="stroke:{line.color};stroke-width:2.5{dash}"/>'
        parts.append(f'<li><svg width="26" height="12" aria-hidden="true">{sample}</svg>{escape(label)}</li>')
    return f'<ul class="legend">{"".join(parts)}</ul>'


def loss_chart(
    rows: Sequence[Mapping[str, Any]], references: Mapping[str, float] | None = None, unit: str = "nats"
) -> str:
    """Chart training and held-out loss by step from the rows of a log, one panel per loss term."""
    return panel_chart(loss_panels(rows, references, unit), Axis("step", integers=True))


def loss_panels(
    rows: Sequence[Mapping[str, Any]], references: Mapping[str, float] | None = None, unit: str = "nats"
) -> list[Panel]:
    """Return a panel of training and held-out loss for each loss term of a log; references are dotted lines."""
    panels: list[Panel] = []
    for name in sorted({name for row in rows for name in row.get("loss", {})}):
        points = [(r["step"], r["loss"][name]) for r in rows if name in r.get("loss", {})]
        series = smoothed_series("training", points, color(0))
        valid_points = [(r["step"], r["valid"][name]) for r in rows if name in r.get("valid", {})]
        series.append(Series("held-out", valid_points, color(1), "", show_points=True))
        for label, reference in (references or {}).items():
            ends = [(points[0][0], reference), (points[-1][0], reference)]
            series.append(Series(label, ends, "var(--s8)", "2 3"))
        panels.append(Panel(series, Axis(f"{name} loss ({unit})"), 140 if panels else 260))
    return panels


def smoothed_series(label: str, points: Points, line_color: str) -> list[Series]:
    """Return a line, or for many points their moving mean before a faint line of all points."""
    window = len(points) // 40
    if window <= 1:
        return [Series(label, points, line_color, "")]
    smoothed = np.convolve([value for _, value in points], np.ones(window) / window, "valid").tolist()
    centers = [step for step, _ in points[(window - 1) // 2 :]]
    return [
        Series("", points, line_color, "", is_faint=True),
        Series(label, list(zip(centers, smoothed)), line_color, ""),
    ]


@dataclass(frozen=True)
class Bar:
    """A bar with its interval, if it has one; `is_reference` draws it in gray."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    is_reference: bool = False
    text: str = ""


def bar_chart(bars: Sequence[Bar], axis: Axis | str) -> str:
    """Draw horizontal bars from zero, each below its label, with whiskers for the intervals."""
    bars = [bar for bar in bars if math.isfinite(bar.value)]
    if not bars:
        return ""
    axis = replace(_as_axis(axis), from_zero=True)
    texts = [bar.text or format_number(bar.value, 4) for bar in bars]
    values = [bound for bar in bars for bound in (bar.value, *(bar.interval or ()))]
    right = 16 + max(text_width(text, _LABEL_SIZE) for text in texts)
    scale = Scale.fit([0.0, *values], axis, 8, WIDTH - right)
    parts = []
    for i, (bar, text) in enumerate(zip(bars, texts)):
        y = 48 * i
        fill = "var(--s8)" if bar.is_reference else "var(--s1)"
        start, end = sorted((scale(0.0), scale(bar.value)))
        title = f"<title>{escape(bar.label)}: {escape(text)}</title>"
        parts.append(svg_text(8, y + 15, bar.label))
        parts.append(
            f'<rect x="{start:.1f}" y="{y + 22}" width="{max(end - start, 1):.1f}" height="16" rx="2" '
            f'style="fill:{fill}">{title}</rect>'
        )
        if bar.interval:
            low, high = scale(bar.interval[0]), scale(bar.interval[1])
            path = f"M{low:.1f} {y + 30}H{high:.1f}M{low:.1f} {y + 25}v10M{high:.1f} {y + 25}v10"
            parts.append(f'<path d="{path}" fill="none" style="stroke:var(--ink);stroke-width:1.6"/>')
            end = max(end, high)
        parts.append(svg_text(end + 8, y + 35, text))
    height = 48 * len(bars) + 4
    return svg_image(WIDTH, height + _X_AXIS_HEIGHT, "".join(parts) + _draw_x_axis(scale, axis, height), axis.label)


@dataclass(frozen=True)
class ScatterPoint:
    """A labeled point with an interval of its y value, if it has one."""

    label: str
    x: float
    y: float
    interval: tuple[float, float] | None = None


def scatter_chart(points: Sequence[ScatterPoint], x: Axis | str, y: Axis | str, front: Sequence[str] = ()) -> str:
    """Draw labeled points with intervals; the points named in `front` are connected, such as a Pareto front."""
    x, y = _as_axis(x), _as_axis(y)
    points = [p for p in points if all(map(math.isfinite, (p.x, p.y))) and (p.x > 0 or not x.log)]
    if not points:
        return ""
    height = 340
    values = [bound for p in points for bound in (p.y, *(p.interval or ()))]
    y_scale = Scale.fit(values, y, 28 + height, 28, margin=0.08)
    ticks = [(tick, y.format(tick)) for tick in y_scale.ticks(7, y)]
    left = 12 + max(text_width(text, _LABEL_SIZE) for _, text in ticks or [(0, "0")])
    x_scale = Scale.fit([p.x for p in points], x, left, WIDTH - 24, margin=0.06)
    lines = [Series("", sorted((p.x, p.y) for p in points if p.label in front), "var(--s3)", "5 3")] if front else []
    parts = [_draw_panel(Panel(lines, y, height), x_scale, y_scale, ticks, is_direct=False)]
    for point in points:
        px, py = x_scale(point.x), y_scale(point.y)
        fill = "var(--s3)" if point.label in front else "var(--s1)"
        if point.interval:
            low, high = map(y_scale, point.interval)
            parts.append(f'<path d="M{px:.1f} {low:.1f}V{high:.1f}" style="stroke:{fill};stroke-width:1.6"/>')
        title = f"{point.label}: {format_number(point.y, 4)} at {format_number(point.x, 4)}"
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" style="fill:{fill}"><title>{escape(title)}</title></circle>'
        )
        is_left = px > WIDTH / 2
        parts.append(
            svg_text(
                px - 9 if is_left else px + 9,
                py - 6 if is_left else py + 16,
                point.label,
                "end" if is_left else "start",
            )
        )
    parts.append(_draw_x_axis(x_scale, x, 28 + height))
    return svg_image(WIDTH, 28 + height + _X_AXIS_HEIGHT, "".join(parts), f"{y.label} by {x.label}")


def histogram(bin_edges: Sequence[float], counts: Sequence[int], x: Axis | str, y_label: str) -> str:
    """Draw a histogram; the first edge of a logarithmic axis has to be positive."""
    x, height = _as_axis(x), 240
    if not sum(counts):
        return ""
    y = Axis(y_label, from_zero=True, integers=True)
    y_scale = Scale.fit([0, max(counts)], y, 28 + height, 28, margin=0.04)
    ticks = [(tick, y.format(tick)) for tick in y_scale.ticks(5, y)]
    left = 12 + max(text_width(text, _LABEL_SIZE) for _, text in ticks)
    x_scale = Scale.fit(bin_edges, x, left, WIDTH - 30)
    bars = []
    for low, high, count in zip(bin_edges, bin_edges[1:], counts):
        if count:
            start, width, top = x_scale(low), x_scale(high) - x_scale(low), y_scale(count)
            title = f"<title>{format_number(low, 4)} to {format_number(high, 4)}: {count:,}</title>"
            size = f'width="{max(width - 1, 0.5):.1f}" height="{28 + height - top:.1f}"'
            bars.append(f'<rect x="{start:.1f}" y="{top:.1f}" {size}>{title}</rect>')
    parts = [_draw_panel(Panel([], y, height), x_scale, y_scale, ticks, is_direct=False)]
    parts += [f'<g style="fill:var(--s1)">{"".join(bars)}</g>', _draw_x_axis(x_scale, x, 28 + height)]
    return svg_image(WIDTH, 28 + height + _X_AXIS_HEIGHT, "".join(parts), f"histogram: {y_label} by {x.label}")


def reliability_chart(bins: Sequence[tuple[float, float, int]]) -> str:
    """Draw a reliability diagram: (mean confidence, accuracy, number of predictions) of each bin, and the diagonal.

    The area of a point grows with its number of predictions.
    """
    filled = [(confidence, accuracy, count) for confidence, accuracy, count in bins if count]
    if not filled:
        return ""
    x, y = (Axis(label, percent=True, range=(0.0, 1.0)) for label in ("confidence of the model", "share that is right"))
    height, largest = 320, max(count for _, _, count in filled)
    y_scale = Scale.fit([0, 1], y, 28 + height, 28)
    ticks = [(tick, y.format(tick)) for tick in y_scale.ticks(5, y)]
    x_scale = Scale.fit([0, 1], x, 62, WIDTH - 150)
    lines = [
        Series("", [(0, 0), (1, 1)], "var(--faint)", "4 4"),
        Series("model", [(confidence, accuracy) for confidence, accuracy, _ in filled], "var(--s1)", ""),
    ]
    parts = [_draw_panel(Panel(lines, y, height), x_scale, y_scale, ticks, is_direct=False)]
    parts.append(svg_text(x_scale(1) + 8, y_scale(1) + 4, "calibrated", attributes=' style="fill:var(--soft)"'))
    for confidence, accuracy, count in filled:
        title = f"confidence {confidence:.1%}, right {accuracy:.1%}, {count:,} predictions"
        radius = 3 + 9 * math.sqrt(count / largest)
        parts.append(
            f'<circle cx="{x_scale(confidence):.1f}" cy="{y_scale(accuracy):.1f}" r="{radius:.1f}" '
            f'style="fill:var(--s1);fill-opacity:.75"><title>{escape(title)}</title></circle>'
        )
    parts.append(_draw_x_axis(x_scale, x, 28 + height))
    return svg_image(WIDTH, 28 + height + _X_AXIS_HEIGHT, "".join(parts), "reliability diagram: accuracy by confidence")


def mean_std_chart(curves_by_name: dict[str, dict[int, tuple[float, float]]], x: Axis, y_label: str) -> str:
    """Draw curves (x to mean and standard deviation) with bands of one deviation."""
    series = []
    for name, curve in curves_by_name.items():
        points = [(at, mean) for at, (mean, _) in sorted(curve.items())]
        band = [(at, mean - std, mean + std) for at, (mean, std) in sorted(curve.items())]
        series.append(
            Series(name, points, show_points=True, band=band if any(std for _, std in curve.values()) else ())
        )
    return line_chart(series, x, y_label)
