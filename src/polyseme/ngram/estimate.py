"""Interpolated modified Kneser-Ney (Chen & Goodman 1999, §3): from counts to probabilities and back-off weights.

p(w | h) = (c(hw) - D(c(hw))) / c(h·) + γ(h) p(w | h without its first word), where D has a value for counts of one, of
two, and of three or more, and γ(h) gives back what was taken. Below the words lies the even distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyseme.errors import UserError
from polyseme.ngram.count import BLOCK, Column, Counts, slices
from polyseme.ngram.trie import ZERO, Level, Ngrams, Words

FALLBACK = (0.5, 1.0, 1.5)  # where there are too few n-grams for counts of counts to tell


def discounts(counts: np.ndarray) -> tuple[float, float, float] | None:
    """What is taken from a count of one, two, three or more; None where counts of counts give no sound values.

    `counts` is how many n-grams have each count from 0 to 4 (Chen & Goodman 1999, equation 26).
    """
    one, two, three, four = (int(n) for n in counts[1:5])
    if not (one and two and three):
        return None
    y = one / (one + 2 * two)
    found = 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three
    return found if all(0 < d <= most for d, most in zip(found, (1, 2, 3))) else None


def discounts_of(level: Counts) -> tuple[float, float, float]:
    counts = np.zeros(6, np.int64)
    for first in range(0, len(level.adjusted), BLOCK):
        counts += np.bincount(np.minimum(level.adjusted[first : first + BLOCK], 5), minlength=6)
    return discounts(counts) or FALLBACK


def estimate(
    counts: Sequence[Counts],
    words: Words,
    work: Path,
    cutoffs: Sequence[int] = (),
    given: Sequence[tuple[float, float, float]] | None = None,
) -> tuple[Ngrams, list[tuple[float, float, float]]]:
    """The model, mapped from files in `work`, and the discounts of each order, which may be `given`.

    An n-gram that occurs at most `cutoffs[n - 1]` times is left out: all of its count is given back. The last cut-off
    holds for longer ones too. They do not fall, so that what is left has its contexts and suffixes.
    """
    limits = [*cutoffs, *[cutoffs[-1] if cutoffs else 0] * len(counts)][: len(counts)]
    if limits[0] or any(a > b for a, b in itertools.pairwise(limits)) or min(limits) < 0:
        raise UserError(f"cutoffs are {list(cutoffs)}: they begin with 0, since all words stay, and do not fall")
    used = list(given) if given is not None else [discounts_of(level) for level in counts]
    logp = _unigrams(counts[0], words, used[0])
    levels = [Level(counts[0].words, counts[0].begins, logp, np.zeros(0, np.float32))]
    for order, (level, taken, limit) in enumerate(zip(counts[1:], used[1:], limits[1:]), start=2):
        logp, backoff = _level(level, levels[-1].logp, taken, limit, work, order)
        levels[-1] = levels[-1]._replace(backoff=backoff)
        levels.append(Level(level.words, level.begins, logp, np.zeros(0, np.float32)))
    if any(limits):
        levels = _cut(levels, counts, limits, work)
    return Ngrams(words, levels), used


def _unigrams(level: Counts, words: Words, taken: tuple[float, float, float]) -> np.ndarray:
    counts = level.adjusted.astype(np.float64)
    off = np.array([0.0, *taken])[np.minimum(level.adjusted, 3)]
    even = off.sum() / counts.sum() / words.can_follow.sum()
    chances = np.where(words.can_follow, (counts - off) / counts.sum() + even, 10.0**ZERO)
    return np.log10(chances).astype(np.float32)


def _level(
    level: Counts, below: np.ndarray, taken: tuple[float, float, float], limit: int, work: Path, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log10 of the probabilities of a level and of the weights γ of the one below."""
    probabilities, weights = Column(work / f"{order}.logp", np.float32), Column(work / f"{order}.weight", np.float32)
    amounts = np.array([0.0, *taken])
    for contexts, ngrams in slices(level.begins):
        behind = np.diff(level.begins[contexts.start : contexts.stop + 1]).astype(np.int64)
        of = np.repeat(np.arange(len(behind)), behind)
        counts = level.adjusted[ngrams].astype(np.float64)
        off = amounts[np.minimum(level.adjusted[ngrams], 3)]
        if limit:
            off = np.where(level.raw[ngrams] > limit, off, counts)
        totals = np.maximum(np.bincount(of, counts, len(behind)), 1)
        shares = np.where(behind > 0, np.bincount(of, off, len(behind)) / totals, 1.0)
        lower = 10.0 ** below[level.suffix[ngrams]].astype(np.float64)
        probabilities.add(np.log10((counts - off) / totals[of] + shares[of] * lower))
        weights.add(np.log10(shares))
    return probabilities.mapped(), weights.mapped()


def _cut(levels: Sequence[Level], counts: Sequence[Counts], limits: Sequence[int], work: Path) -> list[Level]:
    """The levels without what the cut-offs leave out."""
    found = [levels[0]]
    for order, (level, limit) in enumerate(zip(levels[1:], limits[1:]), start=2):
        raw, above, last = counts[order - 1].raw, counts[order - 2].raw, order == len(levels)
        columns = [Column(work / f"{order}.kept.{part}", array.dtype) for part, array in zip(Level._fields, level)]
        end = np.zeros(1, level.begins.dtype)
        columns[1].add(end)
        for contexts, ngrams in slices(level.begins):
            kept = raw[ngrams] > limit
            behind = np.diff(level.begins[contexts.start : contexts.stop + 1]).astype(np.int64)
            left = np.bincount(np.repeat(np.arange(len(behind)), behind), kept, len(behind)).astype(np.int64)
            stays = above[contexts] > limits[order - 2] if order > 2 else np.ones(len(behind), bool)
            ends = end + np.cumsum(left[stays]).astype(end.dtype)
            columns[1].add(ends)
            end = ends[-1:] if len(ends) else end
            for column, array in ((columns[0], level.words), (columns[2], level.logp)):
                column.add(array[ngrams][kept])
            if not last:
                columns[3].add(level.backoff[ngrams][kept])
        found.append(Level(*(column.mapped() for column in columns)))
    return found
