"""The page of a benchmark: this run next to published systems, scores by data set, and links to their pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyseme.io.atomic import write_text
from polyseme.report.charts import Bar, bar_chart
from polyseme.report.html import (
    Cell,
    Html,
    bold,
    code,
    collapsed,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    note,
    warning,
)
from polyseme.report.pages.compare_tables import Table, latex_table
from polyseme.report.pages.finetuning_page import dev_selection_note

COMPARABILITY = (
    "Published results are on the test sets, and those of this run on the dev sets, in percent: differences below a "
    "point or two mean little."
)
TableData = tuple[Sequence[str], Sequence[Sequence[str]]]  # header and rows; the last row is this run


def write_benchmark_page(
    folder: Path, name: str, table: TableData, notes: Sequence[str], summary: Mapping[str, Any]
) -> Path:
    """Write `report.html` of a benchmark from its table of published systems and its summary; return the page."""
    header, rows = table
    published = [[bold(cell) if _is_this_run(row) and cell else cell for cell in row] for row in rows]
    sections = [
        ("Next to published systems", html_table(header, published) + "".join(map(note, [COMPARABILITY, *notes]))),
        ("Average", _average_figure(header, rows, summary)),
        ("Scores by data set", _score_table(summary)),
        ("Diagnostic sets", _diagnostic_table(summary.get("diagnostic_scores", {}))),
        ("Export", collapsed("LaTeX (booktabs)", code(latex_table(Table(tuple(header), tuple(map(tuple, rows))))))),
    ]
    lead = f"<code>{escape(str(summary['config']['model']))}</code> fine-tuned on each data set"
    top = "".join(map(warning, _warnings(summary))) + key_figures(_key_figures(summary))
    write_text(folder / "report.html", html_page(f"Benchmark: {name}", lead, sections, top))
    return folder / "report.html"


def _is_this_run(row: Sequence[str]) -> bool:
    return row[0].startswith(("this run", "±"))


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    lines = [dev_selection_note(summary.get("chosen_on_dev", ()))]
    failed = "; ".join(f"{task}: {', '.join(map(str, seeds))}" for task, seeds in summary["failed_seeds"].items())
    lines.append(f"Failed seeds, no better than a trivial baseline: {failed}." if failed else "")
    missing = ", ".join(summary["missing"])
    lines.append(f"There is no average: these data sets are missing: {missing}." if missing else "")
    return [line for line in lines if line]


def _key_figures(summary: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    figures: list[tuple[str, Any, str]] = []
    if summary["average"] is not None:
        figures.append(("average", f"{summary['average']:.1f}", f"over {len(summary['mean'])} data sets"))
    seeds = len(next(iter(summary["scores"].values()), ()))
    figures.append(("data sets", len(summary["mean"]), f"{seeds} seed(s) each"))
    figures.append(("parameters", f"{summary['parameters'] / 1e6:.1f}M", ""))
    if summary.get("ms_per_text"):
        figures.append(("one text", f"{summary['ms_per_text']:.1f} ms", "mean over the data sets"))
    return figures


def _average_figure(header: Sequence[str], rows: Sequence[Sequence[str]], summary: Mapping[str, Any]) -> str:
    """Draw the average next to those of published systems; a system with two published versions is drawn twice."""
    if summary["average"] is None or "avg" not in header:
        return ""
    column = list(header).index("avg")
    published = dict.fromkeys((row[0], row[column]) for row in rows if row[column] and not _is_this_run(row))
    bars = [Bar(system, float(value), is_reference=True) for system, value in published]
    bars = sorted([*bars, Bar("this run", summary["average"])], key=lambda bar: -bar.value)
    place = 1 + next(i for i, bar in enumerate(bars) if not bar.is_reference)
    caption = f"Gray bars are published systems; this run is number {place} of {len(bars)}."
    return figure(bar_chart(bars, "average score"), caption) if len(bars) > 1 else ""


def _score_table(summary: Mapping[str, Any]) -> str:
    rows = []
    for task, mean in summary["mean"].items():
        std = summary["std"][task]
        values = ", ".join(f"{value:.1f}" for value in summary["scores"][task])
        has_page = task in summary["done"]
        link = Html(f'<a href="{escape(task)}/report.html">{escape(task)}</a>') if has_page else task
        rows.append([link, Cell(f"{mean:.1f}", max(mean, 0) / 100), "" if std is None else f"{std:.1f}", values])
    return html_table(["data set", "mean", "std", "seeds"], rows) + note("Each data set has a page with its errors.")


def _diagnostic_table(scores: Mapping[str, Mapping[str, float]]) -> str:
    rows = [[name, metric, f"{value:.4f}"] for name, metrics in scores.items() for metric, value in metrics.items()]
    return html_table(["set", "metric", "score"], rows) if rows else ""
