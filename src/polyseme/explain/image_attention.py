"""Where a model looks in an image: for each word of its caption, and from one patch to the others."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.errors import DataError, UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.generation.captions import ImageCaption, encoder_attention, read_regions
from polyseme.images.files import encode_png, read_image
from polyseme.inference.load import load_neural
from polyseme.report.html import figure, html_page, html_table, key_figures
from polyseme.report.svg import svg_image, svg_text

PANEL, GAP, LABEL = 136, 12, 24  # pixels of a panel's side, between panels, and of its label
COLUMNS = 5
Panel = tuple[str, np.ndarray, int | None]  # a label, weights [rows, columns], and a patch with a frame
MAX_QUERIES = 4  # patches whose attention is shown
MAX_WORDS = 24  # that have a panel
WORDS_CAPTION = (
    "Each panel is the image when the model wrote that word: bright where it looked, dark elsewhere. Attention has "
    "found the object if a color or a noun is bright on it."
)
PATCHES_CAPTION = (
    "Self-attention of the image encoder, mean over layers and heads: from the patch with the frame to all patches. "
    "A patch of an object often attends to the same object, and to others of the same kind."
)


def explain_image(model: Any, image: str | Path, features: str | Path | None = None) -> Explanation:
    """Caption an image and show where the model looked for each word, and the self-attention of a Transformer."""
    network = load_neural(model)
    pixels, region_path = read_image(image), None if features is None else Path(features)
    if "caption" not in network.capabilities:
        raise UnsupportedError(f"{network.path} is {network.description}, which does not describe images")
    (caption,) = network.caption([str(image)], features=region_path)
    (regions,) = read_regions(network.model.config, [str(image)], region_path)
    if caption.attention.shape[-1] != caption.num_rows * caption.num_columns or caption.num_rows == 1:
        raise DataError("the regions are not on a grid, so that attention cannot be drawn over the image")
    grid = caption.num_rows, caption.num_columns
    panels: list[Panel] = [("", np.ones(grid), None)]
    words = list(zip(caption.pieces, caption.attention))
    panels += [(word, weights.reshape(grid), None) for word, weights in words[:MAX_WORDS]]
    figures = {"words": attention_panels(pixels, panels)}
    sections = [("Where the model looked for each word", figure(figures["words"], WORDS_CAPTION))]
    if (weights := encoder_attention(network.model, regions)) is not None:
        patches = choose_patches(caption, MAX_QUERIES)
        maps: list[Panel] = [
            (f"patch {q // grid[1] + 1}, {q % grid[1] + 1}", weights[q].reshape(grid), q) for q in patches
        ]
        figures["patches"] = attention_panels(pixels, maps)
        sections.append(("Where patches look", figure(figures["patches"], PATCHES_CAPTION)))
    rows = [(word, *_strongest(weights, grid)) for word, weights in words]
    header = ["word", "row", "column", "weight"]
    sections.append(("Strongest region of each word", html_table(header, rows)))
    top = key_figures([
        ("Caption", caption.text, ""),
        ("Log-probability", f"{caption.score:.2f}", "0 would be certain"),
        ("Regions", f"{grid[0]} × {grid[1]}", "rows and columns"),
    ])  # fmt: skip
    record = {"caption": caption.text, "score": caption.score, "words": list(caption.pieces)}
    record |= {"num_rows": grid[0], "num_columns": grid[1], "attention": caption.attention.round(5).tolist()}
    page = html_page(f"Where the model looks in {Path(image).name}", "", sections, top)
    return Explanation(page, record, figures, f"{caption.text} ({caption.score:.2f})", [(header, rows)])


def _strongest(weights: np.ndarray, grid: tuple[int, int]) -> tuple[int, int, float]:
    """Return row, column (from 1) and weight of the strongest region."""
    row, column = divmod(int(weights.argmax()), grid[1])
    return row + 1, column + 1, round(float(weights.max()), 3)


def choose_patches(caption: ImageCaption, max_patches: int) -> list[int]:
    """Return the patches that the words looked at most, without repetition, and the first one as background."""
    strongest = caption.attention.argmax(-1)
    order = np.argsort(-caption.attention.max(-1), kind="stable")
    return list(dict.fromkeys([*(int(strongest[i]) for i in order), 0]))[:max_patches]


def attention_panels(pixels: np.ndarray, panels: Sequence[Panel]) -> str:
    """Draw an image once per panel, darkened where the weights are low."""
    height = PANEL * pixels.shape[0] / pixels.shape[1]
    data = base64.b64encode(encode_png(pixels)).decode()
    parts = []
    for number, (label, weights, framed) in enumerate(panels):
        x = GAP + number % COLUMNS * (PANEL + GAP)
        y = GAP + number // COLUMNS * (height + LABEL + GAP)
        parts.append(
            f'<image x="{x}" y="{y:.1f}" width="{PANEL}" height="{height:.1f}" preserveAspectRatio="none" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
        )
        parts.append(_shade(weights, x, y, height, framed))
        parts.append(svg_text(x + PANEL / 2, y + height + 16, label, "middle", ""))
    num_rows, num_columns = -(-len(panels) // COLUMNS), min(len(panels), COLUMNS)
    size = GAP + num_columns * (PANEL + GAP), GAP + num_rows * (height + LABEL + GAP)
    return svg_image(*size, "".join(parts), "attention over an image", scalable=False)


def _shade(weights: np.ndarray, x: float, y: float, height: float, framed: int | None) -> str:
    """Draw a dark cell over each region, the darker the lower its weight, and a frame around one region."""
    num_rows, num_columns = weights.shape
    cell_width, cell_height = PANEL / num_columns, height / num_rows
    strength = weights / max(float(weights.max()), 1e-12)
    cells = []
    for (row, column), share in np.ndenumerate(strength):
        place = f'x="{x + column * cell_width:.1f}" y="{y + row * cell_height:.1f}"'
        size = f'width="{cell_width + 0.2:.1f}" height="{cell_height + 0.2:.1f}"'
        if share < 0.99:
            cells.append(f'<rect {place} {size} fill="#000" fill-opacity="{0.82 * (1 - share):.2f}"/>')
        if framed == row * num_columns + column:
            cells.append(f'<rect {place} {size} fill="none" stroke="#ff3b30" stroke-width="3"/>')
    return "".join(cells)
