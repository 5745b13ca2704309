"""Interpolated modified Kneser-Ney smoothing (Chen & Goodman 1999, §3): probabilities and back-off weights.

p(w | h) = (c(hw) - D(c(hw))) / c(h·) + γ(h) p(w | h without its first word), with discounts D for counts of one, two,
and three or more, and γ(h) the discounted mass. Unigrams are interpolated with the uniform distribution.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import ConfigError
from polyseme.ngram.count import BLOCK_SIZE, FileArray, NgramCounts, context_blocks
from polyseme.ngram.trie import LOG10_ZERO, NgramTrie, NgramVocab, TrieLevel

Discounts = tuple[float, float, float]  # of counts one, two, and three or more
FALLBACK_DISCOUNTS: Discounts = (0.5, 1.0, 1.5)  # for levels with too few n-grams to estimate discounts


def estimate_discounts(counts_of_counts: np.ndarray) -> Discounts | None:
    """Estimate discounts (Chen & Goodman 1999, eq. 26) from the number of n-grams with each count; None if invalid."""
    one, two, three, four = (int(n) for n in counts_of_counts[1:5])
    if not (one and two and three):
        return None
    y = one / (one + 2 * two)
    discounts = 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three
    return discounts if all(0 < d <= max_discount for d, max_discount in zip(discounts, (1, 2, 3))) else None


def estimate_level_discounts(level: NgramCounts) -> Discounts:
    """Estimate the discounts of a level, with fixed ones as fallback."""
    counts_of_counts = np.zeros(6, np.int64)
    for first in range(0, len(level.adjusted_counts), BLOCK_SIZE):
        counts_of_counts += np.bincount(np.minimum(level.adjusted_counts[first : first + BLOCK_SIZE], 5), minlength=6)
    return estimate_discounts(counts_of_counts) or FALLBACK_DISCOUNTS


def estimate_kneser_ney(
    counts: Sequence[NgramCounts], vocab: NgramVocab, work_dir: Path, cutoffs: Sequence[int] = ()
) -> tuple[NgramTrie, list[Discounts]]:
    """Estimate a model, mapped from files in `work_dir`; return it and the discounts of each order.

    An n-gram that occurs at most `cutoffs[n - 1]` times is dropped and its whole count discounted. The last cutoff
    applies to all longer n-grams. Cutoffs must not decrease, so that the remaining n-grams keep their contexts and
    suffixes.
    """
    order_cutoffs = [*cutoffs, *[cutoffs[-1] if cutoffs else 0] * len(counts)][: len(counts)]
    if order_cutoffs[0] or order_cutoffs != sorted(order_cutoffs):
        raise ConfigError(f"cutoffs is {list(cutoffs)}; the first must be 0 and they must not decrease")
    discounts = list(map(estimate_level_discounts, counts))
    levels = [counts[0].trie._replace(logp=_unigram_log_probs(counts[0], vocab, discounts[0]))]
    for order, level in enumerate(counts[1:], start=2):
        cutoff, prefix = order_cutoffs[order - 1], work_dir / str(order)
        logp, backoff = _level_log_probs(level, levels[-1].logp, discounts[order - 1], cutoff, prefix)
        levels[-1] = levels[-1]._replace(backoff=backoff)
        levels.append(level.trie._replace(logp=logp))
    if any(order_cutoffs):
        levels = _prune_levels(levels, counts, order_cutoffs, work_dir)
    return NgramTrie(vocab, levels), discounts


def _unigram_log_probs(level: NgramCounts, vocab: NgramVocab, discounts: Discounts) -> np.ndarray:
    counts = level.adjusted_counts.astype(np.float64)
    discount_mass = np.array([0.0, *discounts])[np.minimum(level.adjusted_counts, 3)]
    uniform_prob = discount_mass.sum() / counts.sum() / vocab.is_predicted.sum()
    probs = np.where(vocab.is_predicted, (counts - discount_mass) / counts.sum() + uniform_prob, 10.0**LOG10_ZERO)
    return np.log10(probs).astype(np.float32)


def _level_log_probs(
    level: NgramCounts, lower_logp: np.ndarray, discounts: Discounts, cutoff: int, prefix: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log10 probabilities of a level and the log10 back-off weights γ of the level below."""
    logp_file = FileArray(prefix.with_suffix(".logp"), np.float32)
    backoff_file = FileArray(prefix.with_suffix(".backoff"), np.float32)
    discount_by_count = np.array([0.0, *discounts])
    for _, ngrams, num_children in context_blocks(level.trie.child_offsets):
        context_index = np.repeat(np.arange(len(num_children)), num_children)
        counts = level.adjusted_counts[ngrams].astype(np.float64)
        discount_mass = discount_by_count[np.minimum(level.adjusted_counts[ngrams], 3)]
        if cutoff:
            discount_mass = np.where(level.raw_counts[ngrams] > cutoff, discount_mass, counts)
        totals = np.maximum(np.bincount(context_index, counts, len(num_children)), 1)
        context_mass = np.bincount(context_index, discount_mass, len(num_children))
        gamma = np.where(num_children > 0, context_mass / totals, 1.0)
        lower_probs = 10.0 ** lower_logp[level.suffix_ids[ngrams]].astype(np.float64)
        probs = (counts - discount_mass) / totals[context_index] + gamma[context_index] * lower_probs
        logp_file.append(np.log10(probs))
        backoff_file.append(np.log10(gamma))
    return logp_file.to_memmap(), backoff_file.to_memmap()


def _prune_levels(
    levels: Sequence[TrieLevel], counts: Sequence[NgramCounts], cutoffs: Sequence[int], work_dir: Path
) -> list[TrieLevel]:
    """Drop the n-grams at or below the cutoffs."""
    pruned_levels = [levels[0]]
    for order, (level, cutoff) in enumerate(zip(levels[1:], cutoffs[1:]), start=2):
        raw_counts, context_counts = counts[order - 1].raw_counts, counts[order - 2].raw_counts
        arrays = level._asdict()
        files = {name: FileArray(work_dir / f"{order}.kept.{name}", array.dtype) for name, array in arrays.items()}
        offset = np.zeros(1, level.child_offsets.dtype)
        files["child_offsets"].append(offset)
        for contexts, ngrams, num_children in context_blocks(level.child_offsets):
            is_kept = raw_counts[ngrams] > cutoff
            context_index = np.repeat(np.arange(len(num_children)), num_children)
            num_kept = np.bincount(context_index, is_kept, len(num_children)).astype(np.int64)
            if order > 2:
                num_kept = num_kept[context_counts[contexts] > cutoffs[order - 2]]
            ends = offset + np.cumsum(num_kept).astype(offset.dtype)
            files["child_offsets"].append(ends)
            offset = ends[-1:] if len(ends) else offset
            for name in ("words", "logp", "backoff") if order < len(levels) else ("words", "logp"):
                files[name].append(arrays[name][ngrams][is_kept])
        pruned_levels.append(TrieLevel(**{name: file.to_memmap() for name, file in files.items()}))
    return pruned_levels
