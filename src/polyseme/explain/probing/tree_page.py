"""The part of the page about structural probes: UUAS by layer, next to an untrained copy and to chains of words."""

from polyseme.explain.explanation import PrintedTable
from polyseme.explain.probing.page import DASHES, TITLES, TaskReport, curve, depth_axis, list_expected
from polyseme.explain.probing.trees import TREE_VARIANTS, ModelTrees, TreeProbe
from polyseme.report.charts import Series, line_chart
from polyseme.report.html import collapsed, figure, html_table, paragraph
from polyseme.report.svg import color


def report_trees(probe: TreeProbe) -> TaskReport:
    """Draw UUAS by layer and list the numbers of each layer."""
    x = depth_axis(probe.models)
    series = _series(probe, x.label == "layer")
    facts = (
        f"Structural probe (Hewitt and Manning 2019) of rank {probe.rank}: under a linear map, squared distances "
        f"between words approximate their distances in the dependency tree. {probe.num_train:,} sentences to train on "
        f"and {probe.num_dev:,} to score. UUAS is the share of arcs that the minimum spanning tree finds, without "
        f"directions and punctuation. Attaching each word to its neighbor finds {probe.chain.format()}."
    )
    caption = "UUAS by layer. A layer encodes trees only as far as it beats both the chain and the untrained copy."
    chart = line_chart(series, x, "UUAS", 300, direct_labels=False)
    parts, tables = [paragraph(facts), figure(chart, caption)], list[PrintedTable]()
    for model in probe.models:
        header, rows = tree_table(model)
        tables.append((header, rows))
        parts.append(collapsed(f"Numbers of {model.model}", html_table(header, rows)))
    figures = {f"{probe.task}-uuas": line_chart(series, x, "UUAS", 300, direct_labels=True)}
    return TaskReport(probe.task, "".join(parts), figures, tables, "\n".join(_summary(probe)), list_expected(probe))


def tree_table(model: ModelTrees) -> PrintedTable:
    """Return the header and rows of the layers of a model."""
    header = ["layer", "UUAS", "untrained", "gain", "over the chain", "Spearman", "Spearman, untrained"]
    rows = [
        [
            layer.layer,
            *(layer.scores[key].format() for key in TREE_VARIANTS),
            layer.gain.format(),
            layer.over_chain.format(),
            *(round(layer.spearman[key], 3) for key in TREE_VARIANTS),
        ]
        for layer in model.layers
    ]
    return header, rows


def _summary(probe: TreeProbe) -> list[str]:
    return [
        f"{probe.task}, {model.model}: UUAS at layer {model.best.layer} of {model.num_layers}: "
        + ", ".join(f"{TITLES[key]} {model.best.scores[key].format()}" for key in TREE_VARIANTS)
        + f", chain of neighbors {probe.chain.format()}"
        for model in probe.models
    ]


def _series(probe: TreeProbe, by_layer: bool) -> list[Series]:
    series, places = [], list[float]()
    for number, model in enumerate(probe.models):
        xs = [float(layer.layer) if by_layer else layer.depth for layer in model.layers]
        places += xs
        for key in TREE_VARIANTS:
            label = TITLES[key] if len(probe.models) == 1 else f"{model.model}, {TITLES[key]}"
            estimates = [layer.scores[key] for layer in model.layers]
            series.append(curve(label, estimates, xs, color(number), DASHES[key]))
    ends = [min(places), max(places)]
    return [*series, curve("chain of neighbors", [probe.chain] * 2, ends, "var(--s8)", "9 3 2 3")]
