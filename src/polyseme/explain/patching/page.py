"""`explain_patching`: the page, the numbers and the figures of activation patching."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyseme.explain.explanation import Explanation
from polyseme.explain.lm_input import model_name
from polyseme.explain.patching.pairs import PatchedPairs, PatchingPair, patch_pairs
from polyseme.explain.supported import supported_figures, unsupported
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.report.charts import Series, line_chart
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import escape, figure, html_page, html_table, key_figures, paragraph
from polyseme.report.svg import Axis, shorten

MAX_LINES = 4  # positions with a line in the figure by layer
COMPONENTS = {
    "residual": (
        "The state after each layer",
        "The whole state of one position is replaced, at the embeddings or after a layer. Follow the dark cells from "
        "left to right: where the difference enters, and at which layer it moves to the position that predicts.",
    ),
    "attention": (
        "The output of attention alone",
        "Only what self-attention adds at one position and layer is replaced: dark cells are where the difference is "
        "moved from one position to another.",
    ),
    "ffn": (
        "The output of the feed-forward sublayer alone",
        "Only what the feed-forward sublayer adds at one position and layer is replaced.",
    ),
    "state": (
        "The state that each layer passes on",
        "The state of one layer after one token is replaced, and the rest of the text is read from there. The last "
        "token passes on no state.",
    ),
}
CAVEAT = (
    "Effects of single cells do not add up to 1: the same information may be in several places, and later layers may "
    "undo a patch. An effect is also about these texts and tokens only."
)


def explain_patching(model: LanguageModel, text: str, text_b: str, label: str, contrast: str) -> Explanation:
    """Show which layers and positions carry the difference between two texts (activation patching; Vig et al. 2020).

    Each state of `text` is replaced in turn by that of `text_b`, which has the same number of tokens, and the logit of
    `label` minus that of `contrast` is measured: 0 is the value of `text`, 1 that of `text_b`. A masked model predicts
    the one mask of each text, a causal model the token after its end.

    >>> explanation = explain_patching(model, "the old [MASK] sees", "the grey [MASK] sees", "cat", "dog")
    >>> list(explanation.record["effects"])
    ['residual', 'attention', 'ffn']
    """
    return explain_patching_pairs(model, [PatchingPair(text, text_b, label, contrast)])


def explain_patching_pairs(model: LanguageModel, pairs: Sequence[PatchingPair]) -> Explanation:
    """Average `explain_patching` over pairs of texts with the same number of tokens, such as those of a template."""
    if "patching" not in supported_figures(model):
        unsupported(model, "patching")
    network = load_neural(model)
    patched = patch_pairs(network, pairs)
    main = patched.components[0]
    figures = {name: _heat_map(patched, name) for name in patched.components}
    figures["positions"] = _curves(patched, main)
    caption = f"{COMPONENTS[main][0]}: the positions with the largest effects. 0 is the first text, 1 the second."
    caption += " Bands are one standard deviation over the pairs." if len(pairs) > 1 else ""
    header, rows = _best_rows(patched, main)
    sections = [(COMPONENTS[name][0], figure(figures[name], COMPONENTS[name][1])) for name in patched.components]
    sections.insert(1, ("By position", figure(figures["positions"], caption)))
    sections += [
        ("The largest effect of each layer", html_table(header, rows)),
        ("Pairs", html_table(PatchingPair._fields, patched.pairs) if len(pairs) > 1 else ""),
        ("How to read it", paragraph(CAVEAT)),
    ]
    lead = "<br>".join(f'<span dir="auto">{escape(each)}</span>' for each in pairs[0][:2])
    lead += f"<br>and {len(pairs) - 1} more pairs, averaged" if len(pairs) > 1 else ""
    title = f"Where {model_name(network)} carries the difference between two texts"
    page = html_page(title, lead, sections, _key_figures(patched))
    return Explanation(page, _record(network, patched), figures, _summary(patched, main), [(header, rows)])


def _layer_name(depth: int) -> str:
    return f"layer {depth}" if depth else "embeddings"


def _heat_map(patched: PatchedPairs, component: str) -> str:
    effects = patched.mean(component).T  # [positions, layers]
    texts = [[_format_effect(value) for value in row] for row in effects]
    title = "layer (0: embeddings)" if component == "residual" else "layer"
    columns = list(map(str, patched.layers(component)))
    return heat_map(effects, Labels(patched.labels, columns, "position", title), texts=texts)


def _format_effect(value: float) -> str:
    """Format an effect; a cell without an effect is empty."""
    return "" if abs(value) < 0.005 else f"{value:.2f}".replace("-", "−")


def _curves(patched: PatchedPairs, component: str) -> str:
    """Draw the effect by layer of the positions with the largest effects."""
    mean, std, layers = patched.mean(component), patched.std(component), patched.layers(component)
    series = []
    for i in sorted(np.argsort(-np.abs(mean).max(0), kind="stable")[:MAX_LINES].tolist()):
        points = list(zip(layers, mean[:, i].tolist()))
        bounds = zip(layers, (mean - std)[:, i].tolist(), (mean + std)[:, i].tolist())
        band = list(bounds) if len(patched.pairs) > 1 else ()
        series.append(Series(shorten(f"{patched.labels[i]} ({i + 1})", 40), points, show_points=True, band=band))
    return line_chart(series, Axis("layer", integers=True), Axis("effect", from_zero=True), direct_labels=False)


def _best_rows(patched: PatchedPairs, component: str) -> tuple[list[str], list[list[str]]]:
    """Return a table of the position with the largest effect in each layer."""
    mean, std, labels = patched.mean(component), patched.std(component), patched.labels
    best = mean.argmax(1)
    columns = [
        [_layer_name(depth) for depth in patched.layers(component)],
        [labels[i] for i in best],
        [f"{row[i]:.3f}" for row, i in zip(mean, best)],
        [f"{row[i]:.3f}" for row, i in zip(std, best)],
    ]
    header = ["layer", "position with the largest effect", "effect", "standard deviation"]
    size = len(header) if len(patched.pairs) > 1 else len(header) - 1
    return header[:size], [list(row) for row in zip(*columns[:size])]


def _handover(patched: PatchedPairs, component: str) -> int | None:
    """Return the first layer from which on the position that predicts has the largest effect; None if none has."""
    is_at_prediction = patched.mean(component).argmax(1) == patched.position
    num_last = int(np.cumprod(is_at_prediction[::-1]).sum())
    return patched.layers(component)[-num_last] if num_last else None


def _describe_difference(patched: PatchedPairs) -> str:
    """Name the logits that are compared."""
    labels = {(pair.label, pair.contrast) for pair in patched.pairs}
    if len(labels) > 1:
        return "logit of the label minus that of the contrast"
    ((label, contrast),) = labels
    return f"logit of {label!r} minus that of {contrast!r}"


def _key_figures(patched: PatchedPairs) -> str:
    detail = ("mean " if len(patched.pairs) > 1 else "") + _describe_difference(patched)
    figures = [
        (name, f"{value:.2f}".replace("-", "−"), detail)
        for name, value in zip(("First text: effect 0", "Second text: effect 1"), patched.differences)
    ]
    depth = _handover(patched, patched.components[0])
    if depth is not None and "residual" in patched.components:
        figures.append(("At the prediction", _layer_name(depth), "from here on, its position has the largest effect"))
    return key_figures(figures)


def _summary(patched: PatchedPairs, component: str) -> str:
    low, high = patched.differences
    mean, layers = patched.mean(component), patched.layers(component)
    summary = f"The {_describe_difference(patched)} is {low:.2f} for the first text and {high:.2f} for the second"
    summary += f", the mean of {len(patched.pairs)} pairs." if len(patched.pairs) > 1 else "."
    if component == "state":
        best = int(mean[:, -2:].max(1).argmax())
        return (
            f"{summary} The state of {_layer_name(layers[best])} carries most at the end ({mean[best, -2:].max():.2f})."
        )
    start, depth = int(mean[0].argmax()), _handover(patched, component)
    summary += f" At the {_layer_name(layers[0])}, {patched.labels[start]!r} has the largest effect"
    summary += f" ({mean[0, start]:.2f})"
    return f"{summary}; from {_layer_name(depth)} on it is the position that predicts." if depth else f"{summary}."


def _record(network: NeuralLM, patched: PatchedPairs) -> dict[str, Any]:
    pairs = [
        {
            **pair._asdict(),
            "tokens": [lm_input.tokens for lm_input in patching.inputs],
            "logit_differences": list(patching.differences),
            "effects": {name: values.tolist() for name, values in patching.effects.items()},
        }
        for pair, patching in zip(patched.pairs, patched.patchings)
    ]
    return {
        "figure": "patching",
        "model": model_name(network),
        "family": network.model.config.family,
        "position": patched.position,
        "labels": patched.labels,
        "layers": {name: patched.layers(name) for name in patched.components},
        "effects": {name: patched.mean(name).tolist() for name in patched.components},
        "pairs": pairs,
    }
