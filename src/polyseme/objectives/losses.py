"""Loss terms: each is a sum; the loop divides it once, by its count over the whole step (the law of sums).

A term has the name of its head, and the head knows its loss: one function serves every objective. Terms that predict
nothing are in `PENALTIES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.nn.chunking import read_in_chunks
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout
from polyseme.nn.trunks.transformer import Reading
from polyseme.objectives.batch import IGNORED, Batch

SLICE = 1024  # rows whose scores of a whole vocabulary stand in memory at once, when measuring


def read(model: Model, batch: Batch, keep: tuple[int, ...] = ()) -> Reading:
    """What the trunk makes of it, with the memory of the batch before where the batch carries one, without gradient."""
    carry, given = batch.carry, (batch.tokens, batch.layout, batch.segments)
    if batch.chunk:
        return Reading(read_in_chunks(model.trunk, *given, batch.chunk, batch.learnt), {})
    if carry is None:
        found: Reading = model.trunk(*given, queries=batch.queries, source=batch.source, keep=keep)
        return found
    memory = None if batch.opens else carry.memory
    found = model.trunk(*given, queries=batch.queries, source=batch.source, memory=memory, remember=True, keep=keep)
    assert found.memory is not None
    carry.memory = found.memory.detach()
    return found


def _activation(last: Tensor, kept: Tensor, layout: Layout) -> Tensor:
    """The mean square of each token's last state, as dropout leaves it (Merity et al. 2018, §4.6, AR)."""
    return last.float().square().mean(-1).sum()


def _change(last: Tensor, kept: Tensor, layout: Layout) -> Tensor:
    """The mean square of the change from each token's state to the next, before dropout (TAR)."""
    moved = (kept[1:] - kept[:-1]).float().square().mean(-1)
    return (moved * (layout.positions[1:] > 0)).sum()


PENALTIES: dict[str, Callable[[Tensor, Tensor, Layout], Tensor]] = {"activation": _activation, "change": _change}


def losses(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The summed loss of each term of the batch: of its head, or a penalty on the states themselves."""
    depth = model.spec.trunk.num_layers
    batch = _with_own(model, batch) if model.training else batch
    reading = read(model, batch, (depth,) if batch.targets.keys() & PENALTIES.keys() else ())
    last, layout = reading.last, batch.layout
    return {
        name: PENALTIES[name](last, reading.layers[depth], layout)
        if name in PENALTIES
        else model.loss(name, last, layout, to.rows, to.values, IGNORED, to.smoothing)
        for name, to in batch.targets.items()
    }


@torch.no_grad()
def _with_own(model: Model, batch: Batch) -> Batch:
    """The batch with the model's own words where it asks for them: the likeliest behind the true ones before."""
    if batch.own is None:
        return batch
    (name,) = batch.targets
    said = model.predict(name, read(model, batch).last, batch.layout).argmax(-1)
    return dataclasses.replace(batch, tokens=torch.where(batch.own, said.roll(1), batch.tokens))


@torch.no_grad()
def scores(model: Model, batch: Batch) -> dict[str, tuple[float, int, int]]:
    """For measuring: (summed cross entropy, right answers, count) of each term that has a head.

    Of a head that learns by rows it is that head's own loss, and no answer is right or wrong.
    """
    if batch.near is not None:
        return {
            name: (float(model.row_gradients(name, batch.near, loss=True)[0]), 0, to.count)  # type: ignore[arg-type]
            for name, to in batch.targets.items()
        }
    last = read(model, batch).last
    found = {}
    for name, targets in batch.targets.items():
        if name not in model.heads:
            continue
        total, right = torch.zeros((), device=last.device), torch.zeros((), dtype=torch.int64, device=last.device)
        for rows, values in zip(targets.rows.split(SLICE), targets.values.split(SLICE)):
            logits = model.predict(name, last, batch.layout, rows).float()
            total += F.cross_entropy(logits, values, ignore_index=IGNORED, reduction="sum")
            right += (logits.argmax(-1) == values).sum()
        found[name] = (total.item(), int(right), targets.count)
    return found
