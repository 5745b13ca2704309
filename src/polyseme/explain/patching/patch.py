"""Run a model on one text with some of its states replaced by those of another text."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyseme.errors import DataError
from polyseme.explain.lm_input import LMInput
from polyseme.inference.inspection.hooks import output_hook
from polyseme.inference.packed_model import inputs_for_head
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.nn.trunks.recurrent import RecurrentTrunk
from polyseme.nn.trunks.transformer import Transformer
from polyseme.progress import progress

MIN_CHANGE = 1e-4  # of the logit difference between the two texts, which the effects are shares of


@dataclass(frozen=True, eq=False)
class Patching:
    """The effects of patching states of a second text into a first one, by component.

    `differences` are the logit differences of the two texts. An effect is 0 if patching leaves that of the first text
    unchanged, and 1 if it gives that of the second one; arrays are [layers, positions], and `layers` are their numbers.
    """

    inputs: tuple[LMInput, LMInput]
    differences: tuple[float, float]
    layers: dict[str, list[int]]
    effects: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Site:
    """A place in the forward pass: a module, and which of its calls (ALBERT's layers call one block)."""

    module: nn.Module
    call: int


@torch.inference_mode()
def patch_activations(first: LMInput, second: LMInput, token_ids: tuple[int, int]) -> Patching:
    """Patch each state of the second input into the first one and measure a difference of two logits.

    Both predict at their last position. Transformers are patched in the residual stream after each layer (0: the
    embeddings), in the output of attention, and in that of the feed-forward sublayer; a recurrent model in the state
    that each layer passes on after a token.
    """
    differences = tuple(
        float(logit_difference(lm_input, *_copies(lm_input, 1), token_ids)[0]) for lm_input in (first, second)
    )
    change = differences[1] - differences[0]
    if abs(change) < MIN_CHANGE:
        raise DataError(f"both texts have the logit difference {differences[0]:.4g}: there is no effect to locate")
    trunk: Any = first.network.model.trunk
    if isinstance(trunk, RecurrentTrunk):
        layers = {"state": list(range(1, trunk.config.num_layers + 1))}
        patched = {"state": _patch_recurrent(first, second, token_ids)}
    else:
        sites = transformer_sites(trunk)
        layers = {name: list(range(name != "residual", len(trunk.layers()) + 1)) for name in sites}
        num_sites = sum(map(len, sites.values()))
        show = num_sites * len(first.ids) ** 2 > 20 * first.network.max_batch_tokens
        with progress("patch", num_sites, "places", show=show) as bar:

            def patch(site: Site) -> np.ndarray:
                bar.advance(1)
                return _patch_site(first, second, site, token_ids, differences[0])

            patched = {name: np.stack(list(map(patch, component))) for name, component in sites.items()}
    effects = {name: (values - differences[0]) / change + 0.0 for name, values in patched.items()}
    return Patching((first, second), (differences[0], differences[1]), layers, effects)


def transformer_sites(trunk: Any) -> dict[str, list[Site]]:
    """Return the sites of the residual stream, of attention and of the feed-forward sublayers, from input to output."""
    assert isinstance(trunk, Transformer)
    blocks = trunk.layers()

    def sites(modules: Sequence[Any]) -> list[Site]:
        return [Site(module, sum(other is module for other in modules[:i])) for i, module in enumerate(modules)]

    return {
        "residual": [Site(trunk.position_bias, 0), *sites(blocks)],
        "attention": sites([block.attention for block in blocks]),
        "ffn": sites([block.ffn for block in blocks]),
    }


def logit_difference(lm_input: LMInput, inputs: Inputs, rows: Tensor, token_ids: tuple[int, int]) -> Tensor:
    """Return the logit of the first token minus that of the second one at each row."""
    model = lm_input.network.model
    logits = model.predict(lm_input.head, model.trunk(inputs).hidden, inputs.layout, rows).double()
    return logits[:, token_ids[0]] - logits[:, token_ids[1]]


def _copies(lm_input: LMInput, num_copies: int) -> tuple[Inputs, Tensor]:
    """Pack copies of an input; return the rows of their last predictions too."""
    rows = torch.arange(num_copies, device=lm_input.network.device) * len(lm_input.ids) + int(lm_input.positions[-1])
    return inputs_for_head(lm_input.network.model, lm_input.head, lm_input.pack([lm_input.ids] * num_copies), rows)


def _rows_of_positions(lm_input: LMInput, positions: np.ndarray) -> Tensor:
    """Return the row of position i in copy i; a query stream has one more row, which belongs to the prediction."""
    length, num_copies = len(lm_input.ids), len(positions)
    rows = np.arange(num_copies) * length + positions
    if lm_input.network.model.config.trunk.has_query_stream:
        is_predicted = positions == lm_input.positions[-1]
        rows = np.concatenate([rows, num_copies * length + np.flatnonzero(is_predicted)])
    return torch.from_numpy(rows).to(lm_input.network.device)


def _patch_site(
    first: LMInput, second: LMInput, site: Site, token_ids: tuple[int, int], unpatched: float
) -> np.ndarray:
    """Return the logit difference with the state of each position patched at one site; equal states change nothing."""
    states = [_states_at(lm_input, site) for lm_input in (first, second)]
    length = len(first.ids)
    differs = (states[0] != states[1]).any(-1).cpu().numpy()
    if len(differs) > length:  # the row of the query stream
        differs[first.positions[-1]] |= differs[length]
    patched = np.full(length, unpatched)
    copies_per_batch = max(first.network.max_batch_tokens // length, 1)
    changed = np.flatnonzero(differs[:length])
    for start in range(0, len(changed), copies_per_batch):
        positions = changed[start : start + copies_per_batch]
        values = states[1].index_select(0, _source_rows(first, positions))
        with replaced_states(site, _rows_of_positions(first, positions), values):
            batch = logit_difference(first, *_copies(first, len(positions)), token_ids)
        patched[positions] = batch.cpu().numpy()
    return patched


def _source_rows(lm_input: LMInput, positions: np.ndarray) -> Tensor:
    """Return the rows of the states of these positions in a single copy, in the order of `_rows_of_positions`."""
    rows = positions
    if lm_input.network.model.config.trunk.has_query_stream and lm_input.positions[-1] in positions:
        rows = np.append(rows, len(lm_input.ids))
    return torch.from_numpy(rows).to(lm_input.network.device)


def _states_at(lm_input: LMInput, site: Site) -> Tensor:
    """Return what a site outputs for an input, [T, dim]."""
    outputs: list[Tensor] = []
    with output_hook(site.module, lambda output: outputs.append(_hidden(output))):
        lm_input.network.model.trunk(_copies(lm_input, 1)[0])
    return outputs[site.call]


def replaced_states(site: Site, rows: Tensor, values: Tensor) -> AbstractContextManager[None]:
    """Replace rows of what a site outputs in the next forward pass."""
    num_calls = 0

    def patch(output: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls != site.call + 1:
            return output
        hidden = _hidden(output).index_copy(0, rows, values)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return output_hook(site.module, patch)


def _hidden(output: Any) -> Tensor:
    """Return the hidden states of what a module outputs: the first part of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def _patch_recurrent(first: LMInput, second: LMInput, token_ids: tuple[int, int]) -> np.ndarray:
    """Return the logit difference with the state of each layer after each token patched, [layers, positions].

    The last token passes on no state: its column is the difference of the text as it is.
    """
    trunk, device, length = first.network.model.trunk, first.network.device, len(first.ids)
    prefix_lengths = list(range(1, length))

    def read(rows: Sequence[np.ndarray], memory: Any = None) -> tuple[Any, PackedLayout]:
        layout = PackedLayout.from_lengths([len(row) for row in rows], device=device)
        tokens = torch.from_numpy(np.concatenate(rows)).to(device)
        return trunk(Inputs(tokens, layout), memory=memory, return_memory=True), layout

    memories = [read([each.ids[:n] for n in prefix_lengths])[0].memory for each in (first, second)]
    unpatched = float(logit_difference(first, *_copies(first, 1), token_ids)[0])
    patched = np.full((trunk.config.num_layers, length), unpatched)
    for layer in range(trunk.config.num_layers if prefix_lengths else 0):
        states = list(memories[0].states)
        states[layer] = memories[1].states[layer]
        output, layout = read([first.ids[n:] for n in prefix_lengths], replace(memories[0], states=tuple(states)))
        logits = first.network.model.predict(first.head, output.hidden, layout, layout.last_indices).double()
        patched[layer, :-1] = (logits[:, token_ids[0]] - logits[:, token_ids[1]]).cpu().numpy()
    return patched
