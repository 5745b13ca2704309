"""Reports: self-contained HTML pages, and the page of a run."""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.io.atomic import write_text
from polyseme.io.json import read_json

STYLE = """
:root { --ink: #1c2230; --soft: #5b6478; --line: #dfe3ea; --paper: #ffffff; --tint: #f5f7fa; --mark: #2b6cb0; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 58rem; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p.lead { color: var(--soft); margin-top: 0; } p.note { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--tint); padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; border-radius: 4px; }
code { background: var(--tint); padding: .05rem .3rem; border-radius: 3px; } svg { max-width: 100%; height: auto; }
b.code { color: var(--mark); border-bottom: 2px solid var(--mark); font-weight: 600; }
blockquote { margin: .5rem 0; padding: .6rem 1rem; background: var(--tint); border-radius: 4px; font-size: .92rem;
             white-space: pre-wrap; overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto; }
div.side { display: flex; flex-wrap: wrap; gap: 0 3.5rem; align-items: flex-start; }
td.w { overflow-wrap: anywhere; min-width: 11rem; } td.n { white-space: nowrap; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
"""
# Control characters are shown as signs of their own: U+2400 and on.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def html_page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    body = "\n".join(f"<h2>{escape(heading)}</h2>\n{content}" for heading, content in sections if content)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f'<body><h1>{escape(title)}</h1><p class="lead">{lead}</p>\n{body}\n</body></html>\n'
    )


def escape(text: str) -> str:
    """Any text as HTML: control characters are shown, halves of surrogate pairs become question marks."""
    return html.escape(text.translate(_CONTROL_PICTURES).encode("utf-8", "replace").decode())


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Cells are escaped and run in the direction of their script; columns of numbers stand to the right."""

    def is_number(cell: Any) -> bool:
        return isinstance(cell, int | float) or str(cell)[:1].isdigit()

    def column_attributes(column: Sequence[Any]) -> str:
        filled = [cell for cell in column if cell != ""]
        if filled and all(map(is_number, filled)):
            return " class=n"
        return " class=w dir=auto" if any(len(str(cell)) > 40 for cell in filled) else " dir=auto"

    attributes = [column_attributes([row[i] for row in rows]) for i in range(len(header))]

    def table_row(cells: Sequence[Any], tag: str) -> str:
        inner = "".join(f"<{tag}{k}>{escape(_format_cell(c))}</{tag}>" for k, c in zip(attributes, cells))
        return f"<tr>{inner}</tr>"

    header_row = table_row(header, "th") if any(header) else ""
    return f"<table>{header_row}{''.join(table_row(row, 'td') for row in rows)}</table>"


def code(value: Any) -> str:
    return f"<pre>{escape(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def quote(text: str) -> str:
    """Text of a corpus, in the direction of its script."""
    return f'<blockquote dir="auto">{escape(text)}</blockquote>'


def columns(*parts: str) -> str:
    return f'<div class="side">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def loss_chart(rows: Sequence[dict[str, Any]], references: dict[str, float] | None = None, unit: str = "nats") -> str:
    """Training and validation loss by step, a chart for each term."""
    charts = []
    for name in sorted({name for row in rows for name in row.get("loss", {})}):
        points = [(r["step"], r["loss"][name]) for r in rows if name in r.get("loss", {})]
        window = len(points) // 40
        series = [Series("training", points, "#b9c4d6" if window > 1 else "#2b6cb0")]
        if window > 1:
            smoothed = np.convolve([value for _, value in points], np.ones(window) / window, "valid").tolist()
            window_ends = [step for step, _ in points[window - 1 :]]
            series.append(Series(f"training, mean of {window}", list(zip(window_ends, smoothed)), "#2b6cb0"))
        valid_points = [(r["step"], r["valid"][name]) for r in rows if name in r.get("valid", {})]
        series.append(Series("held-out", valid_points, "#c05621", show_points=True))
        for label, reference in (references or {}).items():
            ends = [(points[0][0], reference), (points[-1][0], reference)]
            series.append(Series(label, ends, "#5b6478", 'stroke-dasharray="2 3"'))
        charts.append(line_chart(series, "step", f"{name} loss ({unit})"))
    return columns(*charts)


@dataclass(frozen=True)
class Series:
    """A line of a chart; `style` is further attributes of its path."""

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    style: str = ""
    show_points: bool = False


def line_chart(series: Sequence[Series], x_label: str, y_label: str) -> str:
    """Lines over two axes as an inline SVG, `x_label` in whole numbers; points that are not finite are left out.

    It is drawn here: every run ends with one, and a plotting library takes longer for it than a small run takes.
    """
    visible = [
        replace(one_series, points=[p for p in one_series.points if all(map(math.isfinite, p))])
        for one_series in series
    ]
    visible = [one_series for one_series in visible if one_series.points]
    if not visible:
        return ""
    width, height, left_margin, top_margin = 430, 230, 62, 8 + 16 * math.ceil(len(visible) / 2)
    (x0, x1), (y0, y1) = (
        (min(values), max(values)) for values in zip(*(p for one_series in visible for p in one_series.points))
    )
    x1, (y0, y1) = max(x1, x0 + 1), (y0 - 0.04 * (y1 - y0), y1 + 0.04 * (y1 - y0)) if y1 > y0 else (y0 - 1, y0 + 1)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return left_margin + (x - x0) / (x1 - x0) * (width - left_margin - 12), top_margin + (y1 - y) / (
            y1 - y0
        ) * height

    def svg_text(x: float, y: float, content: str, attributes: str = 'text-anchor="middle"') -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'

    parts = []
    for number, one_series in enumerate(visible):
        coordinates = [to_pixels(*point) for point in one_series.points]
        path, legend_x, legend_y = (
            "L".join(f"{x:.1f} {y:.1f}" for x, y in coordinates),
            left_margin + 180 * (number % 2),
            16 * (number // 2),
        )
        legend_path = f"M{legend_x} {legend_y + 8}h18"
        parts.append(
            f'<path d="M{path}{legend_path}" fill="none" stroke="{one_series.color}" stroke-width="1.6" '
            f"{one_series.style}/>"
        )
        parts.append(svg_text(legend_x + 23, legend_y + 12, one_series.label, ""))
        dots = coordinates if one_series.show_points or len(coordinates) == 1 else ()
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{one_series.color}"/>' for x, y in dots]
    axes = f"M{left_margin} {top_margin}v{height}H{width}"
    for tick in _ticks(x0, x1, 6, min_step=1):
        x, y = to_pixels(tick, y0)
        axes += f"M{x:.1f} {y:.1f}v4"
        parts.append(svg_text(x, y + 17, f"{tick:,.10g}"))
    for tick in _ticks(y0, y1, 6):
        x, y = to_pixels(x0, tick)
        axes += f"M{x:.1f} {y:.1f}h-4"
        parts.append(svg_text(x - 8, y + 4, f"{tick:,.10g}", 'text-anchor="end"'))
    parts.append(svg_text((left_margin + width) / 2, top_margin + height + 36, x_label))
    parts.append(
        svg_text(
            12,
            top_margin + height / 2,
            y_label,
            f'text-anchor="middle" transform="rotate(-90 12 {top_margin + height / 2})"',
        )
    )
    return (
        f'<svg width="{width}" height="{top_margin + height + 44}" viewBox="0 0 {width} {top_margin + height + 44}" '
        f'font-size="11" fill="#1c2230" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}'
        f'<path d="{axes}" fill="none" stroke="#5b6478"/></svg>'
    )


def _ticks(low: float, high: float, max_ticks: int, min_step: float = 0.0) -> list[float]:
    """Round numbers between two, at most about so many: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), min_step)
    return [round(step * i, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def histograms(histogram_data: dict[str, tuple[Sequence[int], Sequence[int]]], y_label: str) -> str:
    """Borders and counts by what is measured, over logarithmic axes; tables where matplotlib is not installed."""
    try:
        figure, axes = _figure(len(histogram_data), 1, (4.25 * max(len(histogram_data), 1), 2.9))
    except ImportError:
        tables = []
        for name, (bin_edges, counts) in histogram_data.items():
            spans = [f"{low:,} to {high - 1:,}" for low, high in pairwise(bin_edges)]
            tables.append(html_table([name, y_label], list(zip(spans, counts))))
        return columns(*tables)
    for (name, (bin_edges, counts)), axis in zip(histogram_data.items(), axes[0]):
        axis.stairs(counts, bin_edges, fill=True, color="#2b6cb0", edgecolor="white", linewidth=0.8)
        _log_axis(axis, name, y_label)
    return _to_svg(figure)


def log_line_chart(points: Sequence[tuple[int, int]], x_label: str, y_label: str) -> str:
    """A curve over a logarithmic axis; a table where matplotlib is not installed."""
    try:
        figure, axes = _figure(1, 1, (4.25, 2.9))
    except ImportError:
        return html_table([x_label, y_label], points)
    axes[0][0].plot(*zip(*points), "o-", color="#2b6cb0", markersize=3)
    axes[0][0].set_ylim(bottom=0)
    _log_axis(axes[0][0], x_label, y_label)
    return _to_svg(figure)


def mean_std_chart(curves_by_name: dict[str, dict[int, tuple[float, float]]], x_label: str, y_label: str) -> str:
    """Curves with their deviation over a logarithmic axis, by name: place to mean and deviation; else a table."""
    try:
        figure, axes = _figure(1, 1, (5.6, 3.4))
    except ImportError:
        x_values = sorted({x_value for curve_points in curves_by_name.values() for x_value in curve_points})
        mean_cells = [
            [f"{curve_points[p][0]:.4f}" if p in curve_points else "" for p in x_values]
            for curve_points in curves_by_name.values()
        ]
        return html_table(
            [x_label, *map(str, x_values)], [[name, *cells] for name, cells in zip(curves_by_name, mean_cells)]
        )
    axis = axes[0][0]
    for (name, curve_points), color in zip(
        curves_by_name.items(), ("#8a94a6", "#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
    ):
        x_values = sorted(curve_points)
        means, deviations = (np.array([curve_points[x_value][i] for x_value in x_values]) for i in (0, 1))
        axis.plot(x_values, means, "o-", color=color, markersize=3.5, label=name)
        axis.fill_between(x_values, means - deviations, means + deviations, color=color, alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.legend(frameon=False, fontsize=8)
    return _to_svg(figure)


def attention_grid(tokens: Sequence[str], maps: np.ndarray) -> str:
    """A grid of attention maps, layers down and heads across."""
    num_layers, num_heads = maps.shape[:2]
    try:
        size = max(2.4, 0.22 * len(tokens))
        figure, axes = _figure(num_heads, num_layers, (num_heads * size + 1, num_layers * size + 0.6))
    except ImportError:
        return ""
    for layer in range(num_layers):
        for head in range(num_heads):
            axis = axes[layer][head]
            axis.imshow(maps[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="equal")
            axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
            axis.set_yticks(range(len(tokens)), tokens if head == 0 else [], fontsize=7)
            for side in axis.spines.values():
                side.set_visible(False)
    return _to_svg(figure)


def cost_table(results: dict[str, Any]) -> str:
    rows = [
        ("parameters", results["parameters"]),
        ("steps", results["steps"]),
        ("tokens read", results["tokens"]),
        ("floating-point operations", f"{results['flops']:.3g}"),
        ("device-hours", f"{results['device_hours']:.4f}"),
        ("tokens per second", round(results["tokens"] / max(results["device_hours"] * 3600, 1e-9))),
    ]
    environment = ", ".join(f"{k} {v}" for k, v in results["environment"].items())
    return html_table(["cost", ""], rows) + note(environment)


def metrics_table(values: dict[str, float]) -> str:
    return html_table(["held-out text", ""], [(name, f"{value:.4f}") for name, value in values.items()])


def dev_selection_note(choices: Sequence[str]) -> str:
    """What must be said of a score, where something was chosen on the examples that it is measured on."""
    return f"Scores flatter: chosen on the same dev examples: {', '.join(choices)}." if choices else ""


def truncation_note(results: dict[str, Any], split: str) -> str:
    """How many examples of a part lost tokens, and what share that is."""
    num_truncated, total = results["num_truncated"][split], results[f"{split}_examples"]
    return (
        f"{split}: {num_truncated:,} of {total:,} examples ({num_truncated / max(total, 1):.1%}) were cut"
        if num_truncated
        else ""
    )


def read_log(run: Path) -> list[dict[str, Any]]:
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_report(run: Path) -> Path:
    """`report.html` of a pre-training or fine-tuning run, from what the run folder holds."""
    results = read_json(run / "results.json")
    if (run / "recipe.json").exists():
        saved = read_json(run / "recipe.json")
        recipe = saved["recipe"]
        text = html_page(
            f"Pre-training: {recipe['name']}",
            f"{escape(recipe['family'])} on {escape(saved['corpus'])}",
            [
                ("Loss", loss_chart(read_log(run))),
                ("Results", metrics_table(results["valid"])),
                ("Cost", cost_table(results)),
                ("The exact recipe", code(recipe)),
                (
                    "What next",
                    code(f"polyseme score {run}/model --data TEXT.txt\npolyseme finetune {run}/model --help"),
                ),
            ],
        )
    else:
        names = list(results["mean"])
        rows = [[f"seed {r['seed']}", *(f"{r[n]:.4f}" for n in names)] for r in results["seeds"]]
        rows.append(["mean", *(f"{results['mean'][n]:.4f}" for n in names)])
        if len(results["seeds"]) > 1:
            rows.append(["std", *(f"{results['std'][n]:.4f}" for n in names)])
        log = [row for row in read_log(run) if row.get("seed") == results["best_seed"]]
        facts = {k: v for k, v in results.items() if k not in ("seeds", "mean", "std")}
        notes = [
            dev_selection_note(results.get("chosen_on_dev", ())),
            *(truncation_note(results, part) for part in results["num_truncated"]),
        ]
        settings = read_json(run / "model" / "polyseme.json")["metadata"]["settings"]
        unit = results.get("loss_unit", "nats")
        text = html_page(
            f"Fine-tuning: {results.get('data') or results['task']}",
            f"from {escape(str(results['model']))}",
            [
                ("Results", html_table(["", *names], rows) + "".join(note(line) for line in notes if line)),
                (f"Loss of seed {results['best_seed']}", loss_chart(log, unit=unit)),
                ("Facts", code(facts)),
                ("Settings", code(settings)),
            ],
        )
    write_text(run / "report.html", text)
    return run / "report.html"


def _figure(num_columns: int, num_rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(num_rows, max(num_columns, 1), squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _log_axis(axis: Any, x_label: str, y_label: str) -> None:
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)


def _to_svg(figure: Any) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "polyseme", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _format_cell(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.4g}" if isinstance(value, float) else str(value)
