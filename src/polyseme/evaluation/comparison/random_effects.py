"""The difference between two arms of few seeds, with seeds and examples as random effects.

The variance of the difference is that of the seeds, estimated from as many values as there are seeds, plus the
covariance of models over the examples that all of them share (Obuchowski and Rockette 1995, where readers are the seeds
and cases the examples). The degrees of freedom are those of Hillis (2007). Without example noise this is Welch's t test,
or the paired t test where both arms use the same models.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import brentq

MIN_SEEDS = 2


@dataclass(frozen=True)
class DifferenceEstimate:
    """A difference of means with its standard error and degrees of freedom; 0 if nothing varies."""

    difference: float
    std_error: float
    df: float

    @property
    def p_value(self) -> float:
        """The two-sided p-value; 1 if nothing varies."""
        if not self.std_error:
            return 1.0
        return float(2 * stats.t.sf(abs(self.difference) / self.std_error, self.df))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval."""
        margin = float(stats.t.isf((1 - level) / 2, self.df)) * self.std_error if self.std_error else 0.0
        return self.difference - margin, self.difference + margin

    def detectable_effect(self, alpha: float = 0.05, power: float = 0.8) -> float:
        """Return the smallest true difference that a test at level `alpha` detects with this power."""
        if not self.std_error:
            return 0.0
        threshold = float(stats.t.isf(alpha / 2, self.df))

        def excess_power(shift: float) -> float:
            return float(stats.nct.sf(threshold, self.df, shift) + stats.nct.cdf(-threshold, self.df, shift)) - power

        return self.std_error * float(brentq(excess_power, 0.0, 3 * threshold + 10))


def estimate_difference(
    first: ArrayLike, second: ArrayLike, deviations: tuple[ArrayLike, ArrayLike] | None = None, is_paired: bool = False
) -> DifferenceEstimate:
    """Estimate the mean of `first` minus that of `second`, which hold a value for each seed.

    `deviations` holds for each value a vector: the products of two vectors are the covariances of the models over
    examples. `is_paired` if the values of both arms at one position are of the same pre-trained model.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (first, second))
    u, v = (np.asarray(each, dtype=np.float64) for each in deviations or (np.zeros((len(a), 1)), np.zeros((len(b), 1))))
    difference = float(a.mean() - b.mean())
    if is_paired:
        terms, covariance = [_mean_variance(a - b)], _mean_covariance(u - v)
    else:
        terms = [_mean_variance(a), _mean_variance(b)]
        covariance = _mean_covariance(u) + _mean_covariance(v) - 2 * float(u.mean(axis=0) @ v.mean(axis=0))
    variance = sum(term for term, _ in terms) + max(covariance, 0.0)
    spread = sum(term**2 / df for term, df in terms)
    return DifferenceEstimate(difference, variance**0.5, variance**2 / spread if spread else np.inf)


def _mean_variance(values: np.ndarray) -> tuple[float, int]:
    """Return the variance of the mean of values, and its degrees of freedom."""
    if len(values) < MIN_SEEDS:
        raise ValueError(f"{len(values)} seed(s) have no variance, expected {MIN_SEEDS} or more")
    return float(values.var(ddof=1)) / len(values), len(values) - 1


def _mean_covariance(deviations: np.ndarray) -> float:
    """Return the mean covariance over examples of two different models of an arm."""
    num_models, total = len(deviations), deviations.sum(axis=0)
    return float(total @ total - (deviations**2).sum()) / (num_models * (num_models - 1))


def holm(p_values: ArrayLike) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979), in the same order."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()
