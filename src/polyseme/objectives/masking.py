"""Masking: some tokens of a packed batch are damaged, and are to be predicted (Devlin et al. 2019, §3.1)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from polyseme.rng import RandomStream, bernoulli, integers, random_bits, uniform

MaskUnit = Literal["token", "word", "ngram", "span"]
# How often stretches of 1, 2, 3, … words are chosen, up to a factor: ∝ 1/n to three words (Lan et al. 2020, §4.1);
# geometric with p = 0.2, cut at ten, 3.8 words on average (Joshi et al. 2020, §3.1).
SPAN_LENGTH_WEIGHTS = {"ngram": 1 / np.arange(1, 4), "span": 0.8 ** np.arange(10)}


def mask_tokens(
    tokens: np.ndarray,
    keys: np.ndarray,
    positions: np.ndarray,
    maskable: np.ndarray,
    word_starts: np.ndarray | None,
    *,
    mask_id: int,
    replacement_ids: np.ndarray,
    mask_prob: float = 0.15,
    random_token_prob: float = 0.1,
    keep_token_prob: float = 0.1,
    mask_unit: MaskUnit = "token",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The damaged tokens, the rows to predict and the true ids there.

    `keys` and `positions` belong to tokens: the key of a token's sample and its place in it. Each maskable
    unit is chosen with probability `mask_prob` on its own, not 15 % of a sequence exactly, so that a choice
    depends on nothing around it. A whole word is chosen by the draw at its first piece (`word_starts`, true
    at every sample's first token too); n-grams and spans are `sample_spans` of words. What becomes of a chosen
    piece is drawn for each piece, as in BERT's later release, or once for a span. Of the chosen, `random_token_prob`
    become one of the ids in `replacement_ids`, `keep_token_prob` stay, and the rest become `mask_id`.
    """
    if mask_unit == "token":
        rows = draw_rows = np.flatnonzero(
            bernoulli(random_bits(keys, positions, RandomStream.MASK_CHOICE), mask_prob) & maskable
        )
    else:
        assert word_starts is not None, "whole words need to be told where words start"
        if mask_unit == "word":
            word_heads = np.flatnonzero(word_starts)
            chosen = bernoulli(
                random_bits(keys[word_heads], positions[word_heads], RandomStream.MASK_CHOICE), mask_prob
            )
            first, end = word_heads[chosen], np.append(word_heads[1:], len(tokens))[chosen]
        else:
            first, end = sample_spans(keys, positions, maskable, word_starts, mask_prob, SPAN_LENGTH_WEIGHTS[mask_unit])
        rows = _expand_ranges(first, end)
        draw_rows = np.repeat(first, end - first) if mask_unit == "span" else rows
        is_maskable = maskable[rows]
        rows, draw_rows = rows[is_maskable], draw_rows[is_maskable]
    labels = tokens[rows]
    action_bits = random_bits(keys[draw_rows], positions[draw_rows], RandomStream.MASK_ACTION)
    is_unmasked = bernoulli(action_bits, random_token_prob + keep_token_prob)
    new_ids = np.where(is_unmasked, labels, mask_id)
    randomized = np.flatnonzero(bernoulli(action_bits, random_token_prob))
    bits = random_bits(keys[rows[randomized]], positions[rows[randomized]], RandomStream.REPLACEMENT_ID)
    new_ids[randomized] = replacement_ids[integers(bits, len(replacement_ids))]
    corrupted = tokens.copy()
    corrupted[rows] = new_ids
    return corrupted, rows, labels


def sample_spans(
    keys: np.ndarray,
    positions: np.ndarray,
    maskable: np.ndarray,
    word_starts: np.ndarray,
    mask_prob: float,
    length_weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of whole words: the first token of each and the one behind its last.

    Between special tokens lies a run of words, of which a share `mask_prob` is the budget. Lengths are drawn until it
    is spent; as if a stretch had begun before the run, some of it is gone already (the law of what is left of a stretch
    at a random place), so that the lengths follow the law and the share holds on average, whatever a run's length. Then
    each goes to a place drawn among the words that are left free, with a word or more between two. What does not fit
    into a run is left out.
    """
    word_heads = np.flatnonzero(word_starts)
    word_ends = np.append(word_heads[1:], len(word_starts))
    is_text = maskable[word_heads]
    starts_run = is_text.copy()
    starts_run[1:] &= ~is_text[:-1] | (positions[word_heads[1:]] == 0)
    words = np.flatnonzero(is_text)
    run_starts = np.flatnonzero(starts_run[words])
    run_lengths = np.diff(run_starts, append=len(words))
    keys, positions = keys[word_heads[words]], positions[word_heads[words]]

    length_cdf = np.cumsum(length_weights) / length_weights.sum()
    survival = 1 - np.append(0, length_cdf[:-1])  # how often a stretch is longer than 0, 1, 2, …
    run_draws = keys[run_starts], positions[run_starts]
    budget = (run_lengths * mask_prob + uniform(random_bits(*run_draws, RandomStream.MASK_BUDGET))).astype(np.int64)
    residual = np.searchsorted(
        np.cumsum(survival) / survival.sum(),
        uniform(random_bits(*run_draws, RandomStream.MASK_SPAN_RESIDUAL)),
        side="right",
    )
    run, rank = _ragged_indices(budget)
    word = run_starts[run] + rank
    lengths = 1 + np.searchsorted(
        length_cdf, uniform(random_bits(keys[word], positions[word], RandomStream.MASK_SPAN_LENGTH)), side="right"
    )
    preceding = _exclusive_sums(lengths, budget, run)
    fits = (residual[run] + preceding < budget[run]) & (preceding + lengths + rank <= run_lengths[run])
    run, rank, word, lengths = run[fits], rank[fits], word[fits], lengths[fits]

    counts = np.bincount(run, minlength=len(run_starts))
    num_free = (
        run_lengths - np.bincount(run, lengths, len(run_starts)).astype(np.int64) - counts + 1
    )  # but the words between
    gaps = integers(random_bits(keys[word], positions[word], RandomStream.MASK_SPAN_POSITION), num_free[run] + 1)
    order = np.argsort(run * len(words) + gaps, kind="stable")  # which stays inside runs
    gaps, lengths = gaps[order], lengths[order]
    first = words[run_starts[run] + gaps + _exclusive_sums(lengths, counts, run) + rank]
    return word_heads[first], word_ends[first + lengths - 1]


def span_boundaries(rows: np.ndarray) -> np.ndarray:
    """For each chosen row the rows before and behind its span, and its place in the span: [n, 3].

    Spans do not touch each other, so that rows in sequence are one span and what is around it is not chosen.
    """
    starts_span = np.diff(rows, prepend=-2) != 1
    span = np.cumsum(starts_span) - 1
    first, last = rows[starts_span], rows[np.append(starts_span[1:], True)] if len(rows) else rows
    return np.stack((first[span] - 1, last[span] + 1, rows - first[span]), axis=1)


def _ragged_indices(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For lists of these lengths, end to end: which list an item is in, and its place there."""
    list_index = np.repeat(np.arange(len(counts)), counts)
    return list_index, np.arange(len(list_index)) - (np.cumsum(counts) - counts)[list_index]


def _exclusive_sums(values: np.ndarray, counts: np.ndarray, list_index: np.ndarray) -> np.ndarray:
    """Of ragged lists: the sum of the items that stand before an item in its list."""
    cumulative = np.append(0, np.cumsum(values))
    return cumulative[:-1] - cumulative[np.cumsum(counts) - counts][list_index]


def _expand_ranges(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    range_index, offset = _ragged_indices(end - first)
    return first[range_index] + offset
