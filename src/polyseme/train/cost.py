"""What a run costs: tokens, floating-point operations, device-hours, parameters."""

from __future__ import annotations

from collections.abc import Sequence

from polyseme.objectives.batch import Batch
from polyseme.parts.encoder_decoder import EncoderDecoderSpec
from polyseme.parts.heads import LanguageHeadSpec
from polyseme.parts.model import Model
from polyseme.parts.trunk import TransformerSpec


def num_parameters(model: Model) -> int:
    return sum(p.numel() for p in model.parameters())


def training_flops(model: Model, batch: Batch) -> int:
    """Operations of one forward and backward pass: 6 for each weight a token meets, and the attention products.

    A matrix of n weights costs 2n a row forward and 4n backward; scores and their weighted sum cost 4 · width · length
    a token and layer forward, thrice that in all (half of it where attention is causal).
    """
    trunk, dim, lengths = model.spec.trunk, model.spec.trunk.dim, batch.layout.lengths
    total = 0
    if not isinstance(trunk, EncoderDecoderSpec):
        total += _stack_flops(trunk, lengths)
    elif batch.source is None or trunk.decoder is None:
        total += _stack_flops(trunk.encoder, lengths)
    else:
        source = batch.source.layout.lengths
        total += _stack_flops(trunk.encoder, source) + _stack_flops(trunk.decoder, lengths, source)
    for name, targets in batch.targets.items():
        head = model.spec.heads[name]
        if isinstance(head, LanguageHeadSpec):
            total += 6 * targets.count * (dim * head.vocab_size + (dim * dim if head.dense else 0))
        else:
            pooled = dim * dim if head.reads == "pooled" and trunk.pooler.dense else 0
            total += 6 * targets.count * (dim * len(head.labels) + pooled)
    return total


def _stack_flops(stack: TransformerSpec, lengths: Sequence[int], source: Sequence[int] = ()) -> int:
    """Of the blocks of one stack, which may look at a source too."""
    total, dim = 0, stack.dim
    for block in (stack.blocks[i] for i in stack.order):
        width = block.attention.width(dim)
        weights = 4 * dim * width + (2 + block.ffn.gated) * dim * block.ffn.ffn_dim
        total += 6 * weights * sum(lengths)
        total += 12 * width * sum(n * n for n in lengths) // (2 if block.attention.causal else 1)
        if block.cross is not None:
            width = block.cross.width(dim)
            total += 12 * dim * width * (sum(lengths) + sum(source))
            total += 12 * width * sum(n * m for n, m in zip(lengths, source))
    return total
