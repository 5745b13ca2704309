"""Loss terms: each is a sum; the loop divides it once, by its count over the whole step (the law of sums).

A term has the name of its head, and the head knows its loss: one function serves every objective. Terms that predict
nothing are in `REGULARIZERS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.chunking import forward_chunked
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.transformer import TrunkOutput
from polyseme.objectives.batch import IGNORE_INDEX, Batch

EVAL_CHUNK_ROWS = 1024  # rows whose scores of a whole vocabulary stand in memory at once, when measuring


def forward_trunk(model: Model, batch: Batch, layers: tuple[int, ...] = ()) -> TrunkOutput:
    """What the trunk makes of it, with the memory of the batch before where the batch carries one, without gradient."""
    segment_state, trunk_inputs = batch.segment_state, (batch.tokens, batch.layout, batch.segments)
    if batch.chunk_size:
        return TrunkOutput(forward_chunked(model.trunk, *trunk_inputs, batch.chunk_size, batch.grad_tokens), {})
    if segment_state is None:
        output: TrunkOutput = model.trunk(
            *trunk_inputs, query_stream=batch.query_stream, source=batch.source, layers=layers
        )
        return output
    memory = None if batch.starts_fresh else segment_state.memory
    output = model.trunk(
        *trunk_inputs,
        query_stream=batch.query_stream,
        source=batch.source,
        memory=memory,
        return_memory=True,
        layers=layers,
    )
    assert output.memory is not None
    segment_state.memory = output.memory.detach()
    return output


def _activation_penalty(hidden: Tensor, raw_hidden: Tensor, layout: PackedLayout) -> Tensor:
    """The mean square of each token's last state, as dropout leaves it (Merity et al. 2018, §4.6, AR)."""
    return hidden.float().square().mean(-1).sum()


def _temporal_activation_penalty(hidden: Tensor, raw_hidden: Tensor, layout: PackedLayout) -> Tensor:
    """The mean square of the change from each token's state to the next, before dropout (TAR)."""
    squared_diff = (raw_hidden[1:] - raw_hidden[:-1]).float().square().mean(-1)
    return (squared_diff * (layout.positions[1:] > 0)).sum()


REGULARIZERS: dict[str, Callable[[Tensor, Tensor, PackedLayout], Tensor]] = {
    "activation_reg": _activation_penalty,
    "temporal_activation_reg": _temporal_activation_penalty,
}


def compute_losses(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The summed loss of each term of the batch: of its head, or a penalty on the states themselves."""
    num_layers = model.config.trunk.num_layers
    batch = _apply_scheduled_sampling(model, batch) if model.training else batch
    output = forward_trunk(model, batch, (num_layers,) if batch.targets.keys() & REGULARIZERS.keys() else ())
    hidden, layout = output.hidden, batch.layout
    return {
        name: REGULARIZERS[name](hidden, output.layers[num_layers], layout)
        if name in REGULARIZERS
        else model.loss(name, hidden, layout, target.rows, target.labels, IGNORE_INDEX, target.label_smoothing)
        for name, target in batch.targets.items()
    }


@torch.no_grad()
def _apply_scheduled_sampling(model: Model, batch: Batch) -> Batch:
    """The batch with the model's own words where it asks for them: the likeliest behind the true ones before."""
    if batch.sample_mask is None:
        return batch
    (name,) = batch.targets
    predicted_ids = model.predict(name, forward_trunk(model, batch).hidden, batch.layout).argmax(-1)
    return dataclasses.replace(batch, tokens=torch.where(batch.sample_mask, predicted_ids.roll(1), batch.tokens))


@torch.no_grad()
def evaluate_batch(model: Model, batch: Batch) -> dict[str, tuple[float, int, int]]:
    """For measuring: (summed cross entropy, right answers, count) of each term that has a head.

    Of a head that learns by rows it is that head's own loss, and no answer is right or wrong.
    """
    if batch.sparse is not None:
        return {
            name: (float(model.compute_sparse_grads(name, batch.sparse, with_loss=True)[0]), 0, target.count)  # type: ignore[arg-type]
            for name, target in batch.targets.items()
        }
    hidden = forward_trunk(model, batch).hidden
    term_scores = {}
    for name, targets in batch.targets.items():
        if name not in model.heads:
            continue
        loss_sum, num_correct = (
            torch.zeros((), device=hidden.device),
            torch.zeros((), dtype=torch.int64, device=hidden.device),
        )
        for rows, labels in zip(targets.rows.split(EVAL_CHUNK_ROWS), targets.labels.split(EVAL_CHUNK_ROWS)):
            logits = model.predict(name, hidden, batch.layout, rows).float()
            loss_sum += F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
            num_correct += (logits.argmax(-1) == labels).sum()
        term_scores[name] = (loss_sum.item(), int(num_correct), targets.count)
    return term_scores
