"""Draw occurrences as points: one layer, or all layers side by side. Each group has a color and a shape."""

from collections.abc import Sequence

import numpy as np

from polyseme.explain.words.analysis import WordLayer
from polyseme.report.html import escape
from polyseme.report.svg import color, shorten, svg_image, svg_text, text_width

WIDTH, HEIGHT, MARGIN = 440, 320, 16
_CELL_WIDTH, _CELL_HEIGHT, _NUM_COLUMNS = 156, 132, 4
_MAX_POINTS = 300  # of each layer where all layers are drawn
# circle, square, triangle, diamond, triangle down, plus, cross, hexagon
SHAPES = (
    "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0Z",
    "M-3.8-3.8h7.6v7.6h-7.6Z",
    "M0-5.2L4.9 3.6H-4.9Z",
    "M0-5.4L5.4 0L0 5.4L-5.4 0Z",
    "M0 5.2L4.9-3.6H-4.9Z",
    "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4Z",
    "M-4.6-2.4L-2.4-4.6L0-2.2L2.4-4.6L4.6-2.4L2.2 0L4.6 2.4L2.4 4.6L0 2.2L-2.4 4.6L-4.6 2.4L-2.2 0Z",
    "M-4.8 0L-2.4-4.3H2.4L4.8 0L2.4 4.3H-2.4Z",
)


def place_points(points: np.ndarray, width: float = WIDTH, height: float = HEIGHT) -> np.ndarray:
    """Return the pixels of points, with one scale for both axes; points that coincide are in the middle."""
    center = (points.max(0) + points.min(0)) / 2
    extent = np.ptp(points, axis=0) / (np.array([width, height]) - 2 * MARGIN)
    scale = extent.max() or 1.0
    pixels: np.ndarray = (points - center) / scale * [1, -1] + np.array([width, height]) / 2
    return pixels.round(1)


def draw_layer(
    layer: WordLayer, groups: Sequence[int], labels: Sequence[str], titles: Sequence[str], has_legend: bool = False
) -> str:
    """Draw one layer; the mouse shows the title of each point. `labels` are those of the groups."""
    marks = _draw_marks(place_points(layer.points), groups, titles)
    frame = f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6" fill="none" stroke="var(--line)"/>'
    top = 0.0
    parts = [f'<g class="marks">{marks}</g>']
    if has_legend:
        legend, top = _draw_legend(labels)
        parts = [legend, f'<g transform="translate(0 {top:.0f})">{frame}{marks}</g>']
    else:
        parts.insert(0, frame)
    label = f"{len(groups)} occurrences in layer {layer.layer}, first two principal components"
    return svg_image(WIDTH, HEIGHT + top, "".join(parts), label, font_size=13)


def draw_all_layers(layers: Sequence[WordLayer], groups: Sequence[int], labels: Sequence[str]) -> str:
    """Draw every layer as a small plot."""
    step = -(-len(groups) // _MAX_POINTS)
    legend, top = _draw_legend(labels, _NUM_COLUMNS * _CELL_WIDTH)
    parts = [legend]
    for i, layer in enumerate(layers):
        x, y = i % _NUM_COLUMNS * _CELL_WIDTH, top + i // _NUM_COLUMNS * _CELL_HEIGHT
        width, height = _CELL_WIDTH - 10, _CELL_HEIGHT - 26
        frame = f'<rect width="{width}" height="{height}" rx="4" fill="none" stroke="var(--line)"/>'
        marks = _draw_marks(place_points(layer.points, width, height)[::step], groups[::step], (), 0.7)
        name = "embeddings" if layer.layer == 0 else f"layer {layer.layer}"
        title = svg_text(2, height + 14, name, attributes=' style="fill:var(--soft)"')
        parts.append(f'<g transform="translate({x} {y:.0f})">{frame}{marks}{title}</g>')
    num_rows = -(-len(layers) // _NUM_COLUMNS)
    width = min(len(layers), _NUM_COLUMNS) * _CELL_WIDTH if len(layers) < _NUM_COLUMNS else _NUM_COLUMNS * _CELL_WIDTH
    label = f"occurrences in {len(layers)} layers"
    return svg_image(width, top + num_rows * _CELL_HEIGHT, "".join(parts), label, scalable=len(layers) > 1)


def legend_items(labels: Sequence[str]) -> str:
    """Return the groups as an HTML list, as the script of the page writes it, too."""
    marks = (
        f'<li><svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true"><path d="{_shape(i)}" '
        f'style="fill:{color(i)}"/></svg>{escape(label)}</li>'
        for i, label in enumerate(labels)
    )
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _shape(group: int) -> str:
    return SHAPES[group % len(SHAPES)]


def _draw_marks(pixels: np.ndarray, groups: Sequence[int], titles: Sequence[str], scale: float = 1.0) -> str:
    """Draw points; with titles, these can be told apart by the script of the page."""
    size = f" scale({scale:g})" if scale != 1 else ""
    marks = []
    for i, ((x, y), group) in enumerate(zip(pixels, groups)):
        attributes, content = (f' data-i="{i}"', f"<title>{escape(titles[i])}</title>") if titles else ("", "")
        marks.append(
            f'<path{attributes} transform="translate({x:g} {y:g}){size}" d="{_shape(group)}" '
            f'style="fill:{color(group)};fill-opacity:.8">{content}</path>'
        )
    return "".join(marks)


def _draw_legend(labels: Sequence[str], max_width: float = WIDTH) -> tuple[str, float]:
    """Draw the groups in lines above a plot; return them and their height."""
    parts, x, y = [], 8.0, 14.0
    for i, label in enumerate(labels):
        text = shorten(label, 30)
        width = 26 + text_width(text)
        if x + width > max_width and x > 8:
            x, y = 8.0, y + 20
        parts.append(f'<path transform="translate({x:.0f} {y - 4:.0f})" d="{_shape(i)}" style="fill:{color(i)}"/>')
        parts.append(svg_text(x + 10, y, text))
        x += width
    return "".join(parts), y + 12 if labels else 0.0
