"""The figure of a study: a dot with its interval for each arm, one panel for each metric."""

from collections.abc import Sequence

from polyseme.report.dots import Dot, DotPanel
from polyseme.studies.analysis.results import StudyResults
from polyseme.studies.analysis.table import (
    arm_interval,
    arm_label,
    column_title,
    find_best,
    is_percent,
    measured_metrics,
)
from polyseme.studies.metrics import METRICS


def study_panels(results: StudyResults) -> Sequence[DotPanel]:
    """Return a panel for each metric, with the arms in their order."""
    panels = []
    for name in measured_metrics(results):
        factor, best, dots = 100.0 if is_percent(METRICS[name]) else 1.0, find_best(results, name), []
        for arm in results.study.arms:
            values = tuple(factor * value for value in results.values(arm.name, name))
            estimate = arm_interval(results, arm.name, name)
            interval = None
            if estimate is not None and estimate.has_variation:
                low, high = estimate.interval()
                interval = (factor * low, factor * high)
            dots.append(Dot(arm_label(results, arm.name), values, interval, arm.name == best))
        note = "not ranked" if name.startswith("pseudo") else ""
        panels.append(DotPanel(column_title(name), dots, note))
    return panels
