"""Reports: self-contained HTML pages, and the page of a run."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.files import read_json, write_text

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
    """Training and validation loss by step as an inline SVG; a table where matplotlib is not installed."""
    terms = sorted({name for row in rows for name in row.get("loss", {})})
    try:
        figure, axes = _figure(len(terms), 1, (4.6 * max(len(terms), 1) + 2, 3.1))
    except ImportError:
        last = rows[-12:]
        return table(
            ["step", *terms],
            [(r["step"], *(r["loss"].get(t, "") for t in terms)) for r in last if "loss" in r],
        )
    for name, axis in zip(terms, axes[0]):
        steps = np.array([r["step"] for r in rows if name in r.get("loss", {})])
        values = np.array([r["loss"][name] for r in rows if name in r.get("loss", {})])
        axis.plot(steps, values, color="#b9c4d6", linewidth=0.8, label="training")
        width = max(len(values) // 40, 1)
        if len(values) > 2 * width:
            smooth = np.convolve(values, np.ones(width) / width, "valid")
            axis.plot(steps[width - 1 :], smooth, color="#2b6cb0", label=f"training, mean of {width}")
        measured = [(r["step"], r["valid"][name]) for r in rows if name in r.get("valid", {})]
        if measured:
            axis.plot(*zip(*measured), "o-", color="#c05621", markersize=3.5, label="held-out")
        for label, level in (references or {}).items():
            axis.axhline(level, color="#5b6478", linestyle=":", linewidth=1, label=label)
        axis.set_xlabel("step")
        axis.set_ylabel(f"{name} loss ({unit})")
        axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


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
