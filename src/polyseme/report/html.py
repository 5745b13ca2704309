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

from polyseme.io.files import read_json, write_text

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
_SEEN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    body = "\n".join(f"<h2>{escape(heading)}</h2>\n{content}" for heading, content in sections if content)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f'<body><h1>{escape(title)}</h1><p class="lead">{lead}</p>\n{body}\n</body></html>\n'
    )


def escape(text: str) -> str:
    """Any text as HTML: control characters are shown, halves of surrogate pairs become question marks."""
    return html.escape(text.translate(_SEEN).encode("utf-8", "replace").decode())


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Cells are escaped and run in the direction of their script; columns of numbers stand to the right."""

    def number(cell: Any) -> bool:
        return isinstance(cell, int | float) or str(cell)[:1].isdigit()

    def kind(column: Sequence[Any]) -> str:
        filled = [cell for cell in column if cell != ""]
        if filled and all(map(number, filled)):
            return " class=n"
        return " class=w dir=auto" if any(len(str(cell)) > 40 for cell in filled) else " dir=auto"

    kinds = [kind([row[i] for row in rows]) for i in range(len(header))]

    def line(cells: Sequence[Any], tag: str) -> str:
        inner = "".join(f"<{tag}{k}>{escape(_cell(c))}</{tag}>" for k, c in zip(kinds, cells))
        return f"<tr>{inner}</tr>"

    head = line(header, "th") if any(header) else ""
    return f"<table>{head}{''.join(line(row, 'td') for row in rows)}</table>"


def code(value: Any) -> str:
    return f"<pre>{escape(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def quote(text: str) -> str:
    """Text of a corpus, in the direction of its script."""
    return f'<blockquote dir="auto">{escape(text)}</blockquote>'


def side_by_side(*parts: str) -> str:
    return f'<div class="side">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def curves(rows: Sequence[dict[str, Any]], references: dict[str, float] | None = None, unit: str = "nats") -> str:
    """Training and validation loss by step, a chart for each term."""
    charts = []
    for name in sorted({name for row in rows for name in row.get("loss", {})}):
        points = [(r["step"], r["loss"][name]) for r in rows if name in r.get("loss", {})]
        width = len(points) // 40
        lines = [Line("training", points, "#b9c4d6" if width > 1 else "#2b6cb0")]
        if width > 1:
            smooth = np.convolve([value for _, value in points], np.ones(width) / width, "valid").tolist()
            places = [step for step, _ in points[width - 1 :]]
            lines.append(Line(f"training, mean of {width}", list(zip(places, smooth)), "#2b6cb0"))
        measured = [(r["step"], r["valid"][name]) for r in rows if name in r.get("valid", {})]
        lines.append(Line("held-out", measured, "#c05621", dots=True))
        for label, level in (references or {}).items():
            ends = [(points[0][0], level), (points[-1][0], level)]
            lines.append(Line(label, ends, "#5b6478", 'stroke-dasharray="2 3"'))
        charts.append(chart(lines, "step", f"{name} loss ({unit})"))
    return side_by_side(*charts)


@dataclass(frozen=True)
class Line:
    """A line of a chart; `style` is further attributes of its path."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    style: str = ""
    dots: bool = False


def chart(lines: Sequence[Line], across: str, up: str) -> str:
    """Lines over two axes as an inline SVG, `across` in whole numbers; points that are not finite are left out.

    It is drawn here: every run ends with one, and a plotting library takes longer for it than a small run takes.
    """
    kept = [replace(line, points=[p for p in line.points if all(map(math.isfinite, p))]) for line in lines]
    kept = [line for line in kept if line.points]
    if not kept:
        return ""
    width, height, left, top = 430, 230, 62, 8 + 16 * math.ceil(len(kept) / 2)
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*(p for line in kept for p in line.points)))
    x1, (y0, y1) = max(x1, x0 + 1), (y0 - 0.04 * (y1 - y0), y1 + 0.04 * (y1 - y0)) if y1 > y0 else (y0 - 1, y0 + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - x0) / (x1 - x0) * (width - left - 12), top + (y1 - y) / (y1 - y0) * height

    def text(x: float, y: float, said: str, more: str = 'text-anchor="middle"') -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(said)}</text>'

    parts = []
    for number, line in enumerate(kept):
        places = [place(*point) for point in line.points]
        path, right, down = (
            "L".join(f"{x:.1f} {y:.1f}" for x, y in places),
            left + 180 * (number % 2),
            16 * (number // 2),
        )
        key = f"M{right} {down + 8}h18"
        parts.append(f'<path d="M{path}{key}" fill="none" stroke="{line.colour}" stroke-width="1.6" {line.style}/>')
        parts.append(text(right + 23, down + 12, line.label, ""))
        dots = places if line.dots or len(places) == 1 else ()
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{line.colour}"/>' for x, y in dots]
    axes = f"M{left} {top}v{height}H{width}"
    for tick in _ticks(x0, x1, 6, least=1):
        x, y = place(tick, y0)
        axes += f"M{x:.1f} {y:.1f}v4"
        parts.append(text(x, y + 17, f"{tick:,.10g}"))
    for tick in _ticks(y0, y1, 6):
        x, y = place(x0, tick)
        axes += f"M{x:.1f} {y:.1f}h-4"
        parts.append(text(x - 8, y + 4, f"{tick:,.10g}", 'text-anchor="end"'))
    parts.append(text((left + width) / 2, top + height + 36, across))
    parts.append(text(12, top + height / 2, up, f'text-anchor="middle" transform="rotate(-90 12 {top + height / 2})"'))
    return (
        f'<svg width="{width}" height="{top + height + 44}" viewBox="0 0 {width} {top + height + 44}" font-size="11" '
        f'fill="#1c2230" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}'
        f'<path d="{axes}" fill="none" stroke="#5b6478"/></svg>'
    )


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round numbers between two, at most about so many: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), least)
    return [round(step * i, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def histograms(parts: dict[str, tuple[Sequence[int], Sequence[int]]], height: str) -> str:
    """Borders and counts by what is measured, over logarithmic axes; tables where matplotlib is not installed."""
    try:
        figure, axes = _figure(len(parts), 1, (4.25 * max(len(parts), 1), 2.9))
    except ImportError:
        tables = []
        for name, (borders, counts) in parts.items():
            spans = [f"{low:,} to {high - 1:,}" for low, high in pairwise(borders)]
            tables.append(table([name, height], list(zip(spans, counts))))
        return side_by_side(*tables)
    for (name, (borders, counts)), axis in zip(parts.items(), axes[0]):
        axis.stairs(counts, borders, fill=True, color="#2b6cb0", edgecolor="white", linewidth=0.8)
        _log_axis(axis, name, height)
    return _svg(figure)


def growth(points: Sequence[tuple[int, int]], across: str, up: str) -> str:
    """A curve over a logarithmic axis; a table where matplotlib is not installed."""
    try:
        figure, axes = _figure(1, 1, (4.25, 2.9))
    except ImportError:
        return table([across, up], points)
    axes[0][0].plot(*zip(*points), "o-", color="#2b6cb0", markersize=3)
    axes[0][0].set_ylim(bottom=0)
    _log_axis(axes[0][0], across, up)
    return _svg(figure)


def bands(lines: dict[str, dict[int, tuple[float, float]]], across: str, up: str) -> str:
    """Curves with their deviation over a logarithmic axis, by name: place to mean and deviation; else a table."""
    try:
        figure, axes = _figure(1, 1, (5.6, 3.4))
    except ImportError:
        places = sorted({place for line in lines.values() for place in line})
        shown = [[f"{line[p][0]:.4f}" if p in line else "" for p in places] for line in lines.values()]
        return table([across, *map(str, places)], [[name, *cells] for name, cells in zip(lines, shown)])
    axis = axes[0][0]
    for (name, line), colour in zip(lines.items(), ("#8a94a6", "#2b6cb0", "#c05621", "#2f855a", "#6b46c1")):
        places = sorted(line)
        means, deviations = (np.array([line[place][i] for place in places]) for i in (0, 1))
        axis.plot(places, means, "o-", color=colour, markersize=3.5, label=name)
        axis.fill_between(places, means - deviations, means + deviations, color=colour, alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


def attention(pieces: Sequence[str], maps: np.ndarray) -> str:
    """A grid of attention maps, layers down and heads across."""
    layers, heads = maps.shape[:2]
    try:
        size = max(2.4, 0.22 * len(pieces))
        figure, axes = _figure(heads, layers, (heads * size + 1, layers * size + 0.6))
    except ImportError:
        return ""
    for layer in range(layers):
        for head in range(heads):
            axis = axes[layer][head]
            axis.imshow(maps[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="equal")
            axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
            axis.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=7)
            axis.set_yticks(range(len(pieces)), pieces if head == 0 else [], fontsize=7)
            for side in axis.spines.values():
                side.set_visible(False)
    return _svg(figure)


def cost(results: dict[str, Any]) -> str:
    rows = [
        ("parameters", results["parameters"]),
        ("steps", results["steps"]),
        ("tokens read", results["tokens"]),
        ("floating-point operations", f"{results['flops']:.3g}"),
        ("device-hours", f"{results['device_hours']:.4f}"),
        ("tokens per second", round(results["tokens"] / max(results["device_hours"] * 3600, 1e-9))),
    ]
    environment = ", ".join(f"{k} {v}" for k, v in results["environment"].items())
    return table(["cost", ""], rows) + note(environment)


def measured(values: dict[str, float]) -> str:
    return table(["held-out text", ""], [(name, f"{value:.4f}") for name, value in values.items()])


def flatter(chosen: Sequence[str]) -> str:
    """What must be said of a score, where something was chosen on the examples that it is measured on."""
    return f"Scores flatter: chosen on the same dev examples: {', '.join(chosen)}." if chosen else ""


def cut_line(results: dict[str, Any], part: str) -> str:
    """How many examples of a part lost tokens, and what share that is."""
    cut, total = results["cut"][part], results[f"{part}_examples"]
    return f"{part}: {cut:,} of {total:,} examples ({cut / max(total, 1):.1%}) were cut" if cut else ""


def read_log(run: Path) -> list[dict[str, Any]]:
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_report(run: Path) -> Path:
    """`report.html` of a pre-training or fine-tuning run, from what the run folder holds."""
    results = read_json(run / "results.json")
    if (run / "recipe.json").exists():
        saved = read_json(run / "recipe.json")
        recipe = saved["recipe"]
        text = page(
            f"Pre-training: {recipe['name']}",
            f"{escape(recipe['family'])} on {escape(saved['corpus'])}",
            [
                ("Loss", curves(read_log(run))),
                ("Results", measured(results["valid"])),
                ("Cost", cost(results)),
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
            rows.append(["deviation", *(f"{results['deviation'][n]:.4f}" for n in names)])
        log = [row for row in read_log(run) if row.get("seed") == results["best_seed"]]
        about = {k: v for k, v in results.items() if k not in ("seeds", "mean", "deviation")}
        said = [flatter(results.get("chosen_on_dev", ())), *(cut_line(results, part) for part in results["cut"])]
        settings = read_json(run / "model" / "polyseme.json")["notes"]["settings"]
        unit = "squared error" if results["task"] == "regression" else "nats"
        text = page(
            f"Fine-tuning: {results.get('data') or results['task']}",
            f"from {escape(str(results['model']))}",
            [
                ("Results", table(["", *names], rows) + "".join(note(line) for line in said if line)),
                (f"Loss of seed {results['best_seed']}", curves(log, unit=unit)),
                ("Facts", code(about)),
                ("Settings", code(settings)),
            ],
        )
    write_text(run / "report.html", text)
    return run / "report.html"


def _figure(columns: int, rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, max(columns, 1), squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _log_axis(axis: Any, across: str, up: str) -> None:
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axis.set_xlabel(across)
    axis.set_ylabel(up)


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "polyseme", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _cell(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.4g}" if isinstance(value, float) else str(value)
