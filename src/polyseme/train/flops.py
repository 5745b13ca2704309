"""What a run costs: tokens, floating-point operations, device-hours, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from polyseme.nn.heads.standard import ClassificationHeadConfig
from polyseme.nn.model import Model
from polyseme.nn.trunks.feature_network import FeatureNetworkConfig
from polyseme.nn.trunks.lookup import StaticEmbeddingTrunkConfig
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderConfig
from polyseme.nn.trunks.transformer import TransformerConfig
from polyseme.nn.trunks.window import FeedForwardLMConfig
from polyseme.objectives.batch import Batch


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_training_flops(model: Model, batch: Batch) -> int:
    """Operations of one forward and backward pass: 6 for each weight a token meets, and the attention products.

    A matrix of n weights costs 2n a row forward and 4n backward; scores and their weighted sum cost 4 · width · length
    a token and layer forward, thrice that in all (half of it where attention is causal); a window w cuts the length
    at 2w + 1.
    """
    trunk, dim, lengths = model.config.trunk, model.config.trunk.dim, batch.layout.lengths
    if batch.sparse is not None:  # the products of pairs of words alone
        return 6 * dim * batch.sparse.num_products
    if isinstance(trunk, FeedForwardLMConfig | StaticEmbeddingTrunkConfig | FeatureNetworkConfig):
        total = 6 * trunk.matmul_params * sum(lengths)
    elif isinstance(trunk, TransformerConfig | RecurrentTrunkConfig):
        total = _count_stack_flops(trunk, lengths)
    elif batch.source is None or trunk.decoder is None:
        total = _count_stack_flops(trunk.encoder, lengths)
    else:
        source_lengths = batch.source.layout.lengths
        total = _count_stack_flops(trunk.encoder, source_lengths) + _count_stack_flops(
            trunk.decoder, lengths, source_lengths
        )
    for name, targets in batch.targets.items():
        head = model.config.heads.get(name)
        if head is None:  # of a term that has no weights of its own
            continue
        is_pooled = isinstance(head, ClassificationHeadConfig) and head.pooling == "pooled" and trunk.pooler.dense
        total += 6 * targets.count * (head.matmul_params(dim) + (dim * dim if is_pooled else 0))
    return total if batch.sample_mask is None else 4 * total // 3  # one reading more, forward


def _count_stack_flops(
    stack: TransformerConfig | RecurrentTrunkConfig | RecurrentDecoderConfig,
    lengths: Sequence[int],
    source_lengths: Sequence[int] = (),
) -> int:
    """Of one stack, which may look at a source too."""
    if isinstance(stack, RecurrentTrunkConfig):
        return 6 * stack.matmul_params * sum(lengths)
    if isinstance(stack, RecurrentDecoderConfig):
        decoder_weights, source_weights = stack.matmul_params
        products = sum(n * m for n, m in zip(lengths, source_lengths)) if stack.attention else 0
        return 6 * (decoder_weights * sum(lengths) + source_weights * sum(source_lengths)) + 12 * stack.dim * products
    dim, blocks, max_seqlen = stack.dim, stack.block_configs, max(lengths, default=0)
    total = 6 * stack.embeddings.embedding_dim * dim * sum(lengths)
    for block, num_uses in Counter(blocks[i] for i in stack.block_index_per_layer).items():
        attention, ffn = block.attention, block.ffn
        width = attention.inner_dim(dim)
        total += 6 * num_uses * (4 * dim * width + (2 + ffn.gated) * dim * ffn.ffn_dim) * sum(lengths)
        max_attended = 2 * attention.window + 1 if attention.window else max_seqlen
        total += (
            12 * num_uses * width * sum(n * min(n, max_attended) for n in lengths) // (2 if attention.causal else 1)
        )
        if block.cross_attention is not None:
            width = block.cross_attention.inner_dim(dim)
            total += 12 * num_uses * dim * width * (sum(lengths) + sum(source_lengths))
            total += 12 * num_uses * width * sum(n * m for n, m in zip(lengths, source_lengths))
    return total
