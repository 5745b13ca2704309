"""Dot plots: a row for each label, with its values, their mean and an interval, one panel for each quantity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyseme.report.html import escape
from polyseme.report.svg import Axis, Scale, format_number, shorten, svg_image, svg_text, text_width

WIDTH = 440  # a phone shows it at about its size
_ROW_HEIGHT = 18
_TOP, _BOTTOM = 26, 26
_MAX_LABEL = 22
_FONT_SIZE = 12.5


@dataclass(frozen=True)
class Dot:
    """A row of a dot plot: its values, which are drawn faint around their mean; `is_marked` is drawn in another color.

    A row without values is left empty. `unit` is what there is a value for.
    """

    label: str
    values: tuple[float, ...]
    interval: tuple[float, float] | None = None
    is_marked: bool = False
    unit: str = "seed(s)"

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True)
class DotPanel:
    """Rows that share a scale, and a note below the title, such as which direction is better."""

    title: str
    dots: Sequence[Dot]
    note: str = ""

    @property
    def height(self) -> float:
        """The height in pixels."""
        return _TOP + _ROW_HEIGHT * len(self.dots) + _BOTTOM


def dot_chart(panel: DotPanel) -> str:
    """Draw one panel as an image of its own; empty if no row has values."""
    if not any(dot.values for dot in panel.dots):
        return ""
    return svg_image(WIDTH, panel.height, _draw(panel), panel.title, font_size=_FONT_SIZE)


def dot_figure(panels: Sequence[DotPanel], label: str) -> str:
    """Draw panels below each other as one image; those without values are omitted."""
    parts, top = [], 0.0
    for panel in panels:
        if any(dot.values for dot in panel.dots):
            parts.append(f'<g transform="translate(0 {top:.0f})">{_draw(panel)}</g>')
            top += panel.height + 14
    return svg_image(WIDTH, top, "".join(parts), label, False, _FONT_SIZE) if parts else ""


def _draw(panel: DotPanel) -> str:
    names = [shorten(dot.label, _MAX_LABEL) for dot in panel.dots]
    left = 12 + min(max(text_width(name, _FONT_SIZE) for name in names), 0.4 * WIDTH)
    axis = Axis(panel.title)
    scale = Scale.fit(_bounds(panel.dots), axis, left, WIDTH - 14, margin=0.05)
    bottom = _TOP + _ROW_HEIGHT * len(panel.dots)
    ticks = scale.ticks(5, axis)
    grid = "".join(f"M{scale(tick):.1f} {_TOP}V{bottom}" for tick in ticks)
    parts = [
        svg_text(0, 15, panel.title, attributes=' style="font-weight:600"'),
        svg_text(WIDTH, 15, panel.note, "end", ' style="fill:var(--soft)"') if panel.note else "",
        f'<path d="{grid}" style="stroke:var(--grid)"/>',
    ]
    parts += [svg_text(scale(tick), bottom + 16, format_number(tick, 4), "middle") for tick in ticks]
    for row, (dot, name) in enumerate(zip(panel.dots, names)):
        y = _TOP + _ROW_HEIGHT * (row + 0.5)
        faint = "" if dot.values else ' style="fill:var(--faint)"'
        parts.append(svg_text(left - 8, y + 4, name, "end", faint))
        parts.append(_draw_row(dot, scale, y) if dot.values else "")
    return "".join(parts)


def _bounds(dots: Sequence[Dot]) -> list[float]:
    """Return what the scale has to hold: all values, and intervals unless they are far wider than the spread of values.

    An interval from two or three seeds may be so wide that it would hide the differences.
    """
    values = [value for dot in dots for value in dot.values]
    spread = max(values) - min(values)
    low, high = min(values) - 0.5 * spread, max(values) + 0.5 * spread
    ends = [end for dot in dots if dot.values for end in dot.interval or ()]
    return values + ends if not spread else values + [min(max(end, low), high) for end in ends]


def _draw_row(dot: Dot, scale: Scale, y: float) -> str:
    """Draw the interval, cut at the edges of the panel, the values and the mean."""
    color = "var(--s2)" if dot.is_marked else "var(--s1)"
    texts = [f"{dot.label}: {format_number(dot.mean, 4)}"]
    parts = []
    if dot.interval:
        low, high = (min(max(scale(end), scale.start), scale.end) for end in dot.interval)
        parts.append(f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" style="stroke:{color};stroke-width:1.6;opacity:.65"/>')
        texts.append(f"95 % interval {format_number(dot.interval[0], 4)} to {format_number(dot.interval[1], 4)}")
    parts += [
        f'<circle cx="{scale(value):.1f}" cy="{y:.1f}" r="2.6" style="fill:{color};opacity:.4"/>'
        for value in dot.values
        if len(dot.values) > 1
    ]
    texts.append(f"{len(dot.values)} {dot.unit}")
    title = f"<title>{escape(', '.join(texts))}</title>"
    parts.append(f'<circle cx="{scale(dot.mean):.1f}" cy="{y:.1f}" r="4.2" style="fill:{color}">{title}</circle>')
    return "".join(parts)
