"""The part of the page about attention heads that follow dependency relations."""

from polyseme.explain.explanation import PrintedTable
from polyseme.explain.probing.heads import ALL_RELATIONS, HeadProbe, ModelHeads, RelationHead
from polyseme.explain.probing.page import TaskReport
from polyseme.report.dots import Dot, DotPanel, dot_figure
from polyseme.report.html import escape, figure, html_table, note, paragraph
from polyseme.report.svg import shorten

MAX_ROWS, MIN_DEV_ARCS = 12, 10  # of relations in the figure


def report_heads(probe: HeadProbe) -> TaskReport:
    """List the best head of each relation next to the best offset, and draw their differences."""
    facts = (
        f"For each relation, the attention head whose most attended word is most often the syntactic head (or the "
        f"dependent), chosen on {probe.num_train:,} sentences and scored on {probe.num_dev:,}, next to the best fixed "
        "offset (Clark et al. 2019). Special tokens and the word itself do not count."
    )
    parts, tables = [paragraph(facts)], list[PrintedTable]()
    panels = [
        DotPanel(
            shorten(model.model, 30),
            [Dot(row.relation, (row.difference.value or 0.0,), row.difference.interval) for row in _best_rows(model)],
            "best head − best offset",
        )
        for model in probe.models
    ]
    chart = dot_figure(panels, "best attention head by relation")
    parts.append(
        figure(chart, "Difference in accuracy between the best head and the best offset, with 95 % intervals.")
    )
    for model in probe.models:
        header, rows = head_table(model)
        tables.append((header, rows))
        parts += [f"<h3>{escape(model.model)}</h3>", html_table(header, rows)]
    parts.append(note("Attention is not explanation: a head that follows a relation need not be used for it."))
    summary = "\n".join(line for model in probe.models for line in _summarize(probe.task, model))
    return TaskReport(probe.task, "".join(parts), {f"{probe.task}-difference": chart}, tables, summary)


def head_table(model: ModelHeads) -> PrintedTable:
    """Return the header and rows of the relations, most frequent first."""
    header = ["relation", "arcs", "head", "direction", "accuracy", "offset", "its accuracy", "difference"]
    rows = [
        [
            row.relation,
            row.num_dev,
            f"{row.layer}-{row.head}",
            row.direction,
            row.accuracy.format(),
            f"{row.offset:+d} {row.offset_direction}",
            row.offset_accuracy.format(),
            row.difference.format(),
        ]
        for row in sorted(model.relations, key=lambda row: -row.num_dev)
    ]
    return header, rows


def _best_rows(model: ModelHeads) -> list[RelationHead]:
    """Return the relations with the largest differences, without rare ones."""
    rows = [row for row in model.relations if row.num_dev >= MIN_DEV_ARCS] or model.relations
    return sorted(rows, key=lambda row: -(row.difference.value or 0.0))[:MAX_ROWS]


def _summarize(task: str, model: ModelHeads) -> list[str]:
    relations = [row for row in model.relations if row.relation != ALL_RELATIONS]
    better = [row for row in relations if row.difference.low is not None and row.difference.low > 0]
    lines = [f"{task}, {model.model}: a head beats the best offset in {len(better)} of {len(relations)} relations"]
    if better:
        best = max(better, key=lambda row: row.difference.value or 0.0)
        lines[0] += (
            f"; most in {best.relation}: layer {best.layer}, head {best.head}, {best.accuracy.format()} against "
            f"{best.offset_accuracy.format()}"
        )
    return lines
