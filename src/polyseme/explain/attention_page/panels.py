"""Panels of the attention page from attention weights, and what they show first."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from polyseme.errors import ConfigError
from polyseme.explain.attention_page.page import MAP_TITLES, AttentionPanel, AttentionView, PanelMap, Start
from polyseme.inference.inspection.attention import Attention, AttentionMap
from polyseme.text.tokenizer import Tokenizer

_MAX_LISTED_WORDS = 20


def build_maps(attention: Attention, tokenizers: Sequence[Tokenizer]) -> list[PanelMap]:
    """Return the views of each kind of attention; the special tokens are those of the tokenizers."""
    special = {
        token
        for tokenizer in tokenizers
        for role, token in tokenizer.special_tokens_map.items()
        if role not in ("unk", "mask")
    }
    maps = []
    for attention_map in attention.maps:
        is_merged = len(attention_map.query_words) + len(attention_map.key_words) < sum(attention_map.weights.shape[2:])
        starts = [attention_map.query_word_ids.index(i) for i in range(len(attention_map.query_words))]
        words = _build_view(attention_map.merge_words(), starts, special) if is_merged else None
        tokens = _build_view(attention_map, range(len(attention_map.queries)), special)
        maps.append(PanelMap(attention_map.name, tokens, words))
    return maps


def _build_view(attention_map: AttentionMap, starts: Sequence[int], special: Collection[str]) -> AttentionView:
    sides = attention_map.queries, attention_map.keys
    special_queries, special_keys = ([i for i, label in enumerate(side) if label in special] for side in sides)
    is_self = attention_map.name != "cross"
    return AttentionView(*sides, attention_map.weights, starts, special_queries, special_keys, is_self)


def find_token(maps: Sequence[PanelMap], word: str) -> tuple[PanelMap, int] | None:
    """Return the last map with a word among its queries, and the word's first token; also if only the case differs."""
    for normalize in (str, str.casefold):
        for panel_map in reversed(maps):
            for view in (panel_map.first_view, panel_map.tokens):
                labels = [normalize(label) for label in view.queries]
                if normalize(word) in labels:
                    return panel_map, view.starts[labels.index(normalize(word))]
    return None


def choose_start(maps: Sequence[PanelMap], token: str | None, layer: int | None, head: int | None) -> Start:
    """Choose what a panel shows first: a word, by default the first, and the head where it attends most to another
    that is not next to it.

    `layer` and `head`, from 1, restrict the choice; an unknown word or number is an error.
    """
    if token is None:
        panel_map = maps[-1]
        place = panel_map, panel_map.tokens.first_word
    elif (match := find_token(maps, token)) is not None:
        place = match
    else:
        words = [
            w
            for each in maps
            for i, w in enumerate(each.first_view.queries)
            if i not in each.first_view.special_queries
        ]
        listed = ", ".join(dict.fromkeys(words[:_MAX_LISTED_WORDS]))
        raise ConfigError(f"`token` {token!r} is no word of the text; its words are {listed}")
    panel_map, position = place
    num_layers, num_heads = panel_map.tokens.weights.shape[:2]
    for name, number, count in (("layer", layer, num_layers), ("head", head, num_heads)):
        if number is not None and not 1 <= number <= count:
            kind = MAP_TITLES[panel_map.name]
            raise ConfigError(f"`{name}` is {number}, expected 1 to {count}, the {name}s of the {kind}")
    layers = range(num_layers) if layer is None else [layer - 1]
    heads = range(num_heads) if head is None else [head - 1]
    scores = _weights_on_other_words(panel_map.tokens, position)
    best = max(((i, j) for i in layers for j in heads), key=lambda place: scores[place])
    return Start(panel_map.name, *best, position, is_pinned=token is not None)


def match_start(maps: Sequence[PanelMap], panel: AttentionPanel) -> Start:
    """Choose for a second panel the same attention, layer, head and word as for the first, where it has them."""
    start = panel.start
    view = panel.first_map.first_view
    word = view.queries[view.find_query(start.token)]
    candidates = [panel_map for panel_map in maps if panel_map.name == start.map] or maps
    match = find_token(candidates, word)
    own_start = choose_start(candidates, None if match is None else word, None, None)
    num_layers, num_heads = candidates[-1].tokens.weights.shape[:2]
    if start.layer < num_layers and start.head < num_heads:
        own_start = replace(own_start, layer=start.layer, head=start.head)
    return replace(own_start, is_pinned=start.is_pinned and match is not None)


def _weights_on_other_words(view: AttentionView, query: int) -> np.ndarray:
    """Return the largest weight of a query in each head [layers, heads] on another token of the text.

    Neighbors count only in a text of few tokens, since heads that look at them are many and alike.
    """
    weights = view.weights[:, :, query].copy()
    weights[..., list(view.special_keys)] = 0
    if view.is_self:
        position = query + len(view.keys) - len(view.queries)
        weights[..., position] = 0
        if len(view.keys) > len(view.special_keys) + 3:
            weights[..., max(position - 1, 0) : position + 2] = 0
    return weights.max(-1)
