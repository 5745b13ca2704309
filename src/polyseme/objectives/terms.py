"""Loss terms: each is a sum; the loop divides it once, by its count over the whole step (the law of sums).

A term has the name of its head, so that one function serves every objective that predicts classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.objectives.batch import IGNORED, Batch
from polyseme.parts.model import Model


def losses(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The summed cross entropy of each term of the batch."""
    last = model.trunk(batch.tokens, batch.layout, batch.segments, source=batch.source).last
    return {
        name: model.cross_entropy(name, last, batch.layout, to.rows, to.values, IGNORED, to.smoothing)
        for name, to in batch.targets.items()
    }


@torch.no_grad()
def scores(model: Model, batch: Batch) -> dict[str, tuple[float, int, int]]:
    """For measuring: (summed cross entropy, right answers, count) of each term."""
    last = model.trunk(batch.tokens, batch.layout, batch.segments, source=batch.source).last
    found = {}
    for name, targets in batch.targets.items():
        logits = model.predict(name, last, batch.layout, targets.rows).float()
        total = F.cross_entropy(logits, targets.values, ignore_index=IGNORED, reduction="sum")
        right = int((logits.argmax(-1) == targets.values).sum()) if len(targets.values) else 0
        found[name] = (total.item(), right, targets.count)
    return found
