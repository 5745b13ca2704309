"""Masking: some tokens of a packed batch are damaged, and are to be predicted (Devlin et al. 2019, §3.1)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from polyseme.objectives.draws import CHOOSE, FATE, REPLACE, below, draw, integers

Unit = Literal["token", "word"]


def mask(
    tokens: np.ndarray,
    keys: np.ndarray,
    positions: np.ndarray,
    maskable: np.ndarray,
    word_starts: np.ndarray | None,
    *,
    mask_id: int,
    replacements: np.ndarray,
    rate: float = 0.15,
    random: float = 0.1,
    keep: float = 0.1,
    unit: Unit = "token",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The damaged tokens, the rows to predict and the true ids there.

    `keys` and `positions` belong to tokens: the key of a token's sample and its place in it. Each maskable
    unit is chosen with probability `rate` on its own, not 15 % of a sequence exactly, so that a choice
    depends on nothing around it. A whole word is chosen by the draw at its first piece (`word_starts`, true
    at every sample's first token too); what becomes of a chosen piece is drawn for each piece, as in BERT's
    later release. Of the chosen, `random` become one of the ids in `replacements`, `keep` stay, and the rest
    become `mask_id`.
    """
    if unit == "word":
        assert word_starts is not None, "whole words need to be told where words start"
        heads = np.flatnonzero(word_starts)
        chosen = below(draw(keys[heads], positions[heads], CHOOSE), rate)
        chosen = np.repeat(chosen, np.diff(heads, append=len(tokens)))
    else:
        chosen = below(draw(keys, positions, CHOOSE), rate)
    rows = np.flatnonzero(chosen & maskable)
    values = tokens[rows]
    keys, positions = keys[rows], positions[rows]

    fate = draw(keys, positions, FATE)
    kept = below(fate, random + keep)
    new = np.where(kept, values, mask_id)
    swapped = np.flatnonzero(below(fate, random))
    bits = draw(keys[swapped], positions[swapped], REPLACE)
    new[swapped] = replacements[integers(bits, len(replacements))]
    damaged = tokens.copy()
    damaged[rows] = new
    return damaged, rows, values
