"""Parts of SVG charts: scales, ticks, number formats, text, downsampling."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from polyseme.report.html import escape
from polyseme.report.style import standalone_style

NUM_COLORS = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 3", "6 2 1 2")  # for readers who cannot tell colors apart
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
Points = Sequence[tuple[float, float]]


def color(index: int) -> str:
    """Return the color of a series by its position; the page defines it for light and dark screens."""
    return f"var(--s{index % NUM_COLORS + 1})"


@dataclass(frozen=True)
class Axis:
    """The axis of a chart: its label, and whether it is logarithmic, starts at zero, has integers or percentages."""

    label: str
    log: bool = False
    from_zero: bool = False
    integers: bool = False
    percent: bool = False
    range: tuple[float, float] | None = None

    def format(self, value: float) -> str:
        """Format a tick."""
        return f"{100 * value:.4g}%" if self.percent else format_number(value, 4)


@dataclass(frozen=True)
class Scale:
    """A map from the values of an axis to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    @classmethod
    def fit(cls, values: Sequence[float], axis: Axis, start: float, end: float, margin: float = 0.0) -> "Scale":
        """Fit a scale to the values, with a margin as a share of their range."""
        low, high = axis.range or (min(values), max(values))
        if axis.log:
            ratio = (high / low) ** margin if high > low else 2.0
            return cls(low / ratio, high * ratio, start, end, log=True)
        span = margin * (high - low) if axis.range is None else 0.0
        if high <= low:
            low, high = (low, low + 1) if axis.integers or axis.from_zero else (low - 1, high + 1)
        low = min(low, 0.0) if axis.from_zero else low - span
        return cls(low, high + span, start, end)

    def ticks(self, max_ticks: int, axis: Axis) -> list[float]:
        """Return round numbers within the scale."""
        if not self.log:
            return linear_ticks(self.low, self.high, max_ticks, min_step=1.0 if axis.integers else 0.0)
        return log_ticks(self.low, self.high, max_ticks)


def linear_ticks(low: float, high: float, max_ticks: int, min_step: float = 0.0) -> list[float]:
    """Return about `max_ticks` round numbers in a range, spaced by 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough * 0.999), min_step)
    return [round(step * i, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Return powers of ten in a range, and 2 and 5 times those if there are few; linear ticks in a narrow range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(math.ceil((last - first) / max_ticks), 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        values = [f * 10.0**power for power in range(first, last + 1, stride) for f in factors]
        ticks = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(ticks) >= min(3, max_ticks) or stride > 1:
            return ticks
    return ticks if len(ticks) > 2 else linear_ticks(low, high, max_ticks)


def format_number(value: float, digits: int = 3) -> str:
    """Format a number shortly: 1.5k, 20M, 0.05, 3e-5."""
    size = abs(value)
    for unit, suffix in _UNITS:
        if size >= unit * (10 if suffix == "k" else 1) * 0.9999:
            return f"{value / unit:.{digits}g}{suffix}"
    if size >= 1000:
        return f"{value:,.0f}"
    if 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}g}"


def text_width(text: str, size: float = 12.0) -> float:
    """Estimate the width of a text in pixels from above; East Asian characters are wide, combining ones have none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    narrow = sum(not unicodedata.combining(char) for char in text) - wide
    capitals = sum(char.isupper() or char in "mwMW%@" for char in text)
    return size * (1.1 * wide + 0.6 * narrow + 0.15 * capitals)


def shorten(text: str, max_chars: int) -> str:
    """Shorten a label to a number of characters, with an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def svg_text(x: float, y: float, content: str, anchor: str = "start", attributes: str = "") -> str:
    """Render a text at a position; a part of a style attribute or others may follow."""
    anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchored}{attributes}>{escape(content)}</text>'


def svg_image(
    width: float, height: float, content: str, label: str, scalable: bool = True, font_size: float = 0.0
) -> str:
    """Wrap the parts of a chart; a scalable one fills the column, another keeps its size and may scroll.

    The texts of a narrow chart keep their `font_size` on a phone.
    """
    attributes = 'class="chart"' if scalable else f'width="{width:.0f}" height="{height:.0f}"'
    attributes += f' style="font-size:{font_size:g}px"' if font_size else ""
    return (
        f'<svg {attributes} viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def standalone_svg(chart: str) -> str:
    """Return the first SVG of a chart as the content of a file of its own."""
    start = chart.index('<svg class="chart"') if '<svg class="chart"' in chart else chart.index("<svg")
    svg = chart[start : chart.index("</svg>", start) + len("</svg>")]
    opening, _, rest = svg.partition(">")
    return f"{opening}><style>{standalone_style()}</style>{rest}\n"


def path_of(points: Points) -> str:
    """Return the SVG path of a line through pixels."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def downsample(points: Points, num_bins: int = 300) -> Points:
    """Keep the lowest and the highest point of each of `num_bins` intervals, so that a long curve looks the same."""
    if len(points) <= 2 * num_bins:
        return points
    low, high = points[0][0], points[-1][0]
    width = (high - low) / num_bins or 1.0
    bins: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        bins.setdefault(min(int((point[0] - low) / width), num_bins - 1), []).append(point)
    kept_points = {points[0], points[-1]}
    for group in bins.values():
        kept_points |= {min(group, key=lambda p: p[1]), max(group, key=lambda p: p[1])}
    return sorted(kept_points)
