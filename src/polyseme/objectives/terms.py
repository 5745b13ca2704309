"""Loss terms: each is a sum; the loop divides it once, by its count over the whole step (the law of sums).

A term has the name of its head, and the head knows its loss: one function serves every objective.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.objectives.batch import IGNORED, Batch
from polyseme.parts.model import Model


def read(model: Model, batch: Batch) -> Tensor:
    """The trunk's last states, with the memory of the batch before where the batch carries one; it has no gradient."""
    carry, given = batch.carry, (batch.tokens, batch.layout, batch.segments)
    if carry is None:
        return model.trunk(*given, queries=batch.queries, source=batch.source).last
    memory = None if batch.opens else carry.memory
    reading = model.trunk(*given, queries=batch.queries, source=batch.source, memory=memory, remember=True)
    carry.memory = reading.memory.detach()
    return reading.last


def losses(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The summed loss of each term of the batch."""
    last = read(model, batch)
    return {
        name: model.loss(name, last, batch.layout, to.rows, to.values, IGNORED, to.smoothing)
        for name, to in batch.targets.items()
    }


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
    last = read(model, batch)
    found = {}
    for name, targets in batch.targets.items():
        if name not in model.heads:
            continue
        logits = model.predict(name, last, batch.layout, targets.rows).float()
        total = F.cross_entropy(logits, targets.values, ignore_index=IGNORED, reduction="sum")
        right = int((logits.argmax(-1) == targets.values).sum()) if len(targets.values) else 0
        found[name] = (total.item(), right, targets.count)
    return found
