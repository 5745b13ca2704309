"""A chart of labeled points by date, on a logarithmic axis; labels are moved until none covers another."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from polyseme.report.html import escape
from polyseme.report.svg import Axis, Scale, format_number, svg_image, svg_text, text_width

WIDTH, HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 112, 30, 40
_LABEL_HEIGHT = 13
_RADIUS = 4.5
# where a label may be, relative to its point: at the right, then at the left, then further up or down on both sides
_SHIFTS = [0, *(sign * step for step in range(7, 85, 7) for sign in (-1, 1))]


@dataclass(frozen=True)
class TimelinePoint:
    """A value at a date."""

    label: str
    day: date
    value: float


def timeline_chart(points: Sequence[TimelinePoint], y_label: str) -> str:
    """Draw points by date; their values, which have to be positive, are on a logarithmic axis."""
    first, last = min(point.day for point in points), max(point.day for point in points)
    y_axis = Axis(y_label, log=True)
    x_scale = Scale(_months(first) - 1, _months(last) + 1, _LEFT, WIDTH - _RIGHT)
    y_scale = Scale.fit([point.value for point in points], y_axis, HEIGHT - _BOTTOM, _TOP, margin=0.05)
    ticks = y_scale.ticks(6, y_axis)
    grid = "".join(f"M{_LEFT} {y_scale(tick):.1f}H{WIDTH - _RIGHT}" for tick in ticks)
    parts = [
        svg_text(0, 14, y_label, attributes=' style="fill:var(--soft)"'),
        f'<path d="{grid}" style="stroke:var(--grid)"/>',
        *(svg_text(_LEFT - 8, y_scale(tick) + 4, format_number(tick), "end") for tick in ticks),
        _draw_months(first, last, x_scale),
    ]
    pixels = [(x_scale(_months(point.day)), y_scale(point.value)) for point in points]
    for point, (x, y), label in zip(points, pixels, _place_labels(points, pixels)):
        title = f"{point.label}: {format_number(point.value, 4)}, {point.day:%B %Y}"
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" style="fill:var(--s1)">'
        parts.append(f"{circle}<title>{escape(title)}</title></circle>{label}")
    return svg_image(WIDTH, HEIGHT, "".join(parts), f"{y_label} by date", font_size=11.5)


def _months(day: date) -> float:
    return 12 * day.year + day.month - 1


def _draw_months(first: date, last: date, scale: Scale) -> str:
    """Draw the axis: a mark for each quarter, each half year with its name, up to years if there are many."""
    start, end = int(_months(first)), int(_months(last))
    step = next(step for step in (3, 6, 12, 24, 60, 120) if (end - start) / step <= 10)
    bottom = HEIGHT - _BOTTOM
    parts = [f'<path d="M{scale.start:.1f} {bottom}H{scale.end:.1f}" style="stroke:var(--faint)"/>']
    for month in range(start, end + 1):
        if month % step == 0:
            day = date(month // 12, month % 12 + 1, 1)
            text = f"{day:%Y}" if step >= 12 else f"{day:%b %Y}"
            parts.append(f'<path d="M{scale(month):.1f} {bottom}v5" style="stroke:var(--faint)"/>')
            parts.append(svg_text(scale(month), bottom + 20, text, "middle"))
    return "".join(parts)


def _place_labels(points: Sequence[TimelinePoint], pixels: Sequence[tuple[float, float]]) -> list[str]:
    """Return the labels as SVG, each at the first place where it covers neither a point nor an earlier label."""
    boxes = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in pixels]
    labels = []
    for point, (x, y) in zip(points, pixels):
        width = text_width(point.label, 10.5)
        places = [
            (x + 8 if is_right else x - 8 - width, y + shift, is_right, shift)
            for shift in _SHIFTS
            for is_right in (True, False)
        ]
        left, middle, is_right, shift = next(
            (place for place in places if _is_free(place[0], place[1], width, boxes)), places[0]
        )
        boxes.append((left, middle - _LABEL_HEIGHT / 2, left + width, middle + _LABEL_HEIGHT / 2))
        edge = x + 8 if is_right else x - 8
        line = f"M{x:.1f} {y:.1f}L{edge + (-2 if is_right else 2):.1f} {middle:.1f}"
        labels.append(f'<path d="{line}" style="stroke:var(--faint)"/>' * (shift != 0))
        labels[-1] += svg_text(edge, middle + 4, point.label, "start" if is_right else "end")
    return labels


def _is_free(left: float, middle: float, width: float, boxes: Sequence[tuple[float, float, float, float]]) -> bool:
    top, bottom, right = middle - _LABEL_HEIGHT / 2, middle + _LABEL_HEIGHT / 2, left + width
    is_inside = left > _LEFT and right < WIDTH and top > _TOP - 8 and bottom < HEIGHT - _BOTTOM
    return is_inside and not any(left < x1 and right > x0 and top < y1 and bottom > y0 for x0, y0, x1, y1 in boxes)
