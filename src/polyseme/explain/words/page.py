"""The page of a word: its occurrences as points by layer, clusters, neighbors, and measures by layer."""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from polyseme.explain.words.analysis import NUM_TYPICAL, WordLayer, WordModel
from polyseme.explain.words.drawing import SHAPES, draw_all_layers, draw_layer, legend_items, place_points
from polyseme.explain.words.occurrences import Occurrence
from polyseme.report.charts import Series, line_chart
from polyseme.report.html import Html, escape, figure, html_page, html_table, key_figures, note, paragraph, warning
from polyseme.report.svg import Axis

STYLE = """
.word-panel{min-width:0}.word-panel h3{margin-top:.4rem}.word-panel input{width:100%}
.word-panel output{display:block;font-size:.88rem;color:var(--soft);min-height:2.9em}
.word-panel ol{font-size:.86rem;padding-left:1.2rem;margin:.3rem 0}.word-panel li{overflow-wrap:anywhere}
.word-panel .marks path{cursor:pointer}.marks .near{stroke:var(--ink);stroke-width:1.2}
.marks .selected{stroke:var(--ink);stroke-width:3}
.choices{display:flex;flex-wrap:wrap;gap:.3rem 1.6rem;align-items:center;margin:.6rem 0;font-size:.93rem}
.choices input[type=number]{width:5.5em;font:inherit}#context{min-height:3.3em}
@media print{.choices,.word-panel input{display:none}}
"""
CAVEAT = (
    "Clusters are of contexts, not of meanings: topic, grammar, and the position in the text separate occurrences, "
    "too, and a plane shows only the share of variance that is named below each plot."
)


class WordPage:
    """What the parts of the page share: the word, its occurrences, their senses, and the models."""

    def __init__(self, word: str, occurrences: Sequence[Occurrence], models: Sequence[WordModel]):
        self.word, self.occurrences, self.models = word, occurrences, models
        self.senses = sorted({occurrence.sense for occurrence in occurrences} - {""})
        names = [*self.senses, "unknown"] if any(not each.sense for each in occurrences) else self.senses
        self.sense_names = names if self.senses else []
        self.sense_ids = [
            self.senses.index(each.sense) if each.sense else len(self.senses) for each in occurrences
        ]  # of each occurrence
        self.contexts = [each.keyword_in_context(160) for each in occurrences]
        self.snippets = [each.keyword_in_context(60) for each in occurrences]

    def groups(self, layer: WordLayer) -> tuple[list[int], list[str]]:
        """Return the group of each occurrence and the names of the groups: senses if they are known, or clusters."""
        if self.senses:
            return self.sense_ids, self.sense_names
        return layer.clustering.labels.tolist(), _cluster_labels(layer)

    def draw(self, model: WordModel, has_legend: bool) -> str:
        """Draw the layer of a model that is shown first."""
        groups, labels = self.groups(model.first_shown)
        return draw_layer(model.first_shown, groups, labels, ["".join(c) for c in self.contexts], has_legend)

    def figures(self) -> dict[str, str]:
        """Return each figure as an SVG of its own, by name."""
        charts = {}
        for i, model in enumerate(self.models):
            suffix = f"-{i + 1}" if len(self.models) > 1 else ""
            charts[f"points{suffix}"] = self.draw(model, has_legend=True)
            if len(model.layers) > 1:
                charts[f"layers{suffix}"] = self.draw_all(model)
        return charts | {name: chart for name, _, chart, _ in self.layer_charts() if chart}

    def draw_all(self, model: WordModel) -> str:
        """Draw all layers of a model, in groups of senses or of the clusters of the layer that is shown first."""
        return draw_all_layers(model.layers, *self.groups(model.first_shown))

    def layer_charts(self) -> list[tuple[str, str, str, str]]:
        """Return charts by layer, one line per model: name, title, chart and caption; static vectors have a point."""

        def chart(label: str, value: Callable[[WordLayer], float | None]) -> str:
            series = [
                Series(
                    model.name,
                    [(layer.layer, y) for layer in model.layers if (y := value(layer)) is not None],
                    show_points=True,
                )
                for model in self.models
            ]
            return line_chart(series, Axis("layer (0: embeddings)", integers=True), label, height=200)

        charts = [
            (
                "self-similarity",
                "Self-similarity",
                chart("mean cosine of two occurrences", lambda layer: layer.self_similarity),
                "1 if all occurrences have the same vector, as in a table of word vectors. It falls where context "
                "enters. Compare it with the cosine of random words, which the geometry of the model shows.",
            )
        ]
        if self.senses:
            charts.append(
                (
                    "senses",
                    "Agreement of clusters with the senses",
                    chart("adjusted Rand index", lambda layer: layer.senses.ari_known_number if layer.senses else None),
                    f"K-means with {len(set(self.sense_ids))} clusters, as many as there are senses: 1 if each cluster "
                    "is a sense, 0 by chance.",
                )
            )
        return charts

    def panel(self, i: int, model: WordModel) -> str:
        """Return the plot of a model with its slider and the neighbors of an occurrence."""
        layer = model.first_shown
        slider = (
            f'<label>Layer of {escape(model.name)} <input type="range" min="0" max="{len(model.layers) - 1}" '
            f'value="{model.start}"{" disabled" if len(model.layers) == 1 else ""}></label>'
        )
        neighbors = "".join(
            f"<li>{cosine:.3f} {self.mark(int(j))}</li>" for j, cosine in zip(layer.neighbors[0], layer.cosines[0])
        )
        return (
            f'<div class="word-panel" data-model="{i}"><h3>{escape(model.name)}</h3>{slider}'
            f"<output>{escape(layer_title(layer, model.is_static))}</output>"
            f"{legend_items(self.groups(layer)[1])}{self.draw(model, has_legend=False)}"
            f'<p class="note">Nearest occurrences, by cosine:</p><ol>{neighbors}</ol></div>'
        )

    def mark(self, occurrence: int, is_short: bool = True) -> str:
        """Return an occurrence in its context as HTML."""
        left, word, right = (self.snippets if is_short else self.contexts)[occurrence]
        sense = f" ({self.sense_names[self.sense_ids[occurrence]]})" if self.senses else ""
        return f"{escape(left)}<mark>{escape(word)}</mark>{escape(right + sense)}"

    def cluster_rows(self, layer: WordLayer) -> list[tuple[Any, ...]]:
        """Return a row per cluster: number, size, senses, distinctive words, typical contexts as HTML."""
        rows = []
        for number, group in enumerate(layer.clusters, 1):
            typical = "<br>".join(self.mark(i) for i in group.members[:NUM_TYPICAL])
            senses = [self.count_senses(group.members)] if self.senses else []
            rows.append((number, len(group.members), *senses, ", ".join(group.words), Html(typical)))
        return rows

    def count_senses(self, members: Sequence[int]) -> str:
        """Return how many of some occurrences have each sense."""
        ids = [self.sense_ids[i] for i in members]
        return ", ".join(f"{name} {ids.count(i)}" for i, name in enumerate(self.sense_names) if i in ids)

    def clusters_section(self) -> str:
        """Return the clusters of each model; the script shows those of the chosen layer."""
        header = ["cluster", "size", *["senses"] * bool(self.senses), "words of its contexts", "typical occurrences"]
        parts = []
        for i, model in enumerate(self.models):
            parts.append(f"<h3>{escape(model.name)}</h3>" if len(self.models) > 1 else "")
            for layer in model.layers:
                hidden = "" if layer is model.first_shown else " hidden"
                title = note(layer_title(layer, model.is_static))
                table = html_table(header, self.cluster_rows(layer))
                parts.append(f'<div data-clusters="{i}" data-layer="{layer.layer}"{hidden}>{title}{table}</div>')
        return "".join(parts)

    def script(self) -> str:
        """Return what the script of the page reads, and the script."""
        content = {
            "shapes": SHAPES,
            "contexts": self.contexts,
            "snippets": self.snippets,
            "senses": self.sense_names,
            "sense": self.sense_ids,
            "models": [
                {"layers": [_layer_content(layer, model.is_static) for layer in model.layers]} for model in self.models
            ],
        }
        encoded = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
        code = files("polyseme.explain.words").joinpath("words.js").read_text("utf-8")
        return f'<script type="application/json" id="words-data">{encoded}</script><script>{code}</script>'


def word_page(page: WordPage, num_total: int) -> str:
    """Render the page."""
    count = len(page.occurrences)
    cards: list[tuple[str, Any, str]] = [
        ("Occurrences", count, f"the first of {num_total:,}" if num_total > count else "")
    ]
    for model in page.models:
        layer = model.first_shown
        clusters = "all coincide" if layer.coincides else _plural(len(layer.clusters), "cluster")
        cards.append((model.name, clusters, layer_name(layer.layer)))
    top = f"<style>{STYLE}</style>" + key_figures(cards)
    if num_total > count:
        top += warning(f"The word occurs {num_total:,} times: the page shows the first {count:,}.")
    if any(model.is_static for model in page.models):
        static = ", ".join(model.name for model in page.models if model.is_static)
        top += note(f"{static}: one vector per word, the reference; all occurrences of a form coincide.")
    panels = "".join(page.panel(i, model) for i, model in enumerate(page.models))
    caption = (
        "Each point is an occurrence; near points have similar vectors. Color and shape show its group. Choose a layer "
        "with the slider; point at an occurrence to read it, click to keep it."
    )
    charts = "".join(f"<h3>{title}</h3>{figure(chart, text)}" for _, title, chart, text in page.layer_charts())
    layers = "".join(
        f"<h3>{escape(model.name)}</h3>{figure(page.draw_all(model), _layers_caption(page))}"
        for model in page.models
        if len(model.layers) > 1
    )
    sections = [
        ("Occurrences", _choices(page) + f'<div class="panels">{panels}</div>' + note(caption) + note(CAVEAT)),
        ("Clusters", page.clusters_section()),
        ("By layer", charts + "".join(map(_layer_table, page.models))),
        ("All layers", layers),
        ("How it is computed", _methods(page)),
    ]
    names = ", ".join(model.name for model in page.models)
    lead = f"The vectors of <b>{escape(page.word)}</b> in {count:,} contexts, by layer: {escape(names)}"
    return html_page(f"“{page.word}” in context", lead, sections, top, page.script())


def layer_name(layer: int) -> str:
    """Return the name of a layer."""
    return "embeddings" if layer == 0 else f"layer {layer}"


def layer_title(layer: WordLayer, is_static: bool = False) -> str:
    """Describe a layer in a line."""
    if layer.coincides:
        return f"{'Word vectors' if is_static else layer_name(layer.layer).capitalize()}: all occurrences coincide."
    shares = " and ".join(f"{100 * share:.0f} %" for share in layer.shares)
    silhouette = layer.clustering.silhouette
    clusters = "one cluster" if silhouette is None else f"{len(layer.clusters)} clusters (silhouette {silhouette:.2f})"
    senses = f", adjusted Rand index {layer.senses.ari:.2f}" if layer.senses else ""
    return f"{layer_name(layer.layer).capitalize()}: {clusters}{senses}. The axes show {shares} of the variance."


def layer_rows(model: WordModel) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the measures of each layer as a table: header and rows."""
    has_senses = any(layer.senses for layer in model.layers)
    header = ["layer", "clusters", "silhouette", "self-similarity"]
    header += ["ARI", "ARI, known number", "same sense as neighbor"] if has_senses else []
    rows = []
    for layer in model.layers:
        silhouette = layer.clustering.silhouette
        row = [layer.layer, len(layer.clusters), "" if silhouette is None else f"{silhouette:.3f}"]
        row.append(f"{layer.self_similarity:.3f}")
        if layer.senses:
            row += [f"{layer.senses.ari:.2f}", f"{layer.senses.ari_known_number:.2f}"]
            row.append(f"{100 * layer.senses.neighbor:.0f} %")
        rows.append(tuple(row))
    return header, rows


def _layer_table(model: WordModel) -> str:
    return f"<h3>{escape(model.name)}</h3>{html_table(*layer_rows(model))}"


def _cluster_labels(layer: WordLayer) -> list[str]:
    return [f"cluster {i} ({len(group.members)})" for i, group in enumerate(layer.clusters, 1)]


def _layer_content(layer: WordLayer, is_static: bool) -> dict[str, Any]:
    """Return what the script needs of a layer; coordinates are pixels."""
    pixels = place_points(layer.points)
    return {
        "layer": layer.layer,
        "title": layer_title(layer, is_static),
        "labels": _cluster_labels(layer),
        "x": pixels[:, 0].tolist(),
        "y": pixels[:, 1].tolist(),
        "cluster": layer.clustering.labels.tolist(),
        "near": layer.neighbors.tolist(),
        "cosines": layer.cosines.round(3).tolist(),
    }


def _choices(page: WordPage) -> str:
    """Return the controls for all models, and the occurrence that is looked at."""
    count = len(page.occurrences)
    senses = (
        '<span>Color and shape: <label><input type="radio" name="groups" id="by-sense" checked> senses</label> '
        '<label><input type="radio" name="groups" id="by-cluster"> clusters</label></span>'
    )
    picker = f'<label>Occurrence <input id="occurrence" type="number" min="1" max="{count}" value="1"></label>'
    context = f'<p id="context" dir="auto" aria-live="polite"><b>1 of {count}: </b>{page.mark(0, False)}</p>'
    return f'<div class="choices">{senses if page.senses else ""}{picker}</div>{context}'


def _layers_caption(page: WordPage) -> str:
    groups = "senses" if page.senses else "the clusters of the layer that is shown first"
    return f"Color and shape: {groups}. Signs of the axes are chosen so that layers can be compared."


def _methods(page: WordPage) -> str:
    parts = [
        "The vector of an occurrence is the mean over the pieces of the word (in a model of characters, the states at "
        "the ends of the word), scaled to length one. The plots show the first two principal components.",
        "Clusters are found by k-means in at most 50 principal components, with a fixed seed. Their number, 2 to 8, is "
        "the smallest within 0.02 of the largest silhouette; below a silhouette of 0.2 there is one cluster.",
        "The words of a cluster are those that are more frequent within ten words of its occurrences than in the other "
        "clusters, by the z-score of the log-odds ratio with a Dirichlet prior (Monroe et al. 2008).",
    ]
    if page.senses:
        parts.append(
            "ARI is the adjusted Rand index of the clusters and the senses in the data; “known number” tells k-means "
            "how many senses there are."
        )
    return "".join(map(paragraph, parts))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
