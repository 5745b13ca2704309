"""Figures of attention: all heads as small heat maps, and one head as lines between two columns of words."""

from collections.abc import Sequence

import numpy as np

from polyseme.report.heatmap import draw_cells
from polyseme.report.svg import shorten, svg_image, svg_text, text_width

_MAX_CELLS = 20  # rows and columns of a small heat map
_MAP_SIZE = 60.0  # pixels
_ROW_HEIGHT = 20
_GAP = 180  # between the columns of words
_MAX_LABEL = 24  # characters


def heads_svg(weights: np.ndarray) -> str:
    """Draw weights [layers, heads, queries, keys] as a grid of small heat maps; a long text is drawn coarsely.

    The shade grows with the square root of the weight; a coarse cell has the largest weight inside.
    """
    num_layers, num_heads = weights.shape[:2]
    coarse = np.sqrt(_max_pool(weights))
    cell = _MAP_SIZE / coarse.shape[3], _MAP_SIZE / coarse.shape[2]
    cell = round(min(cell), 2), round(min(cell), 2)
    width, height = coarse.shape[3] * cell[0] + 8, coarse.shape[2] * cell[1] + 8
    left, top = 62, 22
    soft = ' style="fill:var(--soft)"'
    parts = [svg_text(2, 14, "head", attributes=soft)]
    parts += [svg_text(left + head * width, 14, str(head + 1), attributes=soft) for head in range(num_heads)]
    for layer in range(num_layers):
        parts.append(svg_text(2, top + layer * height + 14, f"layer {layer + 1}", attributes=soft))
        for head in range(num_heads):
            place = round(left + head * width, 1), round(top + layer * height, 1)
            parts.append(draw_cells(coarse[layer, head], None, place, cell))
    size = left + num_heads * width, top + num_layers * max(height, 16) + 2
    return svg_image(*size, "".join(parts), "attention of every layer and head", scalable=False)


def lines_svg(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], min_weight: float) -> str:
    """Draw the weights [queries, keys] of one head as lines; those below `min_weight` are left out."""
    labels = [[shorten(label, _MAX_LABEL) for label in side] for side in (queries, keys)]
    left = max(map(text_width, labels[0])) + 8
    right = left + _GAP
    rows, columns = np.nonzero(weights >= min_weight)
    parts = ['<g style="stroke:var(--s1);fill:none">']
    for i, j in zip(rows.tolist(), columns.tolist()):
        weight, y1, y2 = float(weights[i, j]), _middle(i), _middle(j)
        curve = f"M{left:.0f} {y1}C{left + _GAP / 3:.0f} {y1} {right - _GAP / 3:.0f} {y2} {right:.0f} {y2}"
        stroke = f'stroke-width="{0.6 + 3.4 * weight:.2f}" stroke-opacity="{max(0.12, weight**0.5):.2f}"'
        parts.append(f'<path d="{curve}" {stroke}/>')
    parts.append("</g>")
    parts += [svg_text(left - 4, _middle(i) + 4, label, "end") for i, label in enumerate(labels[0])]
    parts += [svg_text(right + 4, _middle(i) + 4, label) for i, label in enumerate(labels[1])]
    width = right + max(map(text_width, labels[1])) + 8
    height = _ROW_HEIGHT * max(len(queries), len(keys)) + 4
    return svg_image(width, height, "".join(parts), "attention from queries to keys", scalable=False)


def _middle(row: int) -> int:
    return _ROW_HEIGHT * row + _ROW_HEIGHT // 2 + 2


def _max_pool(weights: np.ndarray) -> np.ndarray:
    """Reduce queries and keys to a few cells each, with the largest weight in each cell."""
    for axis in (2, 3):
        size = weights.shape[axis]
        if size > _MAX_CELLS:
            starts = np.arange(_MAX_CELLS) * size // _MAX_CELLS
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights
