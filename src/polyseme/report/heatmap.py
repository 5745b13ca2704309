"""Heat maps as inline SVG: confusion matrices, attention maps, grids of scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyseme.report.html import escape
from polyseme.report.svg import shorten, svg_image, svg_text, text_width

_MAX_LABEL = 28  # characters
_MAX_TITLES = 2500  # cells that the mouse explains
_NUM_SHADES = 16
_MAX_OPACITY = 0.7  # so that texts in the cells stay readable


@dataclass(frozen=True)
class Labels:
    """Labels of the rows and columns of a heat map, and what they are."""

    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str = ""
    column_title: str = ""


def heat_map(
    values: np.ndarray,
    labels: Labels,
    cell_size: float = 26,
    texts: Sequence[Sequence[str]] | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> str:
    """Draw a matrix with its labels at the sides; `texts` stand in the cells, which widen to fit them.

    The map keeps its size; a large one scrolls inside its box. Long labels are shortened, with the whole one shown by
    the mouse.
    """
    if not values.size:
        return ""
    rows, columns = ([shorten(str(label), _MAX_LABEL) for label in side] for side in (labels.rows, labels.columns))
    cell_width = max([cell_size, *(text_width(text) + 8 for row in texts or () for text in row)])
    are_flat = all(text_width(label) < cell_width - 4 for label in columns)
    left = 8 + max(text_width(label) for label in (*rows, labels.row_title))
    column_title_height = 20.0 if labels.column_title else 2.0
    top = column_title_height + (18 if are_flat else 8 + max([text_width(label) for label in columns] + [0.0]))
    num_rows, num_columns = values.shape
    parts = []
    for i, full in enumerate(labels.rows):
        parts.append(_label(left - 6, top + (i + 0.5) * cell_size + 4, rows[i], full, "end"))
    for j, full in enumerate(labels.columns):
        x = left + (j + 0.5) * cell_width
        rotation = "" if are_flat else f' transform="rotate(-90 {x + 4:.1f} {top - 6:.1f})"'
        parts.append(
            _label(x if are_flat else x + 4, top - 6, columns[j], full, "middle" if are_flat else "start", rotation)
        )
    parts.append(draw_cells(values, labels, (left, top), (cell_width, cell_size), scale))
    for i, row in enumerate(texts or ()):
        for j, text in enumerate(row):
            x, y = left + (j + 0.5) * cell_width, top + (i + 0.5) * cell_size + 4
            parts.append(svg_text(x, y, text, "middle", ' pointer-events="none"'))
    soft = ' style="fill:var(--soft)"'
    width = left + num_columns * cell_width
    width = max(width, left + text_width(labels.column_title))
    parts.append(svg_text(left, 13, labels.column_title, attributes=soft) if labels.column_title else "")
    parts.append(svg_text(left - 6, top - 6, labels.row_title, "end", soft) if labels.row_title else "")
    name = f"heat map: {labels.row_title or 'rows'} by {labels.column_title or 'columns'}"
    return svg_image(width + 4, top + num_rows * cell_size + 4, "".join(parts), name, scalable=False)


def draw_cells(
    values: np.ndarray,
    labels: Labels | None,
    origin: tuple[float, float],
    cell: tuple[float, float],
    scale: tuple[float, float] = (0.0, 1.0),
) -> str:
    """Draw the cells of a matrix and their frame at a place; with labels, the mouse shows them and the value.

    Without labels, or if there are many cells, the cells of each of 16 shades are one path, which is far smaller.
    """
    (left, top), (width, height), (low, high) = origin, cell, scale
    num_rows, num_columns = values.shape
    frame = f'x="{left:.1f}" y="{top:.1f}" width="{num_columns * width:.1f}" height="{num_rows * height:.1f}"'
    parts = [f'<rect {frame} style="fill:var(--tint);stroke:var(--line)"/><g style="fill:var(--s1)">']
    shares = np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)
    if labels is None or values.size > _MAX_TITLES:
        shades = np.round(shares * _NUM_SHADES).astype(int)
        for shade in range(1, _NUM_SHADES + 1):
            rows, columns = np.nonzero(shades == shade)
            places = zip((top + rows * height).tolist(), (left + columns * width).tolist())
            path = "".join(f"M{x:g} {y:g}h{width:g}v{height:g}h-{width:g}" for y, x in places)
            parts.append(f'<path d="{path}" fill-opacity="{_MAX_OPACITY * shade / _NUM_SHADES:.2f}"/>' if path else "")
        return "".join([*parts, "</g>"])
    for i, j in np.ndindex(num_rows, num_columns):
        title = escape(f"{labels.rows[i]} → {labels.columns[j]}: {values[i, j]:.3g}")
        parts.append(
            f'<rect x="{left + j * width:.1f}" y="{top + i * height:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill-opacity="{_MAX_OPACITY * shares[i, j]:.2f}"><title>{title}</title></rect>'
        )
    return "".join([*parts, "</g>"])


def attention_grid(maps: np.ndarray, first_layer: int = 1) -> str:
    """Draw attention maps [layers, heads, queries, keys] as a grid of small heat maps; rows of a map are queries.

    `first_layer` is the number of the first layer.
    """
    if not maps.size:
        return ""
    num_layers, num_heads, num_rows, num_columns = maps.shape
    cell = max(3, min(10, 160 // max(num_rows, num_columns)))
    width, height = max(num_columns * cell + 14, 120), num_rows * cell + 34
    maps_per_row = max(1, min(num_heads, 720 // width))
    rows_per_layer = -(-num_heads // maps_per_row)
    parts = []
    for layer, head in np.ndindex(num_layers, num_heads):
        row, column = divmod(head, maps_per_row)
        left, top = 2 + column * width, (layer * rows_per_layer + row) * height
        parts.append(svg_text(left, top + 14, f"layer {layer + first_layer}, head {head + 1}"))
        parts.append(draw_cells(maps[layer, head], None, (left, top + 20), (cell, cell)))
    size = maps_per_row * width + 4, num_layers * rows_per_layer * height
    return svg_image(*size, "".join(parts), "attention by layer and head", scalable=False)


def _label(x: float, y: float, text: str, full: str, anchor: str, attributes: str = "") -> str:
    label = svg_text(x, y, text, anchor, attributes)
    return label if text == full else label.replace("</text>", f"<title>{escape(str(full))}</title></text>")
