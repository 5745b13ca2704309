"""`explain_patching`: the page, the numbers and the figures of activation patching."""

import re
from typing import Any

import numpy as np

from polyseme.errors import DataError, UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.explain.lm_input import LMInput, lm_heads, model_name, read_text
from polyseme.explain.patching.patch import Patching, patch_activations
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig
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
    "undo a patch. An effect is also about these two texts and these two tokens only."
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
    network = load_neural(model)
    first, second = (_read(network, each) for each in (text, text_b))
    _check_parallel(first, second)
    ids = find_token(first, text, label), find_token(first, text, contrast)
    if ids[0] == ids[1]:
        raise DataError(f"{label!r} and {contrast!r} are the same token: choose two to compare")
    patching = patch_activations(first, second, ids)
    figures = {name: _heat_map(patching, name) for name in patching.effects}
    main = next(iter(patching.effects))
    figures["positions"] = _curves(patching, main)
    sections = [(COMPONENTS[name][0], figure(figures[name], COMPONENTS[name][1])) for name in patching.effects]
    curve_caption = f"{COMPONENTS[main][0]}: the positions with the largest effects. 0 is the first text, 1 the second."
    sections.insert(1, ("By position", figure(figures["positions"], curve_caption)))
    rows = _best_rows(patching, main)
    header = ["layer", "position with the largest effect", "effect"]
    sections += [("The largest effect of each layer", html_table(header, rows)), ("How to read it", paragraph(CAVEAT))]
    lead = "<br>".join(f'<span dir="auto">{escape(each)}</span>' for each in (text, text_b))
    title = f"Where {model_name(network)} carries the difference between two texts"
    page = html_page(title, lead, sections, _key_figures(patching, label, contrast))
    summary = _summary(patching, main, label, contrast)
    return Explanation(page, _record(patching, (text, text_b), (label, contrast)), figures, summary, [(header, rows)])


def _read(network: NeuralLM, text: str) -> LMInput:
    """Encode a text with one place where a token is predicted."""
    trunk = network.model.config.trunk
    is_forward_rnn = isinstance(trunk, RecurrentTrunkConfig) and trunk.direction == "forward"
    if not (isinstance(trunk, TransformerConfig) or is_forward_rnn):
        problem = "patching needs a Transformer, or a recurrent model that reads forward"
        raise UnsupportedError(f"{network.path} is {network.description}: {problem}")
    head = lm_heads(network, text)[0]
    lm_input = read_text(network, text, head)
    if head == "masked" and (lm_input.masks_in_turn or len(lm_input.positions) > 1):
        number, mask = 0 if lm_input.masks_in_turn else len(lm_input.positions), network.tokenizer.mask_token
        raise DataError(f"there are {number} {mask} in {text!r}, expected one: the token that is predicted")
    return lm_input


def _check_parallel(first: LMInput, second: LMInput) -> None:
    """Check that two inputs differ, but not in their length and in the place of their prediction."""
    tokens = [" ".join(each.tokens) for each in (first, second)]
    if len(first.ids) != len(second.ids):
        sizes = f"{len(first.ids)} and {len(second.ids)} tokens"
        raise DataError(f"the texts have {sizes}, expected the same number: {tokens[0]!r} and {tokens[1]!r}")
    if (first.ids == second.ids).all():
        raise DataError(f"the two texts have the same tokens: {tokens[0]!r}")
    if first.head != second.head or first.positions[-1] != second.positions[-1]:
        raise DataError(f"the texts predict at different positions: {tokens[0]!r} and {tokens[1]!r}")


def find_token(lm_input: LMInput, text: str, word: str) -> int:
    """Return the id of a word that is one token where a text predicts one, or of an entry of the vocabulary."""
    network, tokenizer = lm_input.network, lm_input.tokenizer
    ids, position = lm_input.ids.tolist(), int(lm_input.positions[-1])
    if lm_input.head == "masked":
        filled = re.sub(re.escape(tokenizer.mask_token or ""), lambda match: word, text)
        filled_ids, expected = network.encode(filled).input_ids, [ids[:position], ids[position + 1 :]]
    else:
        filled_ids = [*network.bos_ids, *tokenizer.encode(f"{text.rstrip()} {word}")]
        expected, position = [ids, []], len(ids)
    unk_id, token_id = tokenizer.special_token_ids.unk, tokenizer.backend.token_to_id(word)
    if [filled_ids[:position], filled_ids[position + 1 :]] == expected and filled_ids[position] != unk_id:
        return int(filled_ids[position])
    if token_id is None or token_id == unk_id:
        pieces = " ".join(tokenizer.convert_ids_to_tokens(tokenizer.encode(word)))
        raise DataError(f"{word!r} is not one token of the model but {pieces!r}: choose a word that is one")
    return int(token_id)


def _labels(patching: Patching) -> list[str]:
    """Return the token of each position, or both where the texts differ; an arrow marks the prediction."""
    first, second = patching.inputs
    labels = [a if a == b else f"{a} → {b}" for a, b in zip(first.tokens, second.tokens)]
    labels[int(first.positions[-1])] += " ◂"
    return labels


def _layer_name(depth: int) -> str:
    return f"layer {depth}" if depth else "embeddings"


def _heat_map(patching: Patching, component: str) -> str:
    effects = patching.effects[component].T  # [positions, layers]
    texts = [[_format_effect(value) for value in row] for row in effects]
    columns, title = list(map(str, patching.layers[component])), "layer"
    title += " (0: embeddings)" if component == "residual" else ""
    return heat_map(effects, Labels(_labels(patching), columns, "position", title), texts=texts)


def _format_effect(value: float) -> str:
    """Format an effect; a cell without an effect is empty."""
    return "" if abs(value) < 0.005 else f"{value:.2f}".replace("-", "−")


def _curves(patching: Patching, component: str) -> str:
    """Draw the effect by layer of the positions with the largest effects."""
    effects, labels, layers = patching.effects[component], _labels(patching), patching.layers[component]
    best = sorted(np.argsort(-np.abs(effects).max(0), kind="stable")[:MAX_LINES].tolist())
    series = [
        Series(shorten(f"{labels[i]} ({i + 1})", 30), list(zip(layers, effects[:, i].tolist())), show_points=True)
        for i in best
    ]
    return line_chart(series, Axis("layer", integers=True), Axis("effect", from_zero=True), direct_labels=False)


def _best_rows(patching: Patching, component: str) -> list[tuple[str, str, str]]:
    effects, labels = patching.effects[component], _labels(patching)
    return [
        (_layer_name(depth), labels[int(row.argmax())], f"{row.max():.3f}")
        for depth, row in zip(patching.layers[component], effects)
    ]


def _handover(patching: Patching, component: str) -> int | None:
    """Return the first layer from which on the position that predicts has the largest effect; None if none has."""
    is_at_prediction = patching.effects[component].argmax(1) == patching.inputs[0].positions[-1]
    num_last = int(np.cumprod(is_at_prediction[::-1]).sum())
    return patching.layers[component][-num_last] if num_last else None


def _key_figures(patching: Patching, label: str, contrast: str) -> str:
    figures = [
        (name, f"{value:.2f}".replace("-", "−"), f"logit of {label} − logit of {contrast}")
        for name, value in zip(("First text: effect 0", "Second text: effect 1"), patching.differences)
    ]
    depth = _handover(patching, next(iter(patching.effects)))
    if depth is not None and "residual" in patching.effects:
        figures.append(("At the prediction", _layer_name(depth), "from here on, its position has the largest effect"))
    return key_figures(figures)


def _summary(patching: Patching, component: str, label: str, contrast: str) -> str:
    low, high = patching.differences
    effects, layers, labels = patching.effects[component], patching.layers[component], _labels(patching)
    summary = (
        f"The logit of {label!r} minus that of {contrast!r} is {low:.2f} for the text and {high:.2f} for the other."
    )
    if component == "state":
        best = int(effects[:, -2:].max(1).argmax())
        return (
            f"{summary} The state of {_layer_name(layers[best])} carries most at the end ({effects[best].max():.2f})."
        )
    start, depth = int(effects[0].argmax()), _handover(patching, component)
    summary += f" At the {_layer_name(layers[0])}, {labels[start]!r} has the largest effect ({effects[0, start]:.2f})"
    return f"{summary}; from {_layer_name(depth)} on it is the position that predicts." if depth else f"{summary}."


def _record(patching: Patching, texts: tuple[str, str], tokens: tuple[str, str]) -> dict[str, Any]:
    first, second = patching.inputs
    network = first.network
    return {
        "figure": "patching",
        "model": model_name(network),
        "family": network.model.config.family,
        "texts": list(texts),
        "label": tokens[0],
        "contrast": tokens[1],
        "tokens": [first.tokens, second.tokens],
        "position": int(first.positions[-1]),
        "logit_differences": list(patching.differences),
        "layers": patching.layers,
        "effects": {name: values.tolist() for name, values in patching.effects.items()},
    }
