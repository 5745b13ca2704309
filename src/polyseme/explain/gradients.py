"""Gradient norms by distance, which show how gradients vanish in vanilla RNNs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.explain.explanation import Explanation
from polyseme.inference.base import LanguageModel
from polyseme.inference.inspection.hooks import output_hook
from polyseme.inference.load import load_neural
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import inputs_for_head
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.report.charts import Series, line_chart
from polyseme.report.html import figure, html_page, html_table, key_figures, paragraph
from polyseme.report.svg import Axis

DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # those in the table
SMALL_SHARE = 0.01  # of the norm at distance 1, below which a gradient has vanished
READING = (
    "A model learns from a token only if its gradient reaches it. The state of a vanilla RNN is multiplied by the same "
    "matrix at every step, so that gradients shrink (or grow) exponentially with the distance (Bengio et al. 1994); "
    "the cell of an LSTM is added to, which slows this down; attention reaches every token in one step, at any "
    "distance. Distance 0 is the last token that a causal model reads, and the mask itself in a masked model, which "
    "has a left and a right side."
)


def explain_gradients(
    models: Iterable[LanguageModel], texts: Sequence[str], *, max_distance: int = 50, num_windows: int = 64
) -> Explanation:
    """Compare how far gradients reach: their norm by the distance of a token from the prediction.

    >>> explanation = explain_gradients([model], ["the old cat sees the dog " * 20], max_distance=10)
    >>> sorted(explanation.record["models"][0]["norms"])
    ['left', 'right']
    """
    curves: dict[str, np.ndarray] = {}
    records: list[dict[str, Any]] = []
    for model in models:
        network = load_neural(model)
        norms = gradients_by_side(network, texts, max_distance, num_windows)
        name = _model_name(network, [record["name"] for record in records])
        curves |= {name if len(norms) == 1 else f"{name}, {side}": curve for side, curve in norms.items()}
        values = {side: curve.tolist() for side, curve in norms.items()}
        records.append({"name": name, "family": network.model.config.family, "norms": values})
    chart = _chart(curves)
    distances = [*(distance for distance in DISTANCES if distance < max_distance), max_distance]
    header = ["model", *map(str, distances)]
    rows = [[name, *(f"{curve[d]:.2e}" for d in distances)] for name, curve in curves.items()]
    caption = (
        "Mean norm of the gradient of a prediction's loss with respect to the vector of a token, by the distance of "
        "the token in tokens, on a logarithmic axis: a straight line is exponential decay."
    )
    sections = [
        ("Gradient norm by distance", figure(chart, caption)),
        ("Numbers", html_table(header, rows)),
        ("How to read it", paragraph(READING)),
    ]
    reaches = {name: _reach(curve) for name, curve in curves.items()}
    detail = f"distance from which on the norm is below {SMALL_SHARE:.0%} of that at distance 1"
    cards = [(name, reach, detail) for name, reach in reaches.items()]
    lead = f"How far a prediction depends on what was read, in up to {num_windows} windows of the texts."
    page = html_page("Gradients by distance", lead, sections, key_figures(cards))
    record = {"figure": "gradients", "max_distance": max_distance, "num_windows": num_windows, "models": records}
    summary = "; ".join(f"{name}: below {SMALL_SHARE:.0%} at distance {reach}" for name, reach in reaches.items())
    return Explanation(page, record, {"gradients": chart}, summary, [(header, rows)])


def gradients_by_distance(
    model: NeuralLM, texts: Sequence[str], max_distance: int = 50, num_windows: int = 64
) -> np.ndarray:
    """Return the mean norm of ∂loss/∂embedding by distance, [max_distance + 1] (Pascanu et al. 2013).

    It is that of `gradients_by_side`, over both sides of a masked model.
    """
    return np.mean(list(gradients_by_side(model, texts, max_distance, num_windows).values()), axis=0)


def gradients_by_side(
    model: NeuralLM, texts: Sequence[str], max_distance: int = 50, num_windows: int = 64
) -> dict[str, np.ndarray]:
    """Return the mean norm of ∂loss/∂embedding by distance to the left, and to the right for a masked model.

    The texts are concatenated and read in windows. The loss is that of the prediction after the last token of a window,
    which is at distance 0, or that of the masked token in its middle. A model cannot learn from a token whose gradient
    vanishes (Bengio et al. 1994).
    """
    network = model.model
    is_causal = "next" in network.heads and network.config.trunk.causal
    if not is_causal and ("masked" not in network.heads or model.is_seq2seq):
        raise UnsupportedError(f"{model.path} is not a causal language model, and not a masked one")
    num_special = 0 if is_causal else model.tokenizer.num_special_tokens_to_add()
    limit = model.max_len - 1 if is_causal else (model.max_len - num_special - 1) // 2
    if not 1 <= max_distance <= limit:
        expected = f"expected 1 to {limit} for a model that reads {model.max_len} tokens"
        raise ConfigError(f"max_distance is {max_distance}, {expected}")
    width = max_distance + 2 if is_causal else 2 * max_distance + 1
    ids = np.concatenate([model.tokenizer.encode(text) for text in texts] or [[]]).astype(np.int64)
    if len(ids) < width:
        raise DataError(f"the texts have {len(ids)} tokens, expected {width} or more")
    starts = np.unique(np.linspace(0, len(ids) - width, num_windows).astype(np.int64))
    windows = ids[starts[:, None] + np.arange(width)]
    per_batch = max(model.max_batch_tokens // (width + num_special), 1)
    batches = [windows[i : i + per_batch] for i in range(0, len(windows), per_batch)]
    norms = np.concatenate([_window_norms(model, batch, is_causal) for batch in batches]).mean(0)  # [tokens]
    if is_causal:
        return {"left": norms[::-1]}
    return {"left": norms[max_distance::-1], "right": norms[max_distance:]}


@dataclass(frozen=True, eq=False)
class _Windows:
    """Packed windows, the rows that predict, their labels, and the columns of a window without special tokens."""

    inputs: Inputs
    rows: Tensor
    labels: np.ndarray
    columns: np.ndarray


def _window_norms(model: NeuralLM, token_ids: np.ndarray, is_causal: bool) -> np.ndarray:
    """Return the gradient norm of each token that is read in windows [windows, width], without special tokens."""
    network = model.model
    windows = (_pack_causal if is_causal else _pack_masked)(model, token_ids)
    with _recorded_embeddings(network.trunk) as vectors:
        hidden, labels = network.trunk(windows.inputs).hidden, torch.from_numpy(windows.labels).to(model.device)
        loss = network.loss("next" if is_causal else "masked", hidden, windows.inputs.layout, windows.rows, labels)
        (grads,) = torch.autograd.grad(loss, vectors)
    norms = grads.float().norm(dim=-1).view(len(token_ids), -1)
    return norms.cpu().numpy()[:, windows.columns]


def _pack(sequences: np.ndarray, device: torch.device, segments: np.ndarray | None = None) -> Inputs:
    """Pack sequences of one length, [sequences, tokens]."""
    layout = PackedLayout.from_lengths([sequences.shape[1]] * len(sequences), device=device)
    packed_segments = None if segments is None else torch.from_numpy(np.tile(segments, len(sequences))).to(device)
    return Inputs(torch.from_numpy(sequences.reshape(-1)).to(device), layout, packed_segments)


def _pack_causal(model: NeuralLM, token_ids: np.ndarray) -> _Windows:
    """Pack windows whose last token is predicted."""
    inputs = _pack(token_ids[:, :-1], model.device)
    return _Windows(inputs, inputs.layout.last_indices, token_ids[:, -1], np.arange(token_ids.shape[1] - 1))


def _pack_masked(model: NeuralLM, token_ids: np.ndarray) -> _Windows:
    """Pack windows with their special tokens, and with the token in the middle masked."""
    network, tokenizer, (num_windows, width) = model.model, model.tokenizer, token_ids.shape
    template, segments = map(np.array, tokenizer.build_inputs_with_special_tokens([-1] * width))
    columns, middle = np.flatnonzero(template == -1), width // 2
    sequences = np.tile(template, (num_windows, 1))
    sequences[:, columns] = token_ids
    sequences[:, columns[middle]] = tokenizer.special_token_ids.mask
    inputs = network.config.trunk.omit_unsupported(_pack(sequences, model.device, segments))
    rows = torch.arange(num_windows, device=model.device) * len(template) + int(columns[middle])
    return _Windows(*inputs_for_head(network, "masked", inputs, rows), token_ids[:, middle], columns)


@contextmanager
def _recorded_embeddings(trunk: Any) -> Iterator[list[Tensor]]:
    """Record the output of the embeddings in a forward pass, for the gradient with respect to it."""
    vectors: list[Tensor] = []

    def record(output: Tensor) -> Tensor:
        vectors.append(output.detach().requires_grad_())
        return vectors[0]

    previous = getattr(trunk, "use_reference", False)
    trunk.use_reference = True  # cuDNN has no backward pass outside of training
    try:
        with output_hook(trunk.embeddings, record):
            yield vectors
    finally:
        trunk.use_reference = previous


def _model_name(model: NeuralLM, used_names: Sequence[str]) -> str:
    """Return the family and the cell of a model; with its folder if another model has the same."""
    config = model.model.config
    name = " ".join(part for part in (config.family, getattr(config.trunk, "cell", "")) if part)
    return name if name not in used_names else f"{name} ({model.path})"


def _reach(curve: np.ndarray) -> str:
    """Return the first distance from which on the norm is below a small share of that at distance 1."""
    is_small = curve < SMALL_SHARE * curve[1]
    num_last = int(np.cumprod(is_small[::-1]).sum())
    return str(len(curve) - num_last) if num_last else f"> {len(curve) - 1}"


def _chart(curves: Mapping[str, np.ndarray]) -> str:
    """Draw one line per model and side on a logarithmic axis."""
    series = [Series(name, list(enumerate(norms.tolist()))) for name, norms in curves.items()]
    x, y = Axis("distance in tokens", integers=True), Axis("norm of the gradient", log=True)
    return line_chart(series, x, y, height=340, direct_labels=True)
