"""What a run costs: tokens, floating-point operations, device-hours, parameters."""

from __future__ import annotations

from collections import Counter

from polyseme.objectives.batch import Batch
from polyseme.parts.heads import LabelHeadSpec
from polyseme.parts.model import Model


def num_parameters(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def training_flops(model: Model, batch: Batch) -> int:
    """Operations of one forward and backward pass: 6 for each weight a token meets, and the attention products.

    A matrix of n weights costs 2n a row forward and 4n backward; scores and their weighted sum cost 4 · dim · length
    a token and layer forward, thrice that in all (half of it where attention is causal); a window w cuts the length
    at 2w + 1.
    """
    trunk, dim = model.spec.trunk, model.spec.trunk.dim
    lengths = [n for n in batch.layout.lengths if n]
    longest, blocks = max(lengths, default=0), trunk.blocks
    weights, products, heads = trunk.embeddings.inner * dim, 0, 0
    for block, times in Counter(blocks[i] for i in trunk.depths).items():
        attention, ffn = block.attention, block.ffn
        weights += times * (4 * dim * dim + (2 + ffn.gated) * dim * ffn.ffn_dim)
        most = 2 * attention.window + 1 if attention.window else longest
        products += 12 * times * dim * sum(n * min(n, most) for n in lengths) // (2 if attention.causal else 1)
    for name, targets in batch.targets.items():
        head = model.spec.heads.get(name)
        if head is None:  # of a term that has no weights of its own
            continue
        pooled = isinstance(head, LabelHeadSpec) and head.reads == "pooled" and trunk.pooler.dense
        heads += 6 * targets.count * (head.weights(dim) + (dim * dim if pooled else 0))
    return 6 * weights * sum(lengths) + products + heads
