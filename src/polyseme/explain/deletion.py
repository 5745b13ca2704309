"""Deletion curves, which show how faithful attributions are: the score falls fast without the most important words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyseme.inference.inspection.attribution import Attribution, AttributionInput, erase_in_order
from polyseme.report.charts import Series, line_chart
from polyseme.report.svg import Axis, color

MAX_STEPS = 20
NUM_SHARES = 21  # of the grid on which curves of several texts are averaged
NUM_RANDOM_ORDERS = 10
RANDOM = "random order"


@dataclass(frozen=True, eq=False)
class DeletionCurve:
    """The mean drop of the score by the share of words that are erased, with 95 % intervals over texts if several.

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
        num_texts = len(self.drops)
        return 1.96 * self.drops.std(0, ddof=1) / np.sqrt(num_texts) if num_texts > 1 else np.zeros(len(self.shares))

    @property
    def aopc(self) -> float:
        """The mean drop over the steps."""
        return float(self.mean.mean())

    @property
    def aopc_margin(self) -> float:
        """Half of the 95 % interval of `aopc` over texts, 0 for one text."""
        means, num_texts = self.drops.mean(1), len(self.drops)
        return float(1.96 * means.std(ddof=1) / np.sqrt(num_texts)) if num_texts > 1 else 0.0

    def describe(self) -> dict[str, Any]:
        """Return the numbers."""
        record = {"shares": self.shares.tolist(), "drops": self.mean.tolist(), "aopc": self.aopc}
        if len(self.drops) > 1:
            record |= {"interval_95": self.margin.tolist(), "aopc_interval_95": self.aopc_margin}
        return record


@dataclass(frozen=True, eq=False)
class Deletion:
    """The curves of each method, with the most and with the least important words first, and that of random orders."""

    most_first: Mapping[str, DeletionCurve]
    least_first: Mapping[str, DeletionCurve]
    random: DeletionCurve

    def area(self, method: str) -> float:
        """The area between the two curves of a method; a faithful one has a large area, a random one 0."""
        most, least = self.most_first[method], self.least_first[method]
        return float(np.trapezoid(most.mean - least.mean, most.shares))

    def describe(self) -> dict[str, Any]:
        """Return the numbers."""
        methods = {
            name: {
                "most_important_first": self.most_first[name].describe(),
                "least_important_first": self.least_first[name].describe(),
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


def deletion_chart(deletion: Deletion, titles: Mapping[str, str], y_label: str) -> str:
    """Draw the curves: a line per method, its reverse order faint, and random orders dashed."""
    series = []
    for i, (method, curve) in enumerate(deletion.most_first.items()):
        series.append(_series(titles[method], curve, color(i), ""))
        reverse = _series("", deletion.least_first[method], color(i), "2 3")
        series.append(Series(reverse.label, reverse.points, reverse.color, reverse.dash, is_faint=True))
    series.append(_series(RANDOM, deletion.random, "var(--ink)", "7 3"))
    x = Axis("share of words erased", percent=True, range=(0, 1))
    return line_chart(series, x, Axis(y_label), height=300, direct_labels=True)


def _series(label: str, curve: DeletionCurve, line_color: str, dash: str) -> Series:
    points = list(zip(curve.shares.tolist(), curve.mean.tolist()))
    band = []
    if len(curve.drops) > 1:
        band = list(
            zip(curve.shares.tolist(), (curve.mean - curve.margin).tolist(), (curve.mean + curve.margin).tolist())
        )
    return Series(label, points, line_color, dash, show_points=bool(label) and not band, band=band)
