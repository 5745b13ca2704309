"""Cost of training: floating-point operations and parameters."""

from __future__ import annotations

from torch import nn

from polyseme.nn.model import Model
from polyseme.objectives.batch import Batch, SparseUpdateBatch


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in model.parameters())


def count_training_flops(model: Model, batch: Batch | SparseUpdateBatch) -> int:
    """Return the operations of a forward and backward pass: 6 per matrix weight and row, and those of attention."""
    trunk, dim = model.config.trunk, model.config.trunk.dim
    if isinstance(batch, SparseUpdateBatch):  # products of pairs of words
        return 6 * dim * batch.examples.num_products
    inputs = batch.inputs
    source_lengths = () if inputs.source is None else inputs.source.layout.lengths
    total = trunk.count_flops(inputs.layout.lengths, source_lengths)
    for name, targets in batch.targets.items():
        head = model.config.heads.get(name)
        if head is None:  # a term without weights
            continue
        has_pooler = head.pooling == "pooled" and trunk.pooler.dense
        total += 6 * targets.count * (head.matmul_params(dim) + (dim * dim if has_pooler else 0))
    return total + batch.extra.num_extra_forwards * total // 3
