"""The page docs/results/pruning.md and its charts, from the rows that `pruning.py` measured."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from report import table

from polyseme.report.charts import Panel, Series, line_chart, panel_chart
from polyseme.report.svg import Axis, standalone_svg

Row = dict[str, Any]
PARTS = {"heads": "heads", "layers": "layers", "ffn": "feed-forward units"}
BEST = {"heads": "importance", "layers": "loss", "ffn": "importance"}  # the strategies in the chart
SCHEDULES = ("one-shot", "gradual", "iterative", "random", "from scratch")
INTRODUCTION = """# Pruning

How much of a model can be removed before it breaks? Two models on two tasks: all-MiniLM-L6-v2 (6 layers of 12 heads
and 1,536 units, a sentence encoder) on STS-B's dev set (1,500 pairs, Spearman's correlation), and `mini` (10 layers of
5 heads and 832 units), fine-tuned on 6,000 sentences of SST-2 for three epochs, on its dev set (872 sentences,
accuracy). What is removed is chosen on 256 training examples. The [guide](../guide/compression.md#pruning) says how
each part is chosen; `benchmarks/pruning.py` wrote this page from [pruning.json](pruning.json).
"""
FINDINGS = """What the tables say; a standard error of accuracy on this dev set of SST-2 is 1.4 points.

- 40 % of the heads: on STS-B the score stays (it rises by half a point), as published. On SST-2, with 50 heads in all,
  it falls by five points; with a short fine-tuning after it, it is 0.7 points below the unpruned model that was trained
  in the same way, and 2.3 below the original.
- Heads that are ranked over all layers are better than as many from each layer on STS-B; on SST-2 neither is
  consistently better.
- Feed-forward units are the cheapest part: without 40 % of them, both scores are unchanged.
- Removing layers by their measured loss is better than removing the last ones.
- 70 of 72 times are within 20 % of what arithmetic predicts; two with 60 % fewer units are 20.1 and 20.2 % above it. A
  profile of all-MiniLM-L6-v2 without 60 % of its units, on four sentences, agrees with arithmetic (0.60) if only
  torch operators count: 8.4 instead of 13.8 ms (0.61). The times also include tokenization and Python.
- Gates, with 80 steps in which to close, are worse than importance.
- Weights, one seed: at 50 %, one-shot and iterative pruning are two points below the unpruned model and far above a
  random mask; at 90 %, no schedule is clearly better than a random mask after 80 steps. Gradual pruning leaves few
  steps to recover. From scratch, nothing is learned in 80 steps.
"""
STRUCTURE = """## Without training

Operations are those that arithmetic predicts for a text of 20 tokens, and time is measured on single texts, both as
shares of the original; other jobs ran on the machine. Random choices are means of two seeds. *Uniform* removes as many
heads from each layer.

![quality against operations](pruning.svg)
"""
RECOVERY = """## Heads, with a short fine-tuning after it

{model}: {steps} steps of 16 examples after (or, with gates, while) heads are removed. The unpruned model, trained for
as many steps, has {dense}. {seeds}
"""
SCHEDULE = """## Weights, by schedule

{model}: single weights of the hidden layers are set to zero, and the model is fine-tuned for {steps} steps of 16
examples with them: all before (one-shot), in the course of it (gradual), or in two rounds with rewinding to step 0
(iterative). *Random* is a random mask, and *from scratch* the one-shot mask on random weights, both trained alike. The
unpruned model, trained for as many steps, has {dense}. {seeds}

![accuracy against weights left](pruning-schedules.svg)
"""


def write_page(results: dict[str, Any], folder: Path) -> None:
    """Write the page and its charts."""
    rows = results["rows"]
    structure, recovery, schedules = (
        [row for row in rows if row["table"] == name] for name in ("structure", "recovery", "schedules")
    )
    sections = [INTRODUCTION, f"{results['header']}.\n", FINDINGS, STRUCTURE]
    models = list(dict.fromkeys(row["model"] for row in structure))
    for model in models:
        sections.append(structure_section(model, [row for row in structure if row["model"] == model]))
    chart = panel_chart([structure_panel(model, structure) for model in models], "operations, as a share")
    (folder / "pruning.svg").write_text(standalone_svg(chart))
    if recovery:
        sections += [RECOVERY.format(**describe(recovery)), seed_table(recovery, "strategy")]
    if schedules:
        sections += [SCHEDULE.format(**describe(schedules)), seed_table(schedules, "schedule")]
        (folder / "pruning-schedules.svg").write_text(standalone_svg(schedule_chart(schedules)))
    (folder / "pruning.md").write_text("\n".join(sections))


def structure_section(model: str, rows: list[Row]) -> str:
    """Return the table of a model."""
    baseline = next(row["score"] for row in rows if not row["share"])
    cells = []
    for part in PARTS:
        groups: dict[tuple[float, str], list[Row]] = {}
        for row in rows:
            if row["part"] == part:
                groups.setdefault((row["share"], label(row)), []).append(row)
        cells += [format_row(groups[key], baseline, key[1]) for key in sorted(groups, key=lambda key: key[0])]
    columns = ["removed", "by", "score", "change", "parameters", "operations", "time"]
    return f"### {model}\n\n{rows[0]['metric']}: {baseline:.4f} before pruning.\n\n{table(columns, cells)}\n"


def label(row: Row) -> str:
    """Name the strategy of a row."""
    return row["strategy"] + (", uniform" if row.get("uniform") else "")


def format_row(rows: list[Row], baseline: float, strategy: str) -> list[str]:
    """Return the cells of one row; several seeds are averaged."""
    first, score = rows[0], statistics.mean(row["score"] for row in rows)
    ratios = [f"{statistics.mean(row[name] for row in rows):.2f}" for name in ("flop_ratio", "time_ratio")]
    removed = f"{first['removed']:,} of {first['total']:,} {PARTS[first['part']]}"
    change = f"{score - baseline:+.4f}"
    return [removed, strategy, f"{score:.4f}", change, f"{first['parameter_ratio']:.2f}", *ratios]


def structure_panel(model: str, structure: list[Row]) -> Panel:
    """Draw the score of a model against operations, one line per part."""
    rows = [row for row in structure if row["model"] == model]
    baseline = next(row["score"] for row in rows if not row["share"])
    series = []
    for part, strategy in BEST.items():
        chosen = [row for row in rows if row["part"] == part and label(row) == strategy]
        points = sorted([(1.0, baseline), *((row["flop_ratio"], row["score"]) for row in chosen)])
        series.append(Series(f"{part}", points, show_points=True))
    return Panel(series, Axis(f"{rows[0]['metric']}, {model}"), 240)


def describe(rows: list[Row]) -> dict[str, Any]:
    """Return what the text of a section says about its rows."""
    dense = [row["score"] for row in rows if not row["share"]]
    seeds = sorted({row["seed"] for row in rows})
    text = "One seed." if len(seeds) == 1 else f"Mean and standard deviation of up to {len(seeds)} seeds."
    return {"model": rows[0]["model"], "steps": rows[0]["steps"], "dense": mean_text(dense), "seeds": text}


def mean_text(scores: list[float]) -> str:
    """Format the mean of scores, with their deviation and number if there are several."""
    if len(scores) < 2:
        return f"{scores[0]:.4f}" if scores else "–"
    return f"{statistics.mean(scores):.4f} ± {statistics.stdev(scores):.4f} ({len(scores)})"


def seed_table(rows: list[Row], field: str) -> str:
    """Return a table of shares and strategies or schedules."""
    names = list(dict.fromkeys(row[field] for row in rows if row["share"]))
    cells = []
    for share in sorted({row["share"] for row in rows} - {0.0}):
        groups = [[row["score"] for row in rows if row["share"] == share and row[field] == name] for name in names]
        cells.append([f"{share:.0%}", *map(mean_text, groups)])
    return table(["removed", *names], cells) + "\n"


def schedule_chart(rows: list[Row]) -> str:
    """Draw the score against the share of weights that are left, one line per schedule."""
    dense = statistics.mean(row["score"] for row in rows if not row["share"])
    series = []
    for schedule in SCHEDULES:
        points = [(1.0, dense)] if schedule != "from scratch" else []
        for share in sorted({row["share"] for row in rows} - {0.0}):
            scores = [row["score"] for row in rows if row["share"] == share and row["schedule"] == schedule]
            points += [(1 - share, statistics.mean(scores))] if scores else []
        series.append(Series(schedule, sorted(points), show_points=True))
    return line_chart(series, Axis("weights left, as a share", log=True), Axis(rows[0]["metric"]), height=320)
