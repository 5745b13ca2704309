"""Masking: some tokens of a packed batch are damaged, and are to be predicted (Devlin et al. 2019, §3.1)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from polyseme.rng import (
    BUDGET,
    CHOOSE,
    FATE,
    GONE,
    LENGTH,
    PLACE,
    REPLACE,
    below,
    draw,
    integers,
    uniform,
)

Unit = Literal["token", "word", "ngram", "span"]
# How often stretches of 1, 2, 3, … words are chosen, up to a factor: ∝ 1/n to three words (Lan et al. 2020, §4.1);
# geometric with p = 0.2, cut at ten, 3.8 words on average (Joshi et al. 2020, §3.1).
LAWS = {"ngram": 1 / np.arange(1, 4), "span": 0.8 ** np.arange(10)}


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
    at every sample's first token too); n-grams and spans are `stretches` of words. What becomes of a chosen
    piece is drawn for each piece, as in BERT's later release, or once for a span. Of the chosen, `random`
    become one of the ids in `replacements`, `keep` stay, and the rest become `mask_id`.
    """
    if unit == "token":
        rows = leaders = np.flatnonzero(below(draw(keys, positions, CHOOSE), rate) & maskable)
    else:
        assert word_starts is not None, "whole words need to be told where words start"
        if unit == "word":
            heads = np.flatnonzero(word_starts)
            chosen = below(draw(keys[heads], positions[heads], CHOOSE), rate)
            first, end = heads[chosen], np.append(heads[1:], len(tokens))[chosen]
        else:
            first, end = stretches(keys, positions, maskable, word_starts, rate, LAWS[unit])
        rows = _ranges(first, end)
        leaders = np.repeat(first, end - first) if unit == "span" else rows
        inside = maskable[rows]
        rows, leaders = rows[inside], leaders[inside]
    values = tokens[rows]
    fate = draw(keys[leaders], positions[leaders], FATE)
    kept = below(fate, random + keep)
    new = np.where(kept, values, mask_id)
    swapped = np.flatnonzero(below(fate, random))
    bits = draw(keys[rows[swapped]], positions[rows[swapped]], REPLACE)
    new[swapped] = replacements[integers(bits, len(replacements))]
    damaged = tokens.copy()
    damaged[rows] = new
    return damaged, rows, values


def stretches(
    keys: np.ndarray,
    positions: np.ndarray,
    maskable: np.ndarray,
    word_starts: np.ndarray,
    rate: float,
    law: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of whole words: the first token of each and the one behind its last.

    Between special tokens lies a run of words, of which a share `rate` is the budget. Lengths are drawn until it is
    spent; as if a stretch had begun before the run, some of it is gone already (the law of what is left of a stretch
    at a random place), so that the lengths follow the law and the share holds on average, whatever a run's length.
    Then each goes to a place drawn among the words that are left free, with a word or more between two. What does not
    fit into a run is left out.
    """
    heads = np.flatnonzero(word_starts)
    stops = np.append(heads[1:], len(word_starts))
    text = maskable[heads]
    opens = text.copy()
    opens[1:] &= ~text[:-1] | (positions[heads[1:]] == 0)
    words = np.flatnonzero(text)
    begins = np.flatnonzero(opens[words])
    sizes = np.diff(begins, append=len(words))
    keys, positions = keys[heads[words]], positions[heads[words]]

    share = np.cumsum(law) / law.sum()
    left = 1 - np.append(0, share[:-1])  # how often a stretch is longer than 0, 1, 2, …
    runs = keys[begins], positions[begins]
    budget = (sizes * rate + uniform(draw(*runs, BUDGET))).astype(np.int64)
    gone = np.searchsorted(np.cumsum(left) / left.sum(), uniform(draw(*runs, GONE)), side="right")
    run, number = _ragged(budget)
    word = begins[run] + number
    lengths = 1 + np.searchsorted(share, uniform(draw(keys[word], positions[word], LENGTH)), side="right")
    before = _sums(lengths, budget, run)
    fits = (gone[run] + before < budget[run]) & (before + lengths + number <= sizes[run])
    run, number, word, lengths = run[fits], number[fits], word[fits], lengths[fits]

    count = np.bincount(run, minlength=len(begins))
    free = sizes - np.bincount(run, lengths, len(begins)).astype(np.int64) - count + 1  # but the words between
    gaps = integers(draw(keys[word], positions[word], PLACE), free[run] + 1)
    order = np.argsort(run * len(words) + gaps, kind="stable")  # which stays inside runs
    gaps, lengths = gaps[order], lengths[order]
    first = words[begins[run] + gaps + _sums(lengths, count, run) + number]
    return heads[first], stops[first + lengths - 1]


def boundaries(rows: np.ndarray) -> np.ndarray:
    """For each chosen row the rows before and behind its span, and its place in the span: [n, 3].

    Spans do not touch each other, so that rows in sequence are one span and what is around it is not chosen.
    """
    opens = np.diff(rows, prepend=-2) != 1
    span = np.cumsum(opens) - 1
    first, last = rows[opens], rows[np.append(opens[1:], True)] if len(rows) else rows
    return np.stack((first[span] - 1, last[span] + 1, rows - first[span]), axis=1)


def _ragged(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For lists of these lengths, end to end: which list an item is in, and its place there."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _sums(values: np.ndarray, counts: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Of ragged lists: the sum of the items that stand before an item in its list."""
    before = np.append(0, np.cumsum(values))
    return before[:-1] - before[np.cumsum(counts) - counts][which]


def _ranges(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    which, place = _ragged(end - first)
    return first[which] + place
