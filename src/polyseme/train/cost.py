"""What a run costs: tokens, floating-point operations, device-hours, parameters."""

from __future__ import annotations

from polyseme.objectives.batch import Batch
from polyseme.parts.heads import LanguageHeadSpec
from polyseme.parts.model import Model


def num_parameters(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def training_flops(model: Model, batch: Batch) -> int:
    """Operations of one forward and backward pass: 6 for each weight a token meets, and the attention products.

    A matrix of n weights costs 2n a row forward and 4n backward; scores and their weighted sum cost 4 · dim · length
    a token and layer forward, thrice that in all (half of it where attention is causal).
    """
    trunk = model.spec.trunk
    dim, ffn_dim = trunk.dim, trunk.block.ffn.ffn_dim
    lengths = [n for n in batch.layout.lengths if n]
    weights = trunk.num_layers * (4 * dim * dim + 2 * dim * ffn_dim)
    products = 12 * trunk.num_layers * dim * sum(n * n for n in lengths) // (2 if trunk.causal else 1)
    heads = 0
    for name, targets in batch.targets.items():
        head = model.spec.heads[name]
        if isinstance(head, LanguageHeadSpec):
            heads += 6 * targets.count * (dim * head.vocab_size + (dim * dim if head.dense else 0))
        else:
            pooled = dim * dim if head.reads == "pooled" and trunk.pooler.dense else 0
            heads += 6 * targets.count * (dim * head.num_outputs + pooled)
    return 6 * weights * sum(lengths) + products + heads
