"""The attention page: what it stores, its views, and its first state without script."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from polyseme.explain.attention_page.figures import heads_svg, lines_svg
from polyseme.explain.attention_page.packing import pack_weights
from polyseme.explain.attention_page.patterns import head_patterns, name_heads, pattern_rows
from polyseme.report.html import escape, html_table, note

MAP_TITLES = {
    "self": "self-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention (target to source)",
}
THRESHOLD = 0.05  # weight from which the lines of all words are drawn
MIN_WORD_WEIGHT = 0.01  # weight from which the lines of a pinned word are drawn
CAVEAT = (
    "Attention is not explanation (Jain and Wallace 2019): a weight says where a head reads from, not why the model "
    "decides; other weights can give the same prediction. Test a conclusion by attribution or by patching."
)
GRID_CAPTION = (
    "A map per head, a row per layer. In each map rows are queries (the words that look) and columns keys (the words "
    "looked at); a stronger color is a larger weight. A diagonal is a head that looks at a neighbor; a vertical stripe "
    "is one that looks at the same word from everywhere, often a separator, which tends to mean that it does nothing."
)
LINES_CAPTION = (
    "Queries on the left, keys on the right; a thicker line is a larger weight. The weights of a query sum to one."
)
DECODER_CAPTION = " A query of a decoder is the token that it has just read; what it attends to helps predict the next."
WORD_CAPTION = "For the chosen word, the key with the largest weight in each head. Choose a cell to see its head above."
PATTERN_CAPTION = (
    "The largest mean weight in each layer on the token before (previous), on the token itself (same), on the token "
    "after (next), on the first token, and on special tokens other than the first."
)


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Weights [layers, heads, queries, keys] between tokens, or between words of merged pieces.

    `starts` is the first token of each query, and `special_queries` and `special_keys` are those that are no text.
    """

    queries: Sequence[str]
    keys: Sequence[str]
    weights: np.ndarray
    starts: Sequence[int]
    special_queries: Sequence[int] = ()
    special_keys: Sequence[int] = ()
    is_self: bool = True

    @cached_property
    def patterns(self) -> dict[str, np.ndarray]:
        """The mean weight of every head on each fixed pattern."""
        return head_patterns(self.weights, self.special_keys, self.is_self)

    def find_query(self, token: int) -> int:
        """Return the query that a token belongs to."""
        return max((i for i, first in enumerate(self.starts) if first <= token), default=0)

    @property
    def first_word(self) -> int:
        """The first query that is text."""
        return next((i for i in range(len(self.queries)) if i not in self.special_queries), 0)


@dataclass(frozen=True, eq=False)
class PanelMap:
    """One kind of attention of a model on a text, by token and, where pieces were merged, by word."""

    name: str
    tokens: AttentionView
    words: AttentionView | None

    @property
    def first_view(self) -> AttentionView:
        """The view that the page starts with."""
        return self.words or self.tokens


@dataclass(frozen=True)
class Start:
    """What a panel shows first: kind of attention, layer and head from 0, query, and whether the query is pinned."""

    map: str
    layer: int
    head: int
    token: int
    is_pinned: bool = False


@dataclass(frozen=True, eq=False)
class AttentionPanel:
    """One model on one text."""

    title: str
    maps: Sequence[PanelMap]
    start: Start

    @property
    def first_map(self) -> PanelMap:
        """The kind of attention that the page starts with."""
        return next((panel_map for panel_map in self.maps if panel_map.name == self.start.map), self.maps[0])


def panel_figures(panel: AttentionPanel) -> dict[str, str]:
    """Draw the first state of a panel: all heads, the lines of one, and only those of the word if it is pinned."""
    view, start = panel.first_map.first_view, panel.start
    weights = view.weights[start.layer, start.head]
    figures = {
        "heads": heads_svg(view.weights),
        "lines": lines_svg(weights, view.queries, view.keys, THRESHOLD),
    }
    if start.is_pinned:
        is_pinned = np.arange(len(weights)) == view.find_query(start.token)
        figures["word"] = lines_svg(weights * is_pinned[:, None], view.queries, view.keys, MIN_WORD_WEIGHT)
    return figures


def attention_section(panels: Sequence[AttentionPanel], figures: Sequence[dict[str, str]]) -> str:
    """Render the views of all panels side by side, with the first state in place of the script."""
    width = f"body{{max-width:{72 if len(panels) == 1 else 84}rem}}"
    grid = _view("grid", panels, [drawn["heads"] for drawn in figures])
    lines = _view("lines", panels, [_first_head(panel) + drawn["lines"] for panel, drawn in zip(panels, figures)])
    has_decoder = any(panel_map.name in ("decoder", "cross") for panel in panels for panel_map in panel.maps)
    lines_caption = LINES_CAPTION + (DECODER_CAPTION if has_decoder else "")
    word = _view("word", panels, [""] * len(panels))
    columns = "beside" if len(panels) == 1 else ""
    return (
        f"<style>{_asset('attention.css')}{width}</style>{note(CAVEAT)}"
        '<div id="controls" class="js-only" role="group" aria-label="What is shown"></div>'
        f'<div class="{columns}"><div><h3>Every head</h3>{grid}{note(GRID_CAPTION)}</div>'
        f"<div><h3>One head</h3>{lines}{note(lines_caption)}</div></div>"
        f'<div class="js-only"><h3>One word across all heads</h3>{word}{note(WORD_CAPTION)}</div>'
    )


def _first_head(panel: AttentionPanel) -> str:
    head = f"{MAP_TITLES[panel.first_map.name]}, layer {panel.start.layer + 1}, head {panel.start.head + 1}"
    return f"<h4>{escape(head)}</h4>"


def _view(name: str, panels: Sequence[AttentionPanel], static: Sequence[str]) -> str:
    """Render the place of a view: per panel its title, what stands there without script, and what script fills."""
    slots = "".join(
        "<div>"
        + (f'<h4 dir="auto">{escape(panel.title)}</h4>' if len(panels) > 1 else "")
        + (f'<div class="plot static">{drawn}</div>' if drawn else "")
        + f'<div class="js-only" data-panel="{i}"></div></div>'
        for i, (panel, drawn) in enumerate(zip(panels, static))
    )
    return f'<div class="pair" data-view="{name}">{slots}</div>'


def pattern_section(panels: Sequence[AttentionPanel]) -> str:
    """Render the strongest fixed patterns of every layer."""
    tables = [
        f'<div><h4 dir="auto">{escape(title)}</h4>{html_table(header, rows)}</div>'
        for title, header, rows in pattern_tables(panels)
    ]
    return f'<div class="pair">{"".join(tables)}</div>{note(PATTERN_CAPTION)}'


def pattern_tables(panels: Sequence[AttentionPanel]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return title, header and rows of the patterns of each panel and kind of attention, by token."""
    tables = []
    for panel in panels:
        for panel_map in panel.maps:
            title = MAP_TITLES[panel_map.name] if len(panels) == 1 else f"{panel.title}: {MAP_TITLES[panel_map.name]}"
            tables.append((title, ["layer", *panel_map.tokens.patterns], pattern_rows(panel_map.tokens.patterns)))
    return tables


def attention_script(panels: Sequence[AttentionPanel]) -> str:
    """Render the stored weights and the script of the views."""
    blocks: list[str] = []

    def store(view: AttentionView) -> dict[str, Any]:
        packed, k = pack_weights(view.weights)
        blocks.append(f'<script type="text/plain" id="weights-{len(blocks)}">{packed}</script>')
        return {
            "id": f"weights-{len(blocks) - 1}",
            "k": k,
            "queries": list(view.queries),
            "keys": list(view.keys),
            "starts": list(view.starts),
            "specialKeys": list(view.special_keys),
            "firstWord": view.first_word,
            "patterns": name_heads(view.patterns),
        }

    def describe(panel_map: PanelMap) -> dict[str, Any]:
        layers, heads = panel_map.tokens.weights.shape[:2]
        views = {"tokens": store(panel_map.tokens)} | ({"words": store(panel_map.words)} if panel_map.words else {})
        return {
            "name": panel_map.name,
            "label": MAP_TITLES[panel_map.name],
            "layers": layers,
            "heads": heads,
            "views": views,
        }

    encoded_panels = []
    for panel in panels:
        start = panel.start
        word = panel.first_map.first_view.find_query(start.token)
        place = {"layer": start.layer, "head": start.head, "word": word, "pinned": start.is_pinned}
        encoded_panels.append(place | {"maps": [describe(panel_map) for panel_map in panel.maps]})
    values = {"panels": encoded_panels, "map": panels[0].start.map, "unit": "words", "threshold": THRESHOLD}
    encoded = json.dumps(values).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="attention-data">{encoded}</script>{"".join(blocks)}'
        f"<script>{_asset('attention.js')}</script>"
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
