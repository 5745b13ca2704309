"""Scores with intervals: dev sentences and seeds are resampled together for all layers of a model."""

from dataclasses import dataclass
from typing import Self

import numpy as np

NUM_RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; both are None where the value is not defined."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def from_samples(cls, samples: np.ndarray) -> Self:
        """Return the first sample, which is that of all data, with percentiles of the others, the resampled ones."""
        if not np.isfinite(samples[0]):
            return cls(None, None, None)
        finite = samples[1:][np.isfinite(samples[1:])]
        low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(finite) else (samples[0],) * 2
        return cls(float(samples[0]), float(low), float(high))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def format(self, digits: int = 3) -> str:
        """Format as `0.912 (0.905 to 0.919)`."""
        if self.value is None or self.interval is None:
            return "–"
        return f"{self.value:.{digits}f} ({self.interval[0]:.{digits}f} to {self.interval[1]:.{digits}f})"


@dataclass(frozen=True, eq=False)
class GroupScores:
    """A metric that is a ratio of sums over groups (sentences or texts): accuracy, F1, or UUAS.

    Groups outside the dev part of a seed have the total 0.
    """

    points: np.ndarray  # float32 [seeds, layers, groups]
    totals: np.ndarray  # float32 [seeds, layers, groups]


@dataclass(frozen=True, eq=False)
class Resampler:
    """Random draws of groups and of seeds, with replacement; the first row counts everything once.

    All layers and variants of a model share the draws, so differences between them are paired.
    """

    group_counts: np.ndarray  # float32 [1 + resamples, groups]
    seed_counts: np.ndarray  # float32 [1 + resamples, seeds]

    @classmethod
    def draw(cls, is_scored: np.ndarray, num_seeds: int, num_resamples: int = NUM_RESAMPLES) -> Self:
        """Draw from the groups that some seed scores, a boolean for each group."""
        rng = np.random.default_rng(0)
        members = np.flatnonzero(is_scored)
        groups = np.zeros((1 + num_resamples, len(is_scored)), dtype=np.float32)
        groups[0, members] = 1
        for row in groups[1:]:
            row[members] = np.bincount(rng.integers(len(members), size=len(members)), minlength=len(members))
        draws = rng.integers(num_seeds, size=(num_resamples, num_seeds))
        counts = (draws[:, :, None] == np.arange(num_seeds)).sum(1)
        return cls(groups, np.concatenate([np.ones((1, num_seeds)), counts]).astype(np.float32))

    def scores(self, scores: GroupScores) -> np.ndarray:
        """Return the mean score over the drawn seeds on the drawn groups, [1 + resamples, layers]."""
        points, totals = (
            np.einsum("slg,rg->rsl", part, self.group_counts, optimize=True) for part in (scores.points, scores.totals)
        )
        ratios = np.divide(points, totals, out=np.zeros_like(points), where=totals > 0)
        weights = self.seed_counts / self.seed_counts.sum(1, keepdims=True)
        return np.einsum("rsl,rs->rl", ratios, weights).astype(np.float64)


def estimate_layers(samples: np.ndarray) -> list[Estimate]:
    """Return the estimate of each layer from samples [1 + resamples, layers]."""
    return [Estimate.from_samples(column) for column in samples.T]


def center_of_gravity(samples: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return the expected layer at which a task is solved, [1 + resamples] (Tenney et al. 2019, eq. 4).

    It is the mean of the layers above the first, each weighted by what it adds to the best score of the layers below
    it. It is NaN if no layer adds anything.
    """
    best = np.maximum.accumulate(samples, axis=1)
    gains = np.diff(best, axis=1)
    sums = gains.sum(1)
    weighted = gains @ depths[1:]
    return np.divide(weighted, sums, out=np.full_like(sums, np.nan), where=sums > 0)
