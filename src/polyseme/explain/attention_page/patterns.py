"""Fixed patterns of attention heads: the previous token, the next, the same, the first, special tokens."""

from collections.abc import Sequence

import numpy as np

MIN_SHARE = 0.3  # mean weight from which a head is named after a pattern


def head_patterns(weights: np.ndarray, special_keys: Sequence[int], is_self: bool) -> dict[str, np.ndarray]:
    """Return the mean weight of every head [layers, heads] on each pattern that it could have.

    Positions only compare in self-attention; the last query then has the position of the last key, since memory comes
    first. `special` does not count the first token.
    """
    num_queries, num_keys = weights.shape[2:]
    patterns = {}
    if is_self:
        positions = np.arange(num_queries) + num_keys - num_queries
        for name, offset in (("previous", -1), ("same", 0), ("next", 1)):
            targets = positions + offset
            rows = np.flatnonzero((targets >= 0) & (targets < num_keys))
            if len(rows):
                patterns[name] = weights[:, :, rows, targets[rows]].mean(-1)
    patterns["first"] = weights[..., 0].mean(-1)
    if columns := [key for key in special_keys if key > 0]:
        patterns["special"] = weights[..., columns].sum(-1).mean(-1)
    return {name: means for name, means in patterns.items() if means.max() > 0}


def name_heads(patterns: dict[str, np.ndarray]) -> list[list[str]]:
    """Return the strongest pattern of every head in words, such as `previous token 0.92`."""
    names = list(patterns)
    means = np.stack(list(patterns.values()))  # [patterns, layers, heads]
    return [
        [
            f"{names[best]} token{'s' if names[best] == 'special' else ''} {means[best, layer, head]:.2f}"
            if means[best, layer, head] >= MIN_SHARE
            else "no fixed pattern"
            for head, best in enumerate(row)
        ]
        for layer, row in enumerate(means.argmax(0))
    ]


def pattern_rows(patterns: dict[str, np.ndarray]) -> list[list[str]]:
    """Return a row per layer: its number and, for each pattern, the largest mean weight and its head."""
    num_layers = len(next(iter(patterns.values())))
    rows = []
    for layer in range(num_layers):
        heads = [(means[layer].max(), means[layer].argmax() + 1) for means in patterns.values()]
        rows.append([str(layer + 1), *(f"{mean:.2f} (head {head})" for mean, head in heads)])
    return rows
