"""Deletion curves, which show how faithful attributions are: the score falls fast without the most important words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseme.inference.inspection.attribution import Attribution, AttributionInput, erase_in_order
from polyseme.report.charts import Panel, Series, panel_chart
from polyseme.report.svg import DASHES, Axis, color

MAX_STEPS = 20
NUM_SHARES = 21  # of the grid on which curves of several texts are averaged
NUM_RANDOM_ORDERS = 10
RANDOM = "random order"


@dataclass(frozen=True, eq=False)
class DeletionCurve:
    """The drop of the score by the share of words that are erased, of each text.

    `aopc` is the area over the perturbation curve, the mean drop over all steps (Samek et al. 2017, eq. 12).
    """

    shares: np.ndarray
    drops: np.ndarray  # [texts, shares]

    @property
    def mean(self) -> np.ndarray:
        """The mean over texts."""
        return self.drops.mean(0)

    @property
    def margin(self) -> np.ndarray:
        """Half of the 95 % interval of the mean, 0 for one text."""
        return interval_95(self.drops)

    @property
    def aopc(self) -> float:
        """The mean drop over the steps."""
        return float(self.mean.mean())

    @property
    def aopc_margin(self) -> float:
        """Half of the 95 % interval of `aopc` over texts, 0 for one text."""
        return float(interval_95(self.drops.mean(1)))

    def minus(self, other: "DeletionCurve") -> "DeletionCurve":
        """Return the difference from another curve, text by text: its interval is not that of different texts."""
        return DeletionCurve(self.shares, self.drops - other.drops)

    def describe(self) -> dict[str, Any]:
        """Return the numbers."""
        record = {"shares": self.shares.tolist(), "drops": self.mean.tolist(), "aopc": self.aopc}
        if len(self.drops) > 1:
            record |= {"interval_95": self.margin.tolist(), "aopc_interval_95": self.aopc_margin}
        return record


def interval_95(values: np.ndarray) -> np.ndarray:
    """Return half of the 95 % interval of the mean over the first axis, by Student's t; 0 for one value."""
    df = len(values) - 1
    if not df:
        return np.zeros(values.shape[1:])
    quantile = 1.96 + 2.372 / df + 2.823 / df**2 + 2.556 / df**3  # Cornish-Fisher expansion
    return quantile * values.std(0, ddof=1) / np.sqrt(len(values))


@dataclass(frozen=True, eq=False)
class Deletion:
    """The curves of each method, with the most and with the least important words first, and that of random orders."""

    most_first: Mapping[str, DeletionCurve]
    least_first: Mapping[str, DeletionCurve]
    random: DeletionCurve

    def over_random(self, method: str) -> DeletionCurve:
        """By how much more the score drops than in random orders."""
        return self.most_first[method].minus(self.random)

    def area(self, method: str) -> float:
        """The area between the two curves of a method; a faithful one has a large area, a random one 0."""
        difference = self.most_first[method].minus(self.least_first[method])
        return float(np.trapezoid(difference.mean, difference.shares))

    def describe(self) -> dict[str, Any]:
        """Return the numbers."""
        methods = {
            name: {
                "most_important_first": self.most_first[name].describe(),
                "least_important_first": self.least_first[name].describe(),
                "over_random_order": self.over_random(name).describe(),
                "area": self.area(name),
            }
            for name in self.most_first
        }
        return {"methods": methods, "random_order": self.random.describe()}


def delete_words(
    problems: Sequence[AttributionInput], attributions: Sequence[Sequence[Attribution]], seed: int = 0
) -> Deletion:
    """Erase more and more words of each text in the order of each method, and in random orders."""
    methods = [attribution.method for attribution in attributions[0]]
    rng, tables = np.random.default_rng(seed), []
    counts_per_text = []
    for problem, rows in zip(problems, attributions):
        words = problem.erasable_words
        counts = np.unique(np.linspace(0, len(words), min(len(words), MAX_STEPS) + 1).round().astype(int))
        orders = [sorted(words, key=lambda word, row=row: -row.word_scores[word]) for row in rows]  # type: ignore[misc]
        orders += [order[::-1] for order in orders]
        orders += [rng.permutation(words).tolist() for _ in range(NUM_RANDOM_ORDERS)]
        scores = erase_in_order(problem, orders, counts.tolist())
        drops = scores[:, :1] - scores
        tables.append(np.vstack([drops[: 2 * len(rows)], drops[2 * len(rows) :].mean(0)]))
        counts_per_text.append(counts / len(words))
    shares = counts_per_text[0] if len(problems) == 1 else np.linspace(0, 1, NUM_SHARES)
    curves = [
        DeletionCurve(shares, np.array([np.interp(shares, x, table[i]) for x, table in zip(counts_per_text, tables)]))
        for i in range(2 * len(methods) + 1)
    ]
    most, least = curves[: len(methods)], curves[len(methods) : -1]
    return Deletion(dict(zip(methods, most)), dict(zip(methods, least)), curves[-1])


def deletion_chart(deletion: Deletion, titles: Mapping[str, str], direct_labels: bool | None = None) -> str:
    """Draw the curves: a line per method, its reverse order faint, and random orders black.

    For several texts, a second panel has the difference from random orders, with its interval.
    """
    series, differences = [], []
    has_bands = len(deletion.random.drops) > 1
    for i, (method, curve) in enumerate(deletion.most_first.items()):
        series.append(Series(titles[method], _points(curve), color(i), DASHES[i], show_points=not has_bands))
        series.append(Series("", _points(deletion.least_first[method]), color(i), DASHES[i], is_faint=True))
        difference = deletion.over_random(method)
        low, high = difference.mean - difference.margin, difference.mean + difference.margin
        band = list(zip(difference.shares.tolist(), low.tolist(), high.tolist()))
        differences.append(Series("", _points(difference), color(i), DASHES[i], band=band))
    series.append(Series(RANDOM, _points(deletion.random), "var(--ink)", DASHES[4], show_points=not has_bands))
    panels = [Panel(series, Axis("drop of the score"), 300)]
    if has_bands:
        zero = Series("", [(0.0, 0.0), (1.0, 0.0)], "var(--ink)", DASHES[4])
        panels.append(Panel([*differences, zero], Axis("drop beyond that of random orders"), 200))
    return panel_chart(panels, Axis("share of words erased", percent=True, range=(0, 1)), direct_labels)


def _points(curve: DeletionCurve) -> list[tuple[float, float]]:
    return list(zip(curve.shares.tolist(), curve.mean.tolist()))
