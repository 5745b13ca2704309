"""The tables of a study, which its pages show as Markdown and as HTML."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from polyseme.evaluation.comparison.random_effects import DifferenceEstimate, estimate_difference
from polyseme.finetuning.results import mean_std
from polyseme.report.pages.compare_tables import Table
from polyseme.report.svg import format_number
from polyseme.studies.analysis.examples import example_deviations
from polyseme.studies.analysis.results import StudyResults
from polyseme.studies.metrics import METRICS, Metric
from polyseme.studies.verdicts import Verdict, compare_arms

MINUS = "−"
BASELINES = {"trivial": "(majority class or mean)", "linear": "(linear model of words)"}  # labels of simple models


def is_percent(metric: Metric) -> bool:
    """Whether values are shares, which are shown in percent."""
    return metric.kind in ("task", "pairs") or metric.score == "accuracy"


def is_ranked(results: StudyResults, name: str) -> bool:
    """Whether the values of a metric may be ranked.

    Pseudo-likelihoods never are, and validation losses only between models with the same objective and tokenizer.
    """
    if METRICS[name].kind == "validation":
        if len({arm.tokenizer for arm in results.study.arms if results.values(arm.name, name)}) > 1:
            return False
        objectives = [row["recipe"].get("objective") for row in results.rows if "recipe" in row]
        return all(objective == objectives[0] for objective in objectives)
    return not name.startswith("pseudo")


def format_value(metric: Metric, value: float, signed: bool = False) -> str:
    """Format a value or a difference of a metric: in percent with one digit, or as it is with three."""
    number = (
        f"{100 * value:{'+' if signed else ''}.1f}" if is_percent(metric) else f"{value:{'+' if signed else ''}.3f}"
    )
    return number.replace("-", MINUS)


def unit(metric: Metric) -> str:
    """Return the unit of a difference."""
    return "points" if is_percent(metric) else "nats" if metric.score == "loss" else metric.title


def column_title(name: str) -> str:
    """Return the heading of a metric: its name, the score, and the better direction if that is down."""
    metric = METRICS[name]
    score = f" ({metric.score})" if metric.kind in ("task", "pairs") else ""
    return f"{metric.title}{score}" + ("" if metric.higher_is_better else " ↓")


def arm_interval(results: StudyResults, arm: str, name: str) -> DifferenceEstimate | None:
    """Estimate the mean of an arm in a metric over seeds and examples; None for fewer than two seeds."""
    rows = [row for row in results.arm_rows(arm) if name in row["metrics"]]
    values = results.values(arm, name)
    if len(values) < 2 or len(values) != len(rows):
        return None
    files = [row["metrics"][name].get("items") for row in rows]
    paths = [results.path / "arms" / arm / file for file in files if file]
    zeros = [0.0] * len(values)
    if len(paths) < len(values) or not all(path.is_file() for path in paths):
        return estimate_difference(values, zeros, is_paired=True)
    deviations = [example_deviations(path) for path in paths]
    return estimate_difference(values, zeros, (deviations, [0 * each for each in deviations]), is_paired=True)


def find_best(results: StudyResults, name: str) -> str:
    """Return the arm that is better in a metric than every other one, at 95 %; empty if there is none."""
    if not is_ranked(results, name):
        return ""
    sign = 1 if METRICS[name].higher_is_better else -1
    void = {row["arm"] for row in results.rows if row.get("is_void")}
    arms = [arm.name for arm in results.study.arms if arm.name not in void]
    means = {arm: statistics.fmean(values) for arm in arms if (values := results.values(arm, name))}
    if len(means) < 2:
        return ""
    best = max(means, key=lambda arm: sign * means[arm])
    for other in means:
        if other != best:
            estimate = compare_arms(results.study, results.rows, (best, other), name, results.path)
            if estimate is None or not estimate.has_variation or estimate.p_value >= 0.05:
                return ""
    return best


def score_table(results: StudyResults) -> Table:
    """Return arms by metrics: means and standard deviations over seeds; the best only where its interval allows it."""
    names = measured_metrics(results)
    best = {name: find_best(results, name) for name in names}
    rows, best_cells = [], set()
    for number, arm in enumerate(results.study.arms):
        cells = [_mean_cell(results, arm.name, name) for name in names]
        best_cells |= {(number, column) for column, name in enumerate(names, 1) if best[name] == arm.name}
        rows.append((arm_label(results, arm.name), *cells))
    for baseline, label in BASELINES.items():
        values = [results.baselines.get(name, {}).get(baseline) for name in names]
        cells = ["" if value is None else format_value(METRICS[name], value) for name, value in zip(names, values)]
        rows += [(label, *cells)] if any(cells) else []
    return Table(("arm", *map(column_title, names)), tuple(rows), frozenset(best_cells))


def measured_metrics(results: StudyResults) -> list[str]:
    """Return the metrics that some arm has, pseudo-likelihoods last."""
    rows = [row.get("metrics", {}) for row in results.rows]
    names = [name for name in results.study.metrics if any("value" in row.get(name, {}) for row in rows)]
    return sorted(names, key=lambda name: name.startswith("pseudo"))


def arm_label(results: StudyResults, arm: str) -> str:
    """Return the name of an arm, and whether its models are void or failed."""
    rows = [row for row in results.rows if row["arm"] == arm]
    num_void, num_failed = sum(bool(row.get("is_void")) for row in rows), sum("error" in row for row in rows)
    marks = [f"{num} of {len(rows)} {word}" for num, word in ((num_void, "void"), (num_failed, "failed")) if num]
    return f"{arm} ({', '.join(marks)})" if marks else arm


def _mean_cell(results: StudyResults, arm: str, name: str) -> str:
    values = results.values(arm, name)
    if not values:
        return ""
    mean, std = mean_std(values)
    count = f" ({len(values)})" if len(values) < results.num_seeds else ""
    return format_value(METRICS[name], mean) + ("" if std is None else f" ± {format_value(METRICS[name], std)}") + count


def cost_table(results: StudyResults) -> Table:
    """Return the cost and the size of each arm: means over its seeds."""
    header: tuple[str, ...] = ("arm", "training s", "steps", "tokens", "parameters", "without embeddings", "scoring s")
    header, rows = (*header, "device"), list[tuple[str, ...]]()
    for arm in results.study.arms:
        arm_rows = [row for row in results.arm_rows(arm.name) if "steps" in row]
        if not arm_rows:
            continue
        seconds = [sum(each.get("seconds", 0.0) for each in row["metrics"].values()) for row in arm_rows]
        names = ("train_seconds", "steps", "tokens", "parameters", "non_embedding_parameters")
        means = [statistics.fmean(row.get(name) or 0 for row in arm_rows) for name in names]
        texts = [f"{means[0]:,.0f}", f"{means[1]:,.0f}", *(format_number(each) if each else "" for each in means[2:])]
        device = ", ".join(dict.fromkeys(str(row.get("device", "")) for row in arm_rows))
        label = f"{arm.name} (model of {arm.from_arm})" if arm.from_arm else arm.name
        rows.append((label, *texts, f"{statistics.fmean(seconds):,.0f}", device))
    if len({row[-1] for row in rows}) < 2:  # the page names the one device elsewhere
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Table(header, tuple(rows))


def rate_table(results: StudyResults) -> Table | None:
    """Return the learning rates of each arm: that of pre-training with those that were tried, and those of tasks."""
    names = [name for name in measured_metrics(results) if METRICS[name].kind == "task"]
    rows = []
    for arm in results.study.arms:
        search = results.learning_rates.get(arm.name, {})
        arm_rows = results.arm_rows(arm.name)
        lr = next((row["lr"] for row in arm_rows if row.get("lr")), search.get("lr"))
        tried = ", ".join(format_number(each["lr"]) for each in search.get("rates", []) if "lr" in each)
        cells = [_format_rate(_row_rate(arm_rows, name)) for name in names]
        if lr or any(cells):
            rows.append((arm.name, _format_rate(lr), tried, *cells))
    header = ("arm", "pre-training", "tried", *(METRICS[name].title for name in names))
    if not any(row[2] for row in rows):
        header, rows = (*header[:2], *header[3:]), [(*row[:2], *row[3:]) for row in rows]
    return Table(header, tuple(rows)) if rows else None


def edge_arms(results: StudyResults) -> list[str]:
    """Return the arms whose best learning rate is the largest or smallest of those that were tried."""
    names = []
    for name, search in results.learning_rates.items():
        tried = [rate["lr"] for rate in search.get("rates", [])]
        if len(tried) > 1 and search.get("lr") in (min(tried), max(tried)):
            names.append(name)
    return names


def weak_arms(results: StudyResults) -> dict[str, list[str]]:
    """Return the arms whose mean is worse than the linear model of words, by task; of a task without any, nothing."""
    weak: dict[str, list[str]] = {}
    for name, baselines in results.baselines.items():
        for arm in results.study.arms:
            values = results.values(arm.name, name)
            if values and statistics.fmean(values) < baselines.get("linear", float("-inf")):
                weak.setdefault(name, []).append(arm.name)
    return weak


def _row_rate(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((r["metrics"][name]["finetune"]["lr"] for r in rows if "finetune" in r["metrics"].get(name, {})), None)


def _format_rate(lr: float | None) -> str:
    return format_number(lr) if lr else ""


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return the answers: difference, interval, p-value after Holm's correction, and what the paper reports."""
    rows = []
    for verdict in verdicts:
        question, metric = verdict.question, METRICS[verdict.question.metric]
        ends = verdict.interval or ()
        difference = "" if verdict.difference is None else format_value(metric, verdict.difference, signed=True)
        interval = " to ".join(format_value(metric, end, signed=True) for end in ends)
        published = "" if question.published is None else f"{question.published:+g}".replace("-", MINUS)
        compared = f"{question.arm} {MINUS} {question.reference}, {metric.title}"
        cells = (compared, difference, interval, format_p(verdict.adjusted_p), published, question.source)
        rows.append((question.text, verdict.answer, *cells))
    header = ("question", "answer", "compared", "difference", "95 % interval", "p (Holm)", "published", "source")
    return Table(header, tuple(rows))


def format_p(p: float | None) -> str:
    """Format a p-value."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
