"""The page of probes: curves by layer with intervals, codelengths, tables, and the layers at which tasks are solved."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from polyseme.explain.explanation import PrintedTable
from polyseme.explain.probing.estimates import Estimate
from polyseme.explain.probing.experiment import VARIANTS, LayerProbe, ModelProbe, TaskProbe
from polyseme.report.charts import Series, line_chart
from polyseme.report.dots import Dot, DotPanel, dot_figure
from polyseme.report.html import collapsed, figure, html_table, note, paragraph
from polyseme.report.svg import Axis, color

DASHES = {"trained": "", "control": "7 3", "untrained": "2 3"}
TITLES = {"trained": "trained", "control": "control task", "untrained": "untrained copy"}
CAVEAT = "A probe shows what can be decoded from a layer, not what the model uses."
METHOD = (
    "A probe is a multinomial logistic regression over the standardized vectors of one layer, with L2 chosen on a "
    "tenth of the training part. The control task has the same inputs and a random label for each word type (for each "
    "text in tasks about texts), so that a probe can solve it only by memorizing (Hewitt and Liang 2019). The "
    "untrained copy has the same architecture and tokenizer with random weights, the embeddings included, drawn anew "
    "for each seed. Intervals are 95 % percentiles of 1,000 resamples of dev sentences and seeds; with few seeds they "
    "are somewhat too narrow. The codelength is that of online coding over eleven blocks (Voita and Titov 2020); "
    "compression compares it with the uniform code, so higher is better and 1 means that nothing was learned."
)


@dataclass(frozen=True)
class TaskReport:
    """What a task adds to the page, the figures, the printed tables, and the summary."""

    heading: str
    html: str
    figures: dict[str, str]
    tables: list[PrintedTable]
    summary: str
    expected: Sequence["ExpectedLayer"] = ()


class ExpectedLayer(NamedTuple):
    """The layer at which a model solves a task on average, also as relative depth."""

    model: str
    task: str
    num_layers: int
    layer: Estimate
    depth: Estimate


def list_expected(probe: Any) -> list[ExpectedLayer]:
    """Return the expected layer of each model of a probe."""
    return [ExpectedLayer(m.model, probe.task, m.num_layers, m.expected_layer, m.expected_depth) for m in probe.models]


def report_task(probe: TaskProbe) -> TaskReport:
    """Draw the curves of a task and list the numbers of each layer."""
    x = depth_axis(probe.models)
    by_layer = x.label == "layer"
    charts = {
        "scores": ([*_score_series(probe, by_layer), *_baseline_series(probe, by_layer)], format_metric(probe.metric)),
        "compression": (_compression_series(probe, by_layer), "compression by online coding"),
    }
    scores, codes = (line_chart(series, x, y, 300, direct_labels=False) for series, y in charts.values())
    names = {  # files have no legend beside them
        f"{probe.task.replace('/', '-')}-{kind}": line_chart(series, x, y, 300, direct_labels=True)
        for kind, (series, y) in charts.items()
    }
    facts = (
        f"{probe.description[0].upper()}{probe.description[1:]}: {probe.num_train:,} {probe.unit} to train on and "
        f"{probe.num_dev:,} to score, {probe.num_labels} labels. The most frequent label scores {probe.majority:.3f}, "
        f"the most frequent label of each word type {probe.lookup:.3f}."
    )
    parts = [
        paragraph(facts),
        figure(scores, _caption_scores(probe)),
        figure(codes, "How much shorter the labels become than by the uniform code; higher is better."),
    ]
    tables: list[PrintedTable] = []
    for model in probe.models:
        header, rows = layer_table(probe, model)
        tables.append((header, rows))
        parts.append(collapsed(f"Numbers of {model.model}", html_table(header, rows)))
    return TaskReport(probe.task, "".join(parts), names, tables, summarize_task(probe), list_expected(probe))


def summarize_task(probe: TaskProbe) -> str:
    """Return one line per model: its best layer, next to the control task and the untrained copy."""
    lines = []
    for model in probe.models:
        best = model.best
        values = ", ".join(f"{TITLES[key]} {best.scores[key].format()}" for key in VARIANTS)
        expected = (
            f"; expected layer {model.expected_layer.format(2)}" if model.expected_layer.value is not None else ""
        )
        lines.append(
            f"{probe.task}, {model.model}: {format_metric(probe.metric)} at layer {best.layer} of {model.num_layers}: "
            f"{values}{expected}"
        )
    return "\n".join(lines)


def format_metric(metric: str) -> str:
    """Return the name of a metric in a chart."""
    return {"f1": "F1 of words, without O", "uuas": "UUAS"}.get(metric, metric)


def layer_table(probe: TaskProbe, model: ModelProbe) -> PrintedTable:
    """Return the header and rows of the layers of a model."""
    metric = "F1" if probe.metric == "f1" else probe.metric
    header = ["layer", metric, "control", "untrained", "selectivity", "gain", "kbits", "compression"]

    def row(layer: LayerProbe) -> list[object]:
        estimates = [*(layer.scores[key] for key in VARIANTS), layer.selectivity, layer.gain]
        code = [round(layer.kbits["trained"], 2), round(layer.compression["trained"], 2)]
        return [layer.layer, *(estimate.format() for estimate in estimates), *code]

    return header, [row(layer) for layer in model.layers]


def depth_axis(models: Sequence[Any]) -> Axis:
    """Return the axis of layers, or of relative depth if models differ in the number of layers."""
    if len({model.num_layers for model in models}) == 1:
        return Axis("layer", integers=True)
    return Axis("relative depth (0: embeddings, 1: last layer)")


def curve(label: str, estimates: Sequence[Estimate], xs: Sequence[float], line_color: str, dash: str) -> Series:
    """Return a line of estimates with the band of their intervals."""
    defined = [(x, e.value, *(e.interval or (e.value, e.value))) for x, e in zip(xs, estimates) if e.value is not None]
    points, band = [(x, value) for x, value, *_ in defined], [(x, low, high) for x, _, low, high in defined]
    return Series(label, points, line_color, dash, show_points=True, band=band)


def _places(model: ModelProbe, by_layer: bool) -> list[float]:
    return [float(layer.layer) if by_layer else layer.depth for layer in model.layers]


def _label(probe: TaskProbe, model: ModelProbe, key: str) -> str:
    return TITLES[key] if len(probe.models) == 1 else f"{model.model}, {TITLES[key]}"


def _score_series(probe: TaskProbe, by_layer: bool) -> list[Series]:
    return [
        curve(
            _label(probe, model, key),
            [layer.scores[key] for layer in model.layers],
            _places(model, by_layer),
            color(number),
            DASHES[key],
        )
        for number, model in enumerate(probe.models)
        for key in VARIANTS
    ]


def _baseline_series(probe: TaskProbe, by_layer: bool) -> list[Series]:
    places = [place for model in probe.models for place in _places(model, by_layer)]
    ends = min(places), max(places)
    baselines = {"most frequent label": (probe.majority, "1 3"), "label of the word type": (probe.lookup, "9 3 2 3")}
    return [Series(name, [(x, y) for x in ends], "var(--s8)", dash) for name, (y, dash) in baselines.items()]


def _compression_series(probe: TaskProbe, by_layer: bool) -> list[Series]:
    return [
        Series(
            _label(probe, model, key),
            list(zip(_places(model, by_layer), [layer.compression[key] for layer in model.layers])),
            color(number),
            DASHES[key],
            show_points=True,
        )
        for number, model in enumerate(probe.models)
        for key in VARIANTS
    ]


def _caption_scores(probe: TaskProbe) -> str:
    best = ", ".join(f"layer {model.best.layer} of {model.model}" for model in probe.models)
    metric = format_metric(probe.metric)
    return (
        f"{metric[0].upper()}{metric[1:]} by layer, highest at {best}. Bands are 95 % intervals. The distance to the "
        "control task is what the probe did not memorize, the distance to the untrained copy what training added."
    )


# ----------------------------------------------------------------------------------------- layers of all tasks


def report_expected_layers(rows: Sequence[ExpectedLayer]) -> TaskReport | None:
    """Compare the expected layers of tasks."""
    rows = [row for row in rows if row.layer.value is not None]
    if not rows:
        return None
    models = list(dict.fromkeys(model for model, *_ in rows))
    panels = [
        DotPanel(
            f"{model} ({next(size for name, _, size, *_ in rows if name == model)} layers)",
            [Dot(task, (layer.value or 0.0,), layer.interval) for name, task, _, layer, _ in rows if name == model],
            "expected layer",
        )
        for model in models
    ]
    chart = dot_figure(panels, "expected layer by task")
    header = ["model", "task", "expected layer", "relative depth"]
    table = [[model, task, layer.format(2), depth.format(2)] for model, task, _, layer, depth in rows]
    answers = [sentence for model in models if (sentence := order_of_tasks(model, rows))]
    caption = (
        "The expected layer is the mean of the layers, each weighted by what it adds to the best score of the layers "
        "below it (after Tenney et al. 2019). Bars are 95 % intervals."
    )
    html = "".join([*map(paragraph, answers), figure(chart, caption), html_table(header, table)])
    html += note("It says where a linear probe gains, not where the network computes: compare tasks of one model.")
    return TaskReport("Which layers", html, {"expected-layers": chart}, [(header, table)], "\n".join(answers))


def order_of_tasks(model: str, rows: Sequence[ExpectedLayer]) -> str:
    """Say in which order a model solves tasks, and which neighbors are apart by more than their intervals."""
    layers = sorted(((e.value or 0.0, task, e.interval) for name, task, _, e, _ in rows if name == model))
    if len(layers) < 2:
        return ""
    parts = [f"{layers[0][1]} ({layers[0][0]:.2f})"]
    for (_, _, below), (value, task, above) in pairwise(layers):
        is_apart = below is not None and above is not None and below[1] < above[0]
        parts.append(f"{'<' if is_apart else '≤'} {task} ({value:.2f})")
    return f"{model}: {' '.join(parts)}; < where the intervals do not overlap, ≤ where they do."
