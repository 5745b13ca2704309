"""Interpolated modified Kneser-Ney smoothing (Chen & Goodman 1999, §3): probabilities and back-off weights.

p(w | h) = (c(hw) - D(c(hw))) / c(h·) + γ(h) p(w | h without its first word), with discounts D for counts of one, two,
and three or more, and γ(h) the discounted mass. Unigrams are interpolated with the uniform distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import ConfigError
from polyseme.ngram.count import BLOCK_SIZE, FileArray, NgramCounts, context_blocks
from polyseme.ngram.trie import LOG10_ZERO, NgramTrie, NgramVocab, TrieLevel

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # for levels with too few n-grams to estimate discounts


def estimate_discounts(counts_of_counts: np.ndarray) -> tuple[float, float, float] | None:
    """Return the discounts of counts one, two, and three or more, or None if they are out of range.

    `counts_of_counts[k]` is the number of n-grams with count k (Chen & Goodman 1999, equation 26).
    """
    one, two, three, four = (int(n) for n in counts_of_counts[1:5])
    if not (one and two and three):
        return None
    y = one / (one + 2 * two)
    values = 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three
    return values if all(0 < d <= max_discount for d, max_discount in zip(values, (1, 2, 3))) else None


def estimate_level_discounts(level: NgramCounts) -> tuple[float, float, float]:
    """Estimate the discounts of a level, with fixed ones as fallback."""
    counts_of_counts = np.zeros(6, np.int64)
    for first in range(0, len(level.adjusted_counts), BLOCK_SIZE):
        counts_of_counts += np.bincount(np.minimum(level.adjusted_counts[first : first + BLOCK_SIZE], 5), minlength=6)
    return estimate_discounts(counts_of_counts) or FALLBACK_DISCOUNTS


def estimate_kneser_ney(
    counts: Sequence[NgramCounts],
    vocab: NgramVocab,
    work_dir: Path,
    cutoffs: Sequence[int] = (),
    fixed_discounts: Sequence[tuple[float, float, float]] | None = None,
) -> tuple[NgramTrie, list[tuple[float, float, float]]]:
    """Estimate a model, mapped from files in `work_dir`; return it and the discounts of each order.

    An n-gram that occurs at most `cutoffs[n - 1]` times is dropped and its whole count discounted. The last cutoff
    applies to all longer n-grams. Cutoffs must not decrease, so that the remaining n-grams keep their contexts and
    suffixes.
    """
    order_cutoffs = [*cutoffs, *[cutoffs[-1] if cutoffs else 0] * len(counts)][: len(counts)]
    if order_cutoffs[0] or any(a > b for a, b in itertools.pairwise(order_cutoffs)) or min(order_cutoffs) < 0:
        raise ConfigError(
            f"cutoffs is {list(cutoffs)}; the first must be 0 (all words are kept) and they must not decrease"
        )
    level_discounts = (
        list(fixed_discounts) if fixed_discounts is not None else [estimate_level_discounts(level) for level in counts]
    )
    logp = _unigram_log_probs(counts[0], vocab, level_discounts[0])
    levels = [TrieLevel(counts[0].words, counts[0].child_offsets, logp, np.zeros(0, np.float32))]
    for order, (level, order_discounts, cutoff) in enumerate(
        zip(counts[1:], level_discounts[1:], order_cutoffs[1:]), start=2
    ):
        logp, backoff = _level_log_probs(level, levels[-1].logp, order_discounts, cutoff, work_dir, order)
        levels[-1] = levels[-1]._replace(backoff=backoff)
        levels.append(TrieLevel(level.words, level.child_offsets, logp, np.zeros(0, np.float32)))
    if any(order_cutoffs):
        levels = _prune_levels(levels, counts, order_cutoffs, work_dir)
    return NgramTrie(vocab, levels), level_discounts


def _unigram_log_probs(level: NgramCounts, vocab: NgramVocab, discounts: tuple[float, float, float]) -> np.ndarray:
    counts = level.adjusted_counts.astype(np.float64)
    discount_mass = np.array([0.0, *discounts])[np.minimum(level.adjusted_counts, 3)]
    uniform_prob = discount_mass.sum() / counts.sum() / vocab.is_predicted.sum()
    probs = np.where(vocab.is_predicted, (counts - discount_mass) / counts.sum() + uniform_prob, 10.0**LOG10_ZERO)
    return np.log10(probs).astype(np.float32)


def _level_log_probs(
    level: NgramCounts,
    lower_logp: np.ndarray,
    discounts: tuple[float, float, float],
    cutoff: int,
    work_dir: Path,
    order: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log10 probabilities of a level and the log10 back-off weights γ of the level below."""
    logp_file = FileArray(work_dir / f"{order}.logp", np.float32)
    backoff_file = FileArray(work_dir / f"{order}.backoff", np.float32)
    discount_by_count = np.array([0.0, *discounts])
    for contexts, ngrams in context_blocks(level.child_offsets):
        num_children = np.diff(level.child_offsets[contexts.start : contexts.stop + 1]).astype(np.int64)
        context_index = np.repeat(np.arange(len(num_children)), num_children)
        counts = level.adjusted_counts[ngrams].astype(np.float64)
        discount_mass = discount_by_count[np.minimum(level.adjusted_counts[ngrams], 3)]
        if cutoff:
            discount_mass = np.where(level.raw_counts[ngrams] > cutoff, discount_mass, counts)
        totals = np.maximum(np.bincount(context_index, counts, len(num_children)), 1)
        backoff_mass = np.where(
            num_children > 0, np.bincount(context_index, discount_mass, len(num_children)) / totals, 1.0
        )
        lower_probs = 10.0 ** lower_logp[level.suffix_ids[ngrams]].astype(np.float64)
        logp_file.append(
            np.log10((counts - discount_mass) / totals[context_index] + backoff_mass[context_index] * lower_probs)
        )
        backoff_file.append(np.log10(backoff_mass))
    return logp_file.to_memmap(), backoff_file.to_memmap()


def _prune_levels(
    levels: Sequence[TrieLevel], counts: Sequence[NgramCounts], cutoffs: Sequence[int], work_dir: Path
) -> list[TrieLevel]:
    """Drop the n-grams at or below the cutoffs."""
    pruned_levels = [levels[0]]
    for order, (level, cutoff) in enumerate(zip(levels[1:], cutoffs[1:]), start=2):
        raw_counts, context_counts = counts[order - 1].raw_counts, counts[order - 2].raw_counts
        array_files = [
            FileArray(work_dir / f"{order}.kept.{part}", array.dtype) for part, array in zip(TrieLevel._fields, level)
        ]
        offset = np.zeros(1, level.child_offsets.dtype)
        array_files[1].append(offset)
        for contexts, ngrams in context_blocks(level.child_offsets):
            is_kept = raw_counts[ngrams] > cutoff
            num_children = np.diff(level.child_offsets[contexts.start : contexts.stop + 1]).astype(np.int64)
            num_kept_children = np.bincount(
                np.repeat(np.arange(len(num_children)), num_children), is_kept, len(num_children)
            ).astype(np.int64)
            is_context_kept = (
                context_counts[contexts] > cutoffs[order - 2] if order > 2 else np.ones(len(num_children), bool)
            )
            ends = offset + np.cumsum(num_kept_children[is_context_kept]).astype(offset.dtype)
            array_files[1].append(ends)
            offset = ends[-1:] if len(ends) else offset
            for array_file, array in ((array_files[0], level.words), (array_files[2], level.logp)):
                array_file.append(array[ngrams][is_kept])
            if order < len(levels):
                array_files[3].append(level.backoff[ngrams][is_kept])
        pruned_levels.append(TrieLevel(*(array_file.to_memmap() for array_file in array_files)))
    return pruned_levels
