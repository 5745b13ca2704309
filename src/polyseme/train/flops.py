"""What a run costs: tokens, floating-point operations, device-hours, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from polyseme.nn.heads.standard import LabelHeadSpec
from polyseme.nn.model import Model
from polyseme.nn.trunks.feature_network import OverSpec
from polyseme.nn.trunks.lookup import LookupSpec
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderSpec
from polyseme.nn.trunks.transformer import TransformerSpec
from polyseme.nn.trunks.window import WindowSpec
from polyseme.objectives.batch import Batch


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def training_flops(model: Model, batch: Batch) -> int:
    """Operations of one forward and backward pass: 6 for each weight a token meets, and the attention products.

    A matrix of n weights costs 2n a row forward and 4n backward; scores and their weighted sum cost 4 · width · length
    a token and layer forward, thrice that in all (half of it where attention is causal); a window w cuts the length
    at 2w + 1.
    """
    trunk, dim, lengths = model.spec.trunk, model.spec.trunk.dim, batch.layout.lengths
    if batch.near is not None:  # the products of pairs of words alone
        return 6 * dim * batch.near.products
    if isinstance(trunk, WindowSpec | LookupSpec | OverSpec):
        total = 6 * trunk.weights * sum(lengths)
    elif isinstance(trunk, TransformerSpec | RecurrentSpec):
        total = _stack_flops(trunk, lengths)
    elif batch.source is None or trunk.decoder is None:
        total = _stack_flops(trunk.encoder, lengths)
    else:
        source = batch.source.layout.lengths
        total = _stack_flops(trunk.encoder, source) + _stack_flops(trunk.decoder, lengths, source)
    for name, targets in batch.targets.items():
        head = model.spec.heads.get(name)
        if head is None:  # of a term that has no weights of its own
            continue
        pooled = isinstance(head, LabelHeadSpec) and head.reads == "pooled" and trunk.pooler.dense
        total += 6 * targets.count * (head.weights(dim) + (dim * dim if pooled else 0))
    return total if batch.own is None else 4 * total // 3  # one reading more, forward


def _stack_flops(
    stack: TransformerSpec | RecurrentSpec | RecurrentDecoderSpec, lengths: Sequence[int], source: Sequence[int] = ()
) -> int:
    """Of one stack, which may look at a source too."""
    if isinstance(stack, RecurrentSpec):
        return 6 * stack.weights * sum(lengths)
    if isinstance(stack, RecurrentDecoderSpec):
        own, theirs = stack.weights
        products = sum(n * m for n, m in zip(lengths, source)) if stack.look else 0
        return 6 * (own * sum(lengths) + theirs * sum(source)) + 12 * stack.dim * products
    dim, blocks, longest = stack.dim, stack.blocks, max(lengths, default=0)
    total = 6 * stack.embeddings.inner * dim * sum(lengths)
    for block, times in Counter(blocks[i] for i in stack.depths).items():
        attention, ffn = block.attention, block.ffn
        width = attention.width(dim)
        total += 6 * times * (4 * dim * width + (2 + ffn.gated) * dim * ffn.ffn_dim) * sum(lengths)
        most = 2 * attention.window + 1 if attention.window else longest
        total += 12 * times * width * sum(n * min(n, most) for n in lengths) // (2 if attention.causal else 1)
        if block.cross is not None:
            width = block.cross.width(dim)
            total += 12 * times * dim * width * (sum(lengths) + sum(source))
            total += 12 * times * width * sum(n * m for n, m in zip(lengths, source))
    return total
