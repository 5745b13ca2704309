"""Multi-bootstrap: intervals of differences when seeds and examples are drawn anew (Sellam et al. 2022, §3).

An arm is a way to train: several models that differ in their pre-training seed, each fine-tuned with one or more seeds.
A resample draws examples, the same for all models, and pre-training seeds of each arm; a drawn model counts with the
mean of its fine-tuning seeds, since drawing within a drawn model would count their noise twice (Davison and Hinkley
1997, §3.8). An arm of a single model has no other seeds to draw than those of its fine-tuning.

Percentiles of few seeds are too narrow: see `SEED_COVERAGE`.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np

from polyseme.errors import ConfigError

# How often the 95 % interval of a difference covers the truth if only seeds vary, by seeds of each arm (simulated).
SEED_COVERAGE = {2: 0.66, 3: 0.80, 4: 0.86, 5: 0.88, 10: 0.92}
_MAX_COUNTS = 1 << 22  # counts of examples in memory at once


def resample_points(
    points: np.ndarray, num_resamples: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return the mean points of models, [models, examples], on resampled examples: [models, resamples].

    With the `groups` of examples it is the mean of group means, without groups of which no example was drawn. Examples
    with the same points in all models are drawn together, by their number.
    """
    points = np.asarray(points, dtype=np.float64)
    labels = np.zeros(points.shape[1]) if groups is None else np.asarray(groups, dtype=np.float64)
    rows, multiplicity = np.unique(np.column_stack([labels, points.T]), axis=0, return_counts=True)
    bounds = [*np.flatnonzero(np.diff(rows[:, 0], prepend=np.nan)), len(rows)]  # rows are sorted by group
    scores = np.empty((len(points), num_resamples))
    for start in range(0, num_resamples, chunk := max(_MAX_COUNTS // len(rows), 1)):
        counts = _draw_counts(multiplicity, min(chunk, num_resamples - start), rng)
        means = np.empty((len(bounds) - 1, len(points), len(counts)))
        for group, (low, high) in enumerate(pairwise(bounds)):
            group_counts = counts[:, low:high].T.astype(np.float64)
            sums, sizes = rows[low:high, 1:].T @ group_counts, group_counts.sum(axis=0)
            means[group] = np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)
        scores[:, start : start + len(counts)] = np.nanmean(means, axis=0)
    return scores


def _draw_counts(multiplicity: np.ndarray, num_resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each kind of example is drawn, [resamples, kinds]."""
    total, num_kinds = int(multiplicity.sum()), len(multiplicity)
    if 8 * num_kinds <= total:
        return rng.multinomial(total, multiplicity / total, size=num_resamples)
    starts = np.cumsum(multiplicity) - multiplicity
    draws = (np.bincount(rng.integers(total, size=total), minlength=total) for _ in range(num_resamples))
    return np.stack([np.add.reduceat(counts, starts) for counts in draws])


def resample_metric(
    score_fns: Sequence[Callable[[np.ndarray], float]],
    num_examples: int,
    num_resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the scores of models on resampled examples, [models, resamples].

    Each function scores one model on the examples of these indices, with repetitions.
    """
    scores = np.empty((len(score_fns), num_resamples))
    for column in range(num_resamples):
        indices = rng.integers(num_examples, size=num_examples)
        scores[:, column] = [score(indices) for score in score_fns]
    return scores


def multi_bootstrap(
    arms: Sequence[Sequence[np.ndarray]], rng: np.random.Generator, seed_sets: Sequence[Hashable] = ()
) -> np.ndarray:
    """Return the mean scores of arms over drawn seeds, [arms, resamples].

    An arm holds the scores of its models, one for each pre-training seed: [fine-tuning seeds, resamples], on the same
    resampled examples in all arms. Arms with the same entry in `seed_sets` are paired: they fine-tune the same models,
    in the same order, so they share the draw of models. By default, no arms are.
    """
    keys = seed_sets or range(len(arms))
    sizes: dict[Hashable, int] = {}
    weights: dict[Hashable, np.ndarray] = {}
    scores = []
    for arm, key in zip(arms, keys, strict=True):
        units = np.stack([model.mean(axis=0) for model in arm]) if len(arm) > 1 else np.atleast_2d(arm[0])
        if sizes.setdefault(key, len(arm)) != len(arm):
            raise ConfigError(f"paired arms have {sizes[key]} and {len(arm)} pre-training seeds, expected the same")
        pair_key = key if len(arm) > 1 else object()  # the fine-tuning seeds of one model are not paired
        if pair_key not in weights:
            weights[pair_key] = _draw_weights(*units.shape, rng)
        scores.append((weights[pair_key] * units).sum(axis=0))
    return np.stack(scores)


def _draw_weights(num_seeds: int, num_resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the share of each seed in resamples of all seeds with replacement, [seeds, resamples]."""
    return rng.multinomial(num_seeds, [1 / num_seeds] * num_seeds, size=num_resamples).T / num_seeds
