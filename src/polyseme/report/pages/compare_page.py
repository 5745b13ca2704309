"""The page of a comparison: scores with intervals, paired tests, cost against quality, curves, and exports."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyseme.io.atomic import write_text
from polyseme.report.charts import Bar, ScatterPoint, Series, bar_chart, line_chart, scatter_chart
from polyseme.report.html import (
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
    paragraph,
    warning,
)
from polyseme.report.pages.compare_tables import (
    ComparedRun,
    PairedTest,
    Table,
    TaskScores,
    csv_scores,
    latex_table,
    list_tasks,
    score_table,
)
from polyseme.report.svg import DASHES, Axis, color, format_number

CURVE_AXES = {"tokens": "training tokens", "flops": "training FLOPs", "minutes": "minutes", "steps": "steps"}
SHORT_HEADERS = {"bits_per_character": "bits/char", "flops": "FLOPs", "minutes": "min", "parameters": "params"}
MAX_LINE_CHARS = 24  # longest name of a run that is not broken into lines
MAX_TRAIN_CURVES = 4  # runs up to which training losses are drawn behind held-out ones
COSTS: dict[str, tuple[str, Callable[[ComparedRun], float | None]]] = {
    "parameters": ("parameters", lambda run: run.num_parameters or None),
    "training FLOPs": ("training FLOPs", lambda run: run.train_flops),
    "latency": ("milliseconds for one text", lambda run: run.ms_per_text),
    "training time": ("seconds of training", lambda run: run.train_seconds or None),
}


@dataclass(frozen=True)
class ComparedPretraining:
    """A pre-training run of a comparison: its figures by name, and curves of its loss.

    A curve maps the names of axes (steps, tokens, flops, minutes) and `loss` to values of the same length.
    """

    name: str
    figures: Mapping[str, float | None]
    valid_curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    train_curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    is_masked: bool = False


def write_comparison(
    folder: Path, runs: Sequence[ComparedRun], tests: Sequence[PairedTest] = (), warnings: Sequence[str] = ()
) -> Path:
    """Write `report.html`, `table.tex` and `scores.csv` of compared fine-tuning runs; return the page."""
    table = score_table(runs)
    files = {"table.tex": latex_table(table, _latex_caption(runs)), "scores.csv": csv_scores(runs)}
    return _write(folder, comparison_page(runs, tests, warnings), files)


def write_pretraining_comparison(
    folder: Path, runs: Sequence[ComparedPretraining], warnings: Sequence[str] = ()
) -> Path:
    """Write `report.html`, `table.tex` and `scores.csv` of compared pre-training runs; return the page."""
    table = figure_table(runs)
    stream = io.StringIO()
    names = list(dict.fromkeys(name for run in runs for name in run.figures))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", *names])
    writer.writerows([run.name, *(run.figures.get(name) for name in names)] for run in runs)
    files = {"table.tex": latex_table(table), "scores.csv": stream.getvalue()}
    return _write(folder, pretraining_comparison_page(runs, warnings), files)


def _write(folder: Path, page: str, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_text(folder / name, content)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _latex_caption(runs: Sequence[ComparedRun]) -> str:
    counts = sorted({len(scores.values) for run in runs for scores in run.scores})
    seeds = " or ".join(map(str, counts))
    return f"Dev scores, mean and standard deviation over {seeds} seed(s); shares are in percent."


# ------------------------------------------------------------------------------------------------ fine-tuning


def comparison_page(runs: Sequence[ComparedRun], tests: Sequence[PairedTest] = (), warnings: Sequence[str] = ()) -> str:
    """Render the comparison of fine-tuning runs."""
    tasks, table = list_tasks(runs), score_table(runs)
    sections = [("Scores", _table_html(table) + note("Bold: the best mean of its column. " + _latex_caption(runs)))]
    sections += [
        (_heading("Scores with intervals", task, tasks), _score_figure(runs, task, m)) for task, m in tasks.items()
    ]
    sections.append(("Paired tests", _test_table(tests)))
    sections += [(_heading("Cost against quality", task, tasks), _cost_figures(runs, task)) for task in tasks]
    latex = latex_table(table, _latex_caption(runs))
    exports = collapsed("LaTeX (booktabs)", code(latex)) + collapsed("CSV, a row per seed", code(csv_scores(runs)))
    sections.append(
        ("Export", paragraph("The same tables are in table.tex and scores.csv next to this page.") + exports)
    )
    lines = [*warnings, *dict.fromkeys(note for run in runs for note in run.notes)]
    top = "".join(map(warning, lines)) + key_figures(_best_figures(runs, tasks))
    names = ", ".join(tasks)
    return html_page(f"Comparison of {len(runs)} runs", escape(f"on the dev examples of {names}"), sections, top)


def _heading(text: str, task: str, tasks: Mapping[str, str]) -> str:
    return text if len(tasks) == 1 else f"{text}: {task}"


def _table_html(table: Table) -> str:
    rows = [
        [
            _name_cell(row[0]),
            *(bold(c) if (i, j) in table.best else c for j, c in enumerate(row[1:], 1)),
        ]
        for i, row in enumerate(table.rows)
    ]
    return html_table(table.header, rows)


def _name_cell(text: str) -> Html:
    """Return a cell that stays on one line, or breaks anywhere if it is long: then it takes the width that is left."""
    is_short = len(text) <= MAX_LINE_CHARS
    style = "white-space:nowrap" if is_short else "display:inline-block;min-width:11rem;overflow-wrap:anywhere"
    return Html(f'<span style="{style}">{escape(text)}</span>')


def _ranked(runs: Sequence[ComparedRun], task: str) -> list[tuple[ComparedRun, TaskScores]]:
    """Return the runs that have a task, the best first."""
    pairs = [(run, scores) for run in runs if (scores := run.get(task)) is not None]
    return sorted(pairs, key=lambda pair: pair[1].mean * (1 if pair[1].lower_is_better else -1))


def _best_figures(runs: Sequence[ComparedRun], tasks: Mapping[str, str]) -> list[tuple[str, str, str]]:
    figures = []
    for task, metric in list(tasks.items())[:8]:
        run, scores = _ranked(runs, task)[0]
        std = "" if scores.std is None else f" ± {scores.std:.4f}"
        figures.append((f"best {task} ({metric})", f"{scores.mean:.4f}", f"{run.name}{std}"))
    counts = sorted({len(scores.values) for run in runs for scores in run.scores})
    seeds = f"{counts[0]} to {counts[-1]} seeds each" if len(counts) > 1 else f"{counts[0]} seed(s) each"
    return [("runs", str(len(runs)), seeds), *figures]


def _score_figure(runs: Sequence[ComparedRun], task: str, metric: str) -> str:
    bars = []
    for run, scores in _ranked(runs, task):
        text = f"{scores.mean:.4f}" + (f" ± {scores.std:.4f}" if scores.std is not None else "")
        bars.append(Bar(run.name, scores.mean, scores.whiskers, text=text))
    caption = "Whiskers are one standard deviation over seeds, and numbers after ± too."
    if any(scores.interval for _, scores in _ranked(runs, task)):
        caption = (
            "Whiskers are 95 % intervals by the bootstrap over dev examples and seeds; numbers after ± are standard "
            "deviations over seeds. Runs whose whiskers overlap may still differ: the paired tests decide."
        )
    missing = " Runs without whiskers have an unknown spread." if any(bar.interval is None for bar in bars) else ""
    return figure(bar_chart(bars, metric.replace("_", " ")), caption + missing)


def _test_table(tests: Sequence[PairedTest]) -> str:
    if not tests:
        return ""
    rows = []
    for test in tests:
        verdict = "not distinguishable"
        if test.is_significant:
            verdict = f"{test.first if test.difference > 0 else test.second} is better"
        interval = f"{100 * test.low:+.2f} to {100 * test.high:+.2f}"
        p_value = "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
        rows.append(
            [
                _name_cell(f"{test.first} − {test.second}"),
                test.task,
                f"{100 * test.difference:+.2f}",
                interval,
                p_value,
                verdict,
            ]
        )
    methods = ", ".join(dict.fromkeys(test.method for test in tests))
    text = (
        f"Both runs of a pair are scored on the same resampled dev examples ({methods}). An interval without 0 is "
        "a difference that other dev examples would show too."
    )
    correction = (
        f" With {len(tests)} tests, expect {0.05 * len(tests):.1g} false alarms at 5 %." if len(tests) > 2 else ""
    )
    table = html_table(["pair", "task", "difference, points", "95 % interval", "p", "verdict"], rows)
    return table + note(text + correction)


def pareto_front(points: Sequence[tuple[str, float, float]], lower_is_better: bool = False) -> list[str]:
    """Return the names of the points (name, cost, quality) that no other point beats in cost and quality."""
    sign = -1 if lower_is_better else 1
    front = []
    for name, cost, quality in points:
        others = ((c, q) for n, c, q in points if n != name)
        if not any(c <= cost and sign * q >= sign * quality and (c, q) != (cost, quality) for c, q in others):
            front.append(name)
    return front


def _cost_figures(runs: Sequence[ComparedRun], task: str) -> str:
    """Draw the quality of runs against each cost that differs between them."""
    parts = []
    for label, (axis_label, cost_of) in COSTS.items():
        pairs = [(run, scores, cost) for run, scores in _ranked(runs, task) if (cost := cost_of(run)) is not None]
        costs = [cost for _, _, cost in pairs]
        if len(pairs) < 2 or max(costs) == min(costs):
            continue
        lower = pairs[0][1].lower_is_better
        front = pareto_front([(run.name, cost, scores.mean) for run, scores, cost in pairs], lower)
        points = [ScatterPoint(run.name, cost, scores.mean, scores.whiskers) for run, scores, cost in pairs]
        is_log = min(costs) > 0 and max(costs) / min(costs) >= 5
        chart = scatter_chart(points, Axis(axis_label, log=is_log), pairs[0][1].metric.replace("_", " "), front)
        names = " and ".join(filter(None, [", ".join(front[:-1]), front[-1]]))
        better = "lower left" if lower else "upper left"
        verb = "is" if len(front) == 1 else "are"
        rule = f"on the Pareto front: no other run is cheaper in {label} and as good"
        parts.append(figure(chart, f"Better runs lie to the {better}. {names} {verb} {rule}."))
    return "".join(parts)


# ----------------------------------------------------------------------------------------------- pre-training


def figure_table(runs: Sequence[ComparedPretraining]) -> Table:
    """Return the figures of pre-training runs; the lowest loss, perplexity and bits per character are the best."""
    names = list(dict.fromkeys(name for run in runs for name in run.figures))
    best = set()
    for column, name in enumerate(names, 1):
        values = [value for run in runs if (value := run.figures.get(name)) is not None]
        if name in ("loss", "perplexity", "bits_per_character") and len(values) > 1:
            best |= {(i, column) for i, run in enumerate(runs) if run.figures.get(name) == min(values)}
    rows = tuple((run.name, *(_format_figure(name, run.figures.get(name)) for name in names)) for run in runs)
    header = ("run", *(SHORT_HEADERS.get(name, name.replace("_", " ")) for name in names))
    return Table(header, rows, frozenset(best))


def _format_figure(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    if name == "flops":
        return f"{value:.2e}".replace("e+", "e")
    if name in ("tokens", "parameters"):
        return format_number(value)
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 10 else f"{value:,.4g}"


def pretraining_comparison_page(runs: Sequence[ComparedPretraining], warnings: Sequence[str] = ()) -> str:
    """Render the comparison of pre-training runs: figures, and overlaid curves of loss against each cost."""
    table = figure_table(runs)
    text = "Compare runs with different tokenizers by bits per character: losses and perplexities are per token."
    sections = [("Results", _table_html(table) + note(text)), ("Bits per character", _bits_figure(runs))]
    for axis, label in CURVE_AXES.items():
        sections.append((f"Loss against {label}", _curve_figure(runs, axis, label)))
    exports = collapsed("LaTeX (booktabs)", code(latex_table(table)))
    sections.append(
        ("Export", paragraph("The same figures are in table.tex and scores.csv next to this page.") + exports)
    )
    top = "".join(map(warning, warnings))
    return html_page(
        f"Comparison of {len(runs)} pre-training runs", escape(", ".join(r.name for r in runs)), sections, top
    )


def _bits_figure(runs: Sequence[ComparedPretraining]) -> str:
    values = {run.name: value for run in runs if (value := run.figures.get("bits_per_character")) is not None}
    bars = [Bar(name, value) for name, value in sorted(values.items(), key=lambda pair: pair[1])]
    caption = "Shorter is better. Bits per character of held-out text do not depend on the tokenizer."
    if any(run.is_masked for run in runs):
        caption += " Those of masked models compare only with models that mask as much: every token counts as masked."
    return figure(bar_chart(bars, "bits per character"), caption) if len(bars) > 1 else ""


def _curve_figure(runs: Sequence[ComparedPretraining], axis: str, label: str) -> str:
    series = []
    for number, run in enumerate(runs):
        shows_training = len(runs) <= MAX_TRAIN_CURVES or not run.valid_curve.get("loss")
        for curve, is_faint in [(run.train_curve, True)] * shows_training + [(run.valid_curve, False)]:
            points = list(zip(curve.get(axis, ()), curve.get("loss", ())))
            if any(x > 0 for x, _ in points):
                name = "" if is_faint and run.valid_curve.get("loss") else run.name
                show = not is_faint and len(points) < 20
                dash = DASHES[number % len(DASHES)]
                series.append(Series(name, points, color(number), dash, show, is_faint=is_faint))
    if not series:
        return ""
    captions = {
        "tokens": "At equal tokens, the lower curve learns more from the same text.",
        "flops": "At equal FLOPs, the lower curve uses computation better: this is the fair comparison of sizes.",
        "minutes": "At equal minutes, the lower curve is the better choice on this machine.",
        "steps": "Steps are comparable only if the batches have the same size.",
    }
    largest, smallest = (bound(x for line in series for x, _ in line.points if x > 0) for bound in (max, min))
    is_log = largest / smallest > 1000
    behind = "Faint lines are training text." if any(line.is_faint for line in series) else ""
    caption = f"{captions[axis]} {behind}".strip()
    return figure(line_chart(series, Axis(label, log=is_log), "loss (nats per token)", 340), caption)
