"""One token through one attention head, step by step: query, keys, scores, softmax, weighted sum of values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError
from polyseme.explain.supported import unsupported
from polyseme.inference.base import LanguageModel
from polyseme.inference.inspection.attention import LabeledTokens
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.report.html import Cell, Html, figure, html_table, note, paragraph
from polyseme.report.svg import shorten, svg_image, svg_text, text_width

NUM_SHOWN_DIMS = 8
MAX_SHOWN_KEYS = 24  # those with the largest weights
MAX_LABEL = 20  # characters
TITLES = {
    "self": "self-attention",
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention",
}


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """What one head of one layer computes for one query, a token of the text.

    The score of a key is `scale · product` plus the `biases` (of relative positions or segments, scaled already); a key
    that is masked has the score −∞. The weights are the softmax of the scores, and the output the sum of the values
    with these weights: the head's part of what the output projection reads.
    """

    name: str  # `self`, `encoder`, `decoder` or `cross`
    layer: int  # from 1
    head: int  # from 1
    index: int  # of the query, from 0
    token: str  # the query
    keys: list[str]
    query: np.ndarray  # [head_dim]
    key_vectors: np.ndarray  # [keys, head_dim]
    value_vectors: np.ndarray  # [keys, head_dim]
    products: np.ndarray  # [keys]
    scale: float
    biases: dict[str, np.ndarray]  # by name, each [keys]
    mask: np.ndarray  # bool [keys], True = may be attended to
    scores: np.ndarray  # [keys]
    weights: np.ndarray  # [keys]
    output: np.ndarray  # [head_dim]
    score_function: str = "dot"
    is_rotary: bool = False  # whether query and keys were rotated by position

    def record(self) -> dict[str, Any]:
        """Return all numbers as plain values for JSON, with 7 significant digits; the score of a masked key is None."""
        names = ("query", "products", "weights", "output", "key_vectors", "value_vectors")
        return {
            **{name: getattr(self, name) for name in ("name", "layer", "head", "index", "token", "keys")},
            **{name: _to_list(getattr(self, name)) for name in names},
            "scale": self.scale,
            "score_function": self.score_function,
            "is_rotary": self.is_rotary,
            "biases": {name: _to_list(bias) for name, bias in self.biases.items()},
            "mask": self.mask.tolist(),
            "scores": [score if is_visible else None for score, is_visible in zip(_to_list(self.scores), self.mask)],
        }


@torch.inference_mode()
def attention_steps(
    model: LanguageModel,
    text: str,
    layer: int | None = None,
    head: int = 1,
    token: str | int | None = None,
    *,
    name: str = "",
    pair: str | None = None,
    target: str | Sequence[int] | None = None,
) -> AttentionSteps:
    """Compute what a head does for one token of a text; layers and heads count from 1, the default layer is the last.

    `token` is a word of the text (its first token is taken), or the index of a token; by default the first word. `name`
    selects the `encoder`, `decoder` or `cross` attention of an encoder-decoder, by default the first that it has.
    """
    if not isinstance(model, NeuralLM) or "attention" not in model.capabilities:
        unsupported(model, "attention")
    inspector = model.attention_inspector
    inspected = inspector.read(text, pair, target)
    num_layers: dict[str, int] = {}
    for each, terms in inspector.terms(inspected):
        name = name or each
        num_layers[each] = num_layers.get(each, 0) + 1
        if each == name and layer in (None, num_layers[each]):
            selected = terms
    if name not in num_layers:
        raise ConfigError(f"there is no attention {name!r}; the model has {', '.join(num_layers)}")
    layer = num_layers[name] if layer is None else layer
    _check_number("layer", layer, num_layers[name])
    _check_number("head", head, len(selected.products))
    queries, keys = inspected.labels(name)
    index = _find_token(queries, token)
    return _select(selected, head - 1, index, name, layer, queries.tokens, keys.tokens)


def _select(
    terms: AttentionTerms, head: int, index: int, name: str, layer: int, queries: list[str], keys: list[str]
) -> AttentionSteps:
    """Return the steps of one head and query, both counted from 0."""
    visible = torch.ones(len(keys), dtype=torch.bool) if terms.mask is None else terms.mask.view(-1, len(keys))[index]
    return AttentionSteps(
        name,
        layer,
        head + 1,
        index,
        queries[index],
        keys,
        _to_numpy(terms.queries[head, index]),
        _to_numpy(terms.keys[head]),
        _to_numpy(terms.values[head]),
        _to_numpy(terms.products[head, index]),
        terms.scale,
        {bias_name: _to_numpy(bias[head, index]) for bias_name, bias in terms.biases.items()},
        visible.cpu().numpy(),
        _to_numpy(terms.scores[head, index]),
        _to_numpy(terms.weights[head, index]),
        _to_numpy(terms.attended[head, index]),
        terms.score_function,
        terms.is_rotary,
    )


def _find_token(labels: LabeledTokens, token: str | int | None) -> int:
    """Return the index of a token: that of a word's first token, or the index itself if it is in range."""
    if isinstance(token, int):
        if not 0 <= token < len(labels.tokens):
            raise ConfigError(f"`token` is {token}, but there are tokens 0 to {len(labels.tokens) - 1}")
        return token
    if token is None:
        return labels.is_special.index(False) if False in labels.is_special else 0
    for names in (labels.words, labels.tokens, [word.lower() for word in labels.words]):
        wanted = token if token in names else token.lower()
        if wanted in names:
            index = names.index(wanted)
            return index if names is labels.tokens else labels.word_ids.index(index)
    words = ", ".join(dict.fromkeys(labels.words[:40])) + (", …" if len(labels.words) > 40 else "")
    raise DataError(f"{token!r} is not a word of the text; its words are {words}")


def _check_number(name: str, number: int, largest: int) -> None:
    if not 1 <= number <= largest:
        raise ConfigError(f"`{name}` is {number}, but the model has {name}s 1 to {largest}")


def steps_section(steps: AttentionSteps) -> str:
    """Render the steps as HTML: the vectors (first 8 numbers of each), the table of scores, and the weighted sum."""
    shown = _shown_keys(steps)
    labels = [steps.keys[i] for i in shown]
    num_dims, num_keys = len(steps.query), len(steps.keys)
    size = f"the first {NUM_SHOWN_DIMS} of {num_dims}" if num_dims > NUM_SHOWN_DIMS else f"all {num_dims}"
    selection = f" Of {num_keys} keys, the {len(shown)} with the largest weights are shown." * (len(shown) < num_keys)
    lead = (
        f"“{steps.token}”, token {steps.index + 1}, in layer {steps.layer}, head {steps.head} of the "
        f"{TITLES[steps.name]}. The numbers are those of the model; {size} of each vector are shown, and all are in "
        "the JSON file."
    )
    parts = [
        paragraph(lead + selection),
        "<h3>1. Query and keys</h3>",
        figure(vector_rows(np.stack([steps.query]), [f"query of {steps.token}"]), _query_caption(steps)),
        figure(
            vector_rows(steps.key_vectors[shown], labels),
            "The key of each token, computed in the same way with the key matrix.",
        ),
        "<h3>2. Scores and softmax</h3>",
        paragraph(_score_formula(steps)),
        score_table(steps, shown),
        "<h3>3. Weighted sum of the values</h3>",
        figure(
            vector_rows(
                np.concatenate([steps.value_vectors[shown], steps.output[None]]),
                [*(f"{steps.weights[i]:.3f} × {steps.keys[i]}" for i in shown), "sum: output"],
            ),
            f"The value of each token with its weight; the last row is the sum over all tokens. {_output_use(steps)}",
        ),
    ]
    return "".join(parts)


def _output_use(steps: AttentionSteps) -> str:
    if steps.score_function != "dot":
        return "It is the context that the decoder reads with its state."
    return "The outputs of all heads are concatenated and multiplied by the output matrix of the layer."


def _query_caption(steps: AttentionSteps) -> str:
    if steps.score_function != "dot":
        return "The state of the decoder is the query."
    rotation = ", and rotated by the position of the token, as all keys are" * steps.is_rotary
    return f"The vector of the token below this layer, times the query matrix of the head{rotation}."


def _score_formula(steps: AttentionSteps) -> str:
    if steps.score_function != "dot":
        return (
            f"The score of a key is a function of the state and the key ({steps.score_function}). The softmax turns "
            "the scores into weights, which are positive and add up to one."
        )
    terms = "".join(f", plus a term for the {name}" for name in steps.biases)
    terms += "" if steps.mask.all() else "; a key that the token may not read is masked with −∞, so its weight is 0"
    return (
        f"The score of a key is its inner product with the query, times {steps.scale:.4g}{terms}. The softmax turns "
        "the scores into weights: the exponential of each score, divided by the sum of all, so they add up to one."
    )


def score_table(steps: AttentionSteps, shown: Sequence[int]) -> str:
    """Render the products, scores and weights of some keys as a table."""
    is_dot = steps.score_function == "dot"
    header = ["key", "q·k" if is_dot else "score", *(["scaled"] if steps.scale != 1 else []), *steps.biases]
    header += ["score"] * bool(steps.biases) + ["weight"]
    rows = []
    for i in shown:
        numbers = [steps.products[i], *([steps.products[i] * steps.scale] if steps.scale != 1 else [])]
        numbers += [bias[i] for bias in steps.biases.values()] + [steps.scores[i]] * bool(steps.biases)
        cells: list[Any] = [f"{number:z.3f}".replace("-", "−") for number in numbers]
        if not steps.mask[i]:
            cells[-1] = Html("−∞", is_number=True)
        rows.append((steps.keys[i], *cells, Cell(f"{steps.weights[i]:.3f}", float(steps.weights[i]))))
    rest = 1 - float(steps.weights[list(shown)].sum())
    omitted = len(steps.keys) - len(shown)
    return html_table(header, rows) + (
        note(f"The other {omitted} keys have the weight {rest:.3f} together.") if omitted else ""
    )


def _shown_keys(steps: AttentionSteps) -> list[int]:
    """Return the keys with the largest weights, in the order of the text."""
    return sorted(np.argsort(-steps.weights, kind="stable")[:MAX_SHOWN_KEYS].tolist())


def vector_rows(vectors: np.ndarray, labels: Sequence[str]) -> str:
    """Draw the first numbers of each vector as a row of cells: blue above zero, orange below, darker if larger."""
    columns = vectors[:, :NUM_SHOWN_DIMS]
    names = [shorten(label, MAX_LABEL) for label in labels]
    left, width, height = 10 + max(map(text_width, names)), 52, 24
    largest = float(np.abs(columns).max()) or 1.0
    parts = []
    for i, (row, name) in enumerate(zip(columns, names)):
        y = 2 + i * height
        parts.append(svg_text(left - 6, y + 16, name, "end"))
        for j, value in enumerate(row.tolist()):
            x, color = left + j * width, "--s1" if value >= 0 else "--s2"
            cell = f'x="{x:.1f}" y="{y}" width="{width - 1}" height="{height - 1}"'
            parts.append(f'<rect {cell} style="fill:var({color})" fill-opacity="{0.6 * abs(value) / largest:.2f}"/>')
            parts.append(svg_text(x + width / 2, y + 16, f"{value:z.2f}".replace("-", "−"), "middle"))
        if vectors.shape[1] > NUM_SHOWN_DIMS:
            parts.append(svg_text(left + NUM_SHOWN_DIMS * width + 4, y + 16, "…"))
    size = left + columns.shape[1] * width + 20, 4 + len(names) * height
    return svg_image(*size, "".join(parts), "vectors, one row each", scalable=False)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


def _to_list(array: np.ndarray) -> list[Any]:
    """Return nested lists of numbers with 7 significant digits."""
    return [_to_list(row) if array.ndim > 1 else float(f"{row:.7g}") for row in array]
