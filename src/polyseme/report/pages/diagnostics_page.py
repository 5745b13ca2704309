"""The sections of a page about `Diagnostics`: confusion, labels, calibration, residuals, groups, errors."""

from collections.abc import Sequence

import numpy as np

from polyseme.report.charts import ScatterPoint, histogram, reliability_chart, scatter_chart
from polyseme.report.diagnostics import Calibration, Confusion, Diagnostics, ErrorCase, GroupScore, RegressionFit
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import Cell, collapsed, escape, figure, html_table, note, paragraph

NUM_SHOWN_ERRORS = 6
NUM_SHOWN_LABELS = 20
MIN_WEIGHT_SHARE = 0.12  # of the largest weight; words with smaller ones are not marked


def diagnostics_sections(diagnostics: Diagnostics) -> list[tuple[str, str]]:
    """Return headings and contents; those of parts that a task does not have are empty."""
    sections = [
        ("Confusion", _confusion_figure(diagnostics.confusion, diagnostics.unit) if diagnostics.confusion else ""),
        ("Scores by label", _label_table(diagnostics) if diagnostics.labels else ""),
        ("Calibration", _calibration_figure(diagnostics.calibration) if diagnostics.calibration else ""),
        ("Predicted and gold values", _fit_figures(diagnostics.fit) if diagnostics.fit else ""),
    ]
    sections += [(f"Scores by {name}", _group_table(name, rows)) for name, rows in diagnostics.groups.items()]
    name = "Largest errors" if diagnostics.fit or diagnostics.groups else "Errors"
    if any(error.probability is not None for error in diagnostics.errors):
        name = "Most confident errors"
    return [*sections, (name, _error_list(diagnostics))]


def top_confusion(confusion: Confusion) -> tuple[str, str, int] | None:
    """Return the most common confusion, gold label and predicted label, with its count; None without errors."""
    counts = np.array(confusion.counts)
    np.fill_diagonal(counts, 0)
    row, column = np.unravel_index(counts.argmax(), counts.shape)
    count = int(counts[row, column])
    return (confusion.labels[row], confusion.labels[column], count) if count else None


def _confusion_figure(confusion: Confusion, unit: str) -> str:
    counts = np.array(confusion.counts)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    texts = [[f"{count:,}" if count else "" for count in row] for row in confusion.counts]
    labels = Labels(confusion.labels, confusion.labels, "gold label", "predicted label")
    cell_size = min(max(330 / len(counts), 26), 44)
    chart = heat_map(shares, labels, cell_size, texts)
    words = "words" if unit == "entities" else unit
    caption = (
        f"Numbers are {words}; a cell is darker the larger its share of the row. Look for dark cells off the diagonal"
    )
    if (top := top_confusion(confusion)) is None:
        return figure(chart, f"{caption}: there are none, every prediction is right.")
    gold, predicted, count = top
    share = count / max(sum(confusion.counts[confusion.labels.index(gold)]), 1)
    return figure(
        chart, f"{caption}: most often, {gold!r} is taken for {predicted!r} ({count:,} times, {share:.0%} of it)."
    )


def _label_table(diagnostics: Diagnostics) -> str:
    ranked = sorted(diagnostics.labels, key=lambda score: score.f1)
    rows = [
        [score.label, Cell(f"{score.f1:.3f}", score.f1), f"{score.precision:.3f}", f"{score.recall:.3f}",
         score.support, score.num_predicted, score.num_train]
        for score in ranked
    ]  # fmt: skip
    header = ["label", "F1", "precision", "recall", "dev", "predicted", "training"]
    advice = "Low recall: the label is missed. Low precision: it is predicted too often."
    text = f"The weakest label comes first; counts are {diagnostics.unit}. {advice}"
    table = html_table(header, rows[:NUM_SHOWN_LABELS])
    others = rows[NUM_SHOWN_LABELS:]
    return (
        paragraph(text) + table + collapsed(f"{len(others)} more labels", html_table(header, others) if others else "")
    )


def _calibration_figure(calibration: Calibration) -> str:
    chart = reliability_chart([(each.confidence, each.accuracy, each.count) for each in calibration.bins])
    gap = calibration.confidence - calibration.accuracy
    verdict = "some bins are too confident and others too little" if calibration.ece > 0.05 else "small"
    if abs(gap) > 0.03:
        verdict = "the model is overconfident" if gap > 0 else "the model is more often right than it believes"
    caption = (
        f"Points below the diagonal are overconfident; large points have many predictions. The expected calibration "
        f"error is {calibration.ece:.1%}: {verdict} (mean confidence {calibration.confidence:.1%}, "
        f"right {calibration.accuracy:.1%})."
    )
    return figure(chart, caption)


def _fit_figures(fit: RegressionFit) -> str:
    low, high = (bound([*fit.gold, *fit.predicted]) for bound in (min, max))
    ends = [ScatterPoint("exact", low, low), ScatterPoint("exact", high, high)]
    points = [ScatterPoint("", x, y) for x, y in zip(fit.gold, fit.predicted)]
    scatter = scatter_chart([*points, *ends], "gold value", "predicted value", front=["exact"])
    counts, edges = np.histogram(np.array(fit.predicted) - np.array(fit.gold), bins=min(20, max(len(fit.gold) // 5, 5)))
    bars = histogram(edges.tolist(), counts.tolist(), "predicted minus gold", "dev examples")
    kind = "too high" if fit.bias > 0 else "too low"
    caption = (
        "Points on the dashed line are exact. A flat cloud means that the model keeps to the mean of the training set."
    )
    residuals = f"Predictions are {abs(fit.bias):.3g} {kind} on average, and {fit.mean_absolute_error:.3g} off."
    return figure(scatter, caption) + figure(bars, f"{residuals} Look for a second peak or a long tail on one side.")


def _group_table(name: str, rows: Sequence[GroupScore]) -> str:
    metrics = list(rows[0].metrics) if rows else []
    cells = [[row.name, row.count, *(_bar(row.metrics[metric]) for metric in metrics)] for row in rows]
    header = [name, "count", *metrics]
    return html_table(header, cells) + note("Groups with few examples have uncertain scores.") if rows else ""


def _bar(value: float) -> Cell:
    return Cell(f"{value:.3f}", min(max(value, 0.0), 1.0))


def _error_list(diagnostics: Diagnostics) -> str:
    errors = diagnostics.errors
    if not errors:
        return ""
    first, rest = errors[:NUM_SHOWN_ERRORS], errors[NUM_SHOWN_ERRORS:]
    purpose = "Read these first: they are wrong labels in the data, ambiguous cases, or what the model has not learned."
    total = "" if diagnostics.num_errors == diagnostics.num_examples else f"{diagnostics.num_errors:,} in all. "
    parts = [paragraph(f"{total}{purpose} {diagnostics.weights_meaning}".strip()), _cases(first)]
    return "".join([*parts, collapsed(f"{len(rest)} more errors", _cases(rest) if rest else "")])


def _cases(errors: Sequence[ErrorCase]) -> str:
    return f'<ol class="steps">{"".join(map(_case, errors))}</ol>'


def _case(error: ErrorCase) -> str:
    probability = "" if error.probability is None else f", {error.probability:.1%} sure"
    answers = f"<b>{escape(error.predicted)}</b>{probability}; gold: <b>{escape(error.gold)}</b>"
    place = f' <span style="color:var(--soft);font-size:.85em">{escape(error.location.rpartition("/")[2])}</span>'
    text = marked_words(error.words, error.weights) if error.words else escape(error.text)
    question = f"<b>{escape(error.question)}</b>\n" if error.question else ""
    return f'<li>{answers}{place}<blockquote dir="auto">{question}{text}</blockquote></li>'


def marked_words(words: Sequence[str], weights: Sequence[float]) -> str:
    """Render words with colored grounds by weight; words that speak against the answer are underlined."""
    largest = max(map(abs, weights), default=0.0)
    parts = []
    for word, weight in zip(words, weights):
        share = abs(weight) / largest if largest else 0.0
        if share < MIN_WEIGHT_SHARE:
            parts.append(escape(word))
            continue
        style = f"--share:{round(15 + 45 * share)}%" + (";text-decoration:underline" if weight < 0 else "")
        kind = ' class="minus"' if weight < 0 else ""
        parts.append(f'<mark{kind} style="{style}" title="{weight:+.3f}">{escape(word)}</mark>')
    return " ".join(parts)
