"""The page of a fine-tuning run: scores with baselines, what the model gets wrong, training, and next steps."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyseme.io.json import read_json
from polyseme.report.charts import Bar, Panel, Series, bar_chart, line_chart, panel_chart, smoothed_series
from polyseme.report.diagnostics import DIAGNOSTICS_NAME, Diagnostics
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import (
    Cell,
    code,
    collapsed,
    escape,
    figure,
    html_page,
    html_table,
    key_figures,
    next_steps,
    note,
    paragraph,
    warning,
)
from polyseme.report.pages.advice import suggest_next_steps
from polyseme.report.pages.diagnostics_page import diagnostics_sections
from polyseme.report.svg import Axis, color

Results = Mapping[str, Any]


def dev_selection_note(choices: Sequence[str]) -> str:
    """Return a warning about scores on dev examples that were also used for selection; empty if none were."""
    return f"Scores are optimistic: chosen on the same dev examples: {', '.join(choices)}." if choices else ""


def truncation_note(results: Results, split: str) -> str:
    """Return how many examples of a split were truncated; empty if none were."""
    count, total = results["num_truncated"][split], results[f"{split}_examples"]
    return f"{split}: {count:,} of {total:,} examples ({count / max(total, 1):.1%}) were truncated" if count else ""


def finetuning_page(run: Path, results: Results, log: Sequence[dict[str, Any]]) -> str:
    """Render the page of a fine-tuning run from its results, the rows of its log, and the files of its folder."""
    settings = read_json(run / "model" / "polyseme.json")["metadata"]["settings"]
    results = {**results, "settings": settings}
    curves = dev_curves(log)
    diagnostics = _read_diagnostics(run)
    first_curves = next(iter(curves.values()), {})
    sections = [("Results", _results_figure(results) + _seed_table(results))]
    sections += diagnostics_sections(diagnostics) if diagnostics else []
    for name, task_results in results.get("tasks", {}).items():
        sections.append((name, _task_section(run / "tasks" / name, task_results)))
    sections += [
        ("Training", _training_figure(log, curves, results)),
        ("Grid search", _grid_figure(run, results)),
        ("Next steps", _next_steps(results, diagnostics, first_curves)),
        ("Settings", _settings(results)),
    ]
    warnings = [*results.get("warnings", ()), dev_selection_note(results.get("chosen_on_dev", ()))]
    if results["failed_seeds"]:
        warnings.append(
            f"Failed seeds, no better than a trivial baseline: {', '.join(map(str, results['failed_seeds']))}."
        )
    warnings += [truncation_note(results, split) for split in results["num_truncated"]]
    top = "".join(warning(line) for line in dict.fromkeys(warnings) if line) + _key_figures(results, diagnostics)
    title = f"Fine-tuning: {results.get('data') or results['task']}"
    lead = f"{escape(str(results['task']))} with <code>{escape(str(results['model']))}</code>"
    return html_page(title, lead, sections, top)


def _read_diagnostics(folder: Path) -> Diagnostics | None:
    return Diagnostics.read(folder) if (folder / DIAGNOSTICS_NAME).is_file() else None


def dev_curves(log: Sequence[dict[str, Any]]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """Return the dev scores of a log by name (a metric or a task) and seed: steps and values."""
    curves: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for row in log:
        for name, value in row.get("dev", {}).items():
            curves.setdefault(name, {}).setdefault(row["seed"], []).append((row["step"], value))
    return curves


def sampling_error(metric: str, value: float, num_examples: int) -> float | None:
    """Return half the 95 % interval of an accuracy that the choice of dev examples causes; None for other metrics."""
    is_share = metric == "accuracy" and num_examples > 0 and 0 <= value <= 1
    return 1.96 * math.sqrt(value * (1 - value) / num_examples) if is_share else None


def _key_figures(results: Results, diagnostics: Diagnostics | None) -> str:
    metric, num_seeds = results["primary_metric"], len(results["seeds"])
    mean, std = results["mean"][metric], results["std"].get(metric)
    detail = "one seed: no spread" if std is None else f"± {std:.4f}, std over {num_seeds} seeds"
    if (error := sampling_error(metric, mean, results["dev_examples"])) is not None:
        detail += f"; ±{error:.3f} by the choice of {results['dev_examples']:,} dev examples (95 %)"
    figures: list[tuple[str, Any, str]] = [(metric.replace("_", " "), f"{mean:.4f}", detail)]
    baselines = {name: values[metric] for name, values in results.get("baselines", {}).items() if metric in values}
    if baselines:
        best = max(baselines, key=lambda name: baselines[name])
        verdict = "the model is better" if mean > baselines[best] else "the model is not better"
        figures.append((f"best baseline: {best}", f"{baselines[best]:.4f}", verdict))
    if diagnostics and diagnostics.calibration:
        figures.append(("calibration error", f"{diagnostics.calibration.ece:.1%}", "expected, over ten bins"))
    examples = f"{results['train_examples']:,} train, {results['dev_examples']:,} dev"
    figures.append(("parameters", _short_number(results["parameters"]), examples))
    minutes = results["seconds"] / 60
    figures.append(("training", f"{minutes:.1f} min" if minutes >= 1 else f"{results['seconds']:.0f} s", "all seeds"))
    if results.get("ms_per_text"):
        speed = f"{results['examples_per_second']:,.0f} per second in batches"
        figures.append(("one text", f"{results['ms_per_text']:.1f} ms", speed))
    return key_figures(figures)


def _short_number(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"


def _results_figure(results: Results) -> str:
    """Draw the primary metric of the model next to its baselines."""
    metric = results["primary_metric"]
    mean, std = results["mean"][metric], results["std"].get(metric)
    bars = [Bar(name, values[metric], is_reference=True) for name, values in results.get("baselines", {}).items()]
    if not bars and results.get("majority_score") is not None:
        bars.append(Bar("trivial baseline", results["majority_score"], is_reference=True))
    if metric in results.get("before", {}):
        bars.append(Bar("before training", results["before"][metric], is_reference=True))
    interval = (mean - std, mean + std) if std is not None else None
    bars.append(Bar("this model", mean, interval, text=f"{mean:.4f}" + (f" ± {std:.4f}" if std is not None else "")))
    if len(bars) < 2:
        return ""
    best = max(bar.value for bar in bars[:-1])
    verdict = "better by less than a deviation" if mean > best else "not better"
    if mean - (std or 0) > best:
        verdict = "better" if std is None else "better by more than a deviation"
    text = f"The model should clearly exceed every gray baseline: it is {verdict}."
    whiskers = " The whiskers are one standard deviation over seeds." if std is not None else ""
    return figure(bar_chart(bars, metric.replace("_", " ")), text + whiskers)


def _seed_table(results: Results) -> str:
    names = [name for name in results["mean"] if isinstance(results["mean"][name], int | float)]
    rows = [[f"seed {r['seed']}", *(f"{r[name]:.4f}" for name in names)] for r in results["seeds"]]
    rows.append(["mean", *(f"{results['mean'][name]:.4f}" for name in names)])
    if len(results["seeds"]) > 1:
        rows.append(["std", *(f"{results['std'][name]:.4f}" for name in names)])
    for baseline, values in results.get("baselines", {}).items():
        rows.append([f"{baseline} baseline", *(f"{values[n]:.4f}" if n in values else "" for n in names)])
    best = f"The model folder holds seed {results['best_seed']}, the best on the dev examples."
    return html_table(["", *(name.replace("_", " ") for name in names)], rows) + note(best)


def _task_section(folder: Path, results: Results) -> str:
    """Render one of several tasks: its scores, and its diagnostics collapsed."""
    parts = [_results_figure(results), _seed_table(results)]
    if diagnostics := _read_diagnostics(folder):
        parts += [collapsed(heading, content) for heading, content in diagnostics_sections(diagnostics)]
    return "".join(parts)


def _training_figure(log: Sequence[dict[str, Any]], curves: Mapping[str, Any], results: Results) -> str:
    """Draw dev scores and training losses by step, a line for each seed."""
    panels = [
        Panel([Series(f"seed {seed}", points, show_points=True) for seed, points in by_seed.items()],
              _score_axis(name, by_seed), 220)
        for name, by_seed in curves.items()
    ]  # fmt: skip
    for term in sorted({term for row in log for term in row.get("loss", {})}):
        series: list[Series] = []
        for number, seed in enumerate(dict.fromkeys(row["seed"] for row in log)):
            points = [(r["step"], r["loss"][term]) for r in log if r["seed"] == seed and term in r.get("loss", {})]
            lines = smoothed_series(f"seed {seed}", points, color(number))
            series += lines if len(results["seeds"]) == 1 else lines[-1:]
        panels.append(Panel(series, Axis(f"training loss, {term} ({results.get('loss_unit', 'nats')})"), 180))
    caption = (
        "A dev score that still rises at the end asks for more epochs; one that falls with the loss is overfitting."
    )
    sample = (
        ""
        if results["settings"].get("patience")
        else " Dev scores during training are on a sample of the dev examples."
    )
    return figure(panel_chart(panels, Axis("step", integers=True)), caption + (sample if curves else ""))


def _score_axis(name: str, by_seed: Mapping[int, Sequence[tuple[int, float]]]) -> Axis:
    is_flat = len({value for points in by_seed.values() for _, value in points}) == 1
    return Axis(f"dev {name.replace('_', ' ')}", from_zero=is_flat)


def _grid_figure(run: Path, results: Results) -> str:
    """Draw the mean scores of a grid search: a heat map for two settings, a line for one, a table for more."""
    if not (run / "grid.json").is_file():
        return ""
    rows, metric = read_json(run / "grid.json")["runs"], results["primary_metric"]
    points = [(row.get("values", {}), row["mean"][metric], row["std"].get(metric) or 0.0) for row in rows]
    axes = {name: list(dict.fromkeys(values[name] for values, _, _ in points)) for name in points[0][0]}
    best = max(points, key=lambda point: point[1])
    shown = ", ".join(f"{name}={value}" for name, value in best[0].items())
    caption = f"The best setting is {shown} ({best[1]:.4f})."
    edges = [name for name, values in axes.items() if len(values) > 2 and best[0][name] in (values[0], values[-1])]
    caption += f" It is at the edge of {', '.join(edges)}: extend the grid there." if edges else ""
    table = html_table(
        [*axes, metric, "std", "failed seeds"],
        [[*point[0].values(), Cell(f"{point[1]:.4f}", max(point[1], 0.0)), f"{point[2]:.4f}", len(row["failed_seeds"])]
         for point, row in sorted(zip(points, rows), key=lambda pair: -pair[0][1])],
    )  # fmt: skip
    chart = _grid_chart(points, axes, metric)
    return figure(chart, caption) + (collapsed("All settings", table) if chart else paragraph(caption) + table)


def _grid_chart(points: Sequence[tuple[Any, float, float]], axes: Mapping[str, Sequence[Any]], metric: str) -> str:
    varied = [name for name, values in axes.items() if len(values) > 1]
    label = f"dev {metric.replace('_', ' ')}"
    if len(varied) == 1 and all(_is_number(value) for value in axes[varied[0]]):
        line = sorted((float(values[varied[0]]), mean, std) for values, mean, std in points)
        is_log = line[0][0] > 0 and line[-1][0] / line[0][0] >= 8
        band = [(x, mean - std, mean + std) for x, mean, std in line] if any(std for *_, std in line) else ()
        series = Series(label, [(x, mean) for x, mean, _ in line], show_points=True, band=band)
        return line_chart([series], Axis(varied[0], log=is_log), label)
    if len(varied) == 2:
        rows, columns = (axes[name] for name in varied)
        scores = {(values[varied[0]], values[varied[1]]): mean for values, mean, _ in points}
        matrix = np.array([[scores.get((row, column), math.nan) for column in columns] for row in rows])
        texts = [["" if math.isnan(value) else f"{value:.4f}" for value in row] for row in matrix]
        low, high = float(np.nanmin(matrix)), float(np.nanmax(matrix))
        labels = Labels([str(row) for row in rows], [str(column) for column in columns], *varied)
        return heat_map(np.nan_to_num(matrix, nan=low), labels, 40, texts, scale=(low - 0.2 * (high - low), high))
    return ""


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _next_steps(results: Results, diagnostics: Diagnostics | None, curves: Mapping[int, Any]) -> str:
    names = "RUN is the folder of this page, and … stands for the other options of this run."
    return next_steps(suggest_next_steps(results, diagnostics, curves)) + note(names)


def _settings(results: Results) -> str:
    """Tabulate the settings that differ from the defaults; all settings and facts are collapsed."""
    changed, chosen = results.get("changed_settings", {}), results.get("chosen", {})
    rows = [
        [path, "automatic" if path.rpartition(".")[2] in chosen else _plain(default), _plain(value)]
        for path, (default, value) in changed.items()
    ]
    reasons = "".join(note(f"{name}: {choice['reason']}.") for name, choice in chosen.items())
    intro = (
        html_table(["setting", "default", "this run"], rows) if rows else paragraph("All settings are the defaults.")
    )
    omitted = ("seeds", "mean", "std", "settings", "tasks", "baselines", "changed_settings", "grid")
    facts = {key: value for key, value in results.items() if key not in omitted}
    return intro + reasons + collapsed("All settings", code(results["settings"])) + collapsed("All facts", code(facts))


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)
