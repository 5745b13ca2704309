"""Decode the states of every layer with the final norm and the head of a language model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.explain.lm_input import LMInput
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import TrunkOutput
from polyseme.progress import progress

ROWS_PER_SOFTMAX = 256  # bounds the memory of [rows, vocabulary] in float64
SHOWN_POSITIONS = 50  # positions from which on the progress is shown
OUTPUT = "output"  # name of what the head reads where that is no layer, such as states combined with a context


@dataclass(frozen=True, eq=False)
class LayerPredictions:
    """The predictions of each layer at the positions of an input, [layers, positions] or [layers, positions, k].

    The last layer is the model's own prediction. `kl` is the Kullback-Leibler divergence of a layer's distribution from
    the final one, in nats. `skipped` has the sizes of layers that the head cannot read, by their number.
    """

    lm_input: LMInput
    layers: list[str]
    skipped: dict[int, int]
    top_ids: np.ndarray
    top_probs: np.ndarray
    final_probs: np.ndarray  # of the token that the last layer predicts
    final_ranks: np.ndarray
    kl: np.ndarray
    target_probs: np.ndarray  # of the true token; NaN without one
    target_ranks: np.ndarray

    @property
    def settled_layers(self) -> np.ndarray:
        """Index of the layer from which the prediction no longer changes, [positions]."""
        is_final = self.top_ids[:, :, 0] == self.top_ids[-1, :, 0]  # [layers, positions]
        num_settled: np.ndarray = np.cumprod(is_final[::-1], axis=0).sum(0)
        return len(self.layers) - num_settled


@torch.inference_mode()
def decode_layers(lm_input: LMInput, top_k: int) -> LayerPredictions:
    """Predict the tokens of an input from every layer; 0 is the embeddings."""
    model, parts, targets = lm_input.network.model, [], list(lm_input.targets)
    stack = _decoding_stack(model.trunk, lm_input.source is not None)
    num_layers = stack.config.num_layers
    with progress("decode", len(targets), "positions", show=len(targets) > SHOWN_POSITIONS) as bar:
        for inputs, rows in lm_input.batches():
            output = model.trunk(inputs, layers=range(num_layers + 1))
            states = _decodable_states(output, stack, model.config.trunk.dim)
            for chunk in rows.split(ROWS_PER_SOFTMAX):
                chunk_targets, targets = targets[: len(chunk)], targets[len(chunk) :]
                parts.append(_compare_with_final(lm_input, states, inputs, chunk, chunk_targets, top_k))
            bar.advance(len(rows))
    names, sizes = list(states), {depth: layer.shape[-1] for depth, layer in output.layers.items()}
    skipped = {depth: size for depth, size in sizes.items() if str(depth) not in names}
    arrays = (np.concatenate(columns, axis=1) for columns in zip(*parts))
    return LayerPredictions(lm_input, names, skipped, *arrays)


def _decoding_stack(trunk: Any, has_source: bool) -> Any:
    """Return the stack that the head reads: the decoder of an encoder-decoder."""
    return trunk.decoder if has_source else trunk


def _decodable_states(output: TrunkOutput, stack: Any, dim: int) -> dict[str, Tensor]:
    """Return the states of each layer as the head reads them, after the final norm, and the output if it differs."""
    num_layers, final_norm = stack.config.num_layers, getattr(stack, "final_norm", None)
    states = {}
    for depth, layer in sorted(output.layers.items()):
        if layer.shape[-1] == dim:
            states[str(depth)] = final_norm(layer) if final_norm is not None and depth < num_layers else layer
    last = states.get(str(num_layers))
    if last is None or not torch.equal(last, output.hidden):
        states[OUTPUT] = output.hidden
    return states


def _compare_with_final(
    lm_input: LMInput, states: dict[str, Tensor], inputs: Inputs, rows: Tensor, targets: list[int | None], top_k: int
) -> tuple[np.ndarray, ...]:
    """Return the arrays of `LayerPredictions` for some rows."""
    model, head, device = lm_input.network.model, lm_input.head, rows.device

    def log_probs() -> Iterator[Tensor]:  # of each layer, [rows, vocabulary]
        for layer in states.values():
            yield model.predict(head, layer, inputs.layout, rows).double().log_softmax(-1)

    *_, last = states.values()
    final = model.predict(head, last, inputs.layout, rows).double().log_softmax(-1)
    final_ids = final.argmax(-1, keepdim=True)  # [rows, 1]
    has_target = torch.tensor([target is not None for target in targets], device=device)
    target_ids = torch.tensor([target or 0 for target in targets], device=device)[:, None]
    columns: list[tuple[Tensor, ...]] = []
    for layer_log_probs in log_probs():
        best = layer_log_probs.topk(min(top_k, layer_log_probs.shape[-1]))
        measured = []
        for ids in (final_ids, target_ids):
            chosen = layer_log_probs.gather(1, ids)
            measured += [chosen[:, 0].exp(), (layer_log_probs > chosen).sum(-1).double() + 1]
        kl = torch.nn.functional.kl_div(layer_log_probs, final, reduction="none", log_target=True).sum(-1)
        measured[2:] = [column.masked_fill(~has_target, float("nan")) for column in measured[2:]]
        columns.append((best.indices, best.values.exp(), measured[0], measured[1], kl, *measured[2:]))
    return tuple(torch.stack(column).cpu().numpy() for column in zip(*columns))
