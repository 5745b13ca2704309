"""The Transformer trunk: a stack of attention blocks, of any of the families."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.errors import ConfigError
from polyseme.nn.attention.multihead import AttentionConfig, BucketedRelativeBiasConfig, NoPositionBiasConfig
from polyseme.nn.attention.relative import RelativeAttentionConfig, RelativePositionConfig
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig
from polyseme.nn.layers.block import AnyNormConfig, NoNormConfig, TransformerBlock, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.regions import RegionEmbeddingsConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Inputs
from polyseme.nn.trunks.base import PoolerConfig, Trunk, TrunkConfig, TrunkOutput, derived

PositionBiasConfig = RelativePositionConfig | NoPositionBiasConfig | BucketedRelativeBiasConfig


@dataclass(frozen=True)
class TransformerConfig(TrunkConfig):
    """Embeddings, blocks, and what is shared between layers.

    `layer_to_block` is the index of the block at each layer: ALBERT is `(0,) * 12`. With `layer_to_ffn`, the first
    indexes attention sublayers and the second feed-forward sublayers; each distinct pair is a block, and blocks with
    the same index share that sublayer. `variant_per_block` is 0 for a block configured by `block` and i for one
    configured by `block_variants[i − 1]`; empty means all 0. A hybrid trunk reads a batch left to right if its layout
    is `causal` or if there is a memory, and otherwise in both directions (Charpentier and Samuel 2024).
    """

    embeddings: EmbeddingsConfig | AdaptiveEmbeddingsConfig | RegionEmbeddingsConfig
    block: TransformerBlockConfig
    layer_to_block: tuple[int, ...]
    block_variants: tuple[TransformerBlockConfig, ...] = ()
    variant_per_block: tuple[int, ...] = ()
    final_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    pooler: PoolerConfig = field(default_factory=PoolerConfig)
    init: InitConfig = field(default_factory=InitConfig)
    position_bias: PositionBiasConfig = field(default_factory=NoPositionBiasConfig)
    memory_len: int = 0  # tokens of each sequence kept in memory; 0 keeps all
    layer_to_ffn: tuple[int, ...] = ()
    final_dropout: float = 0.0  # after the final norm
    is_hybrid: bool = False

    dim = derived(lambda self: self.embeddings.dim)
    causal = derived(lambda self: self.block.attention.causal)
    num_heads = derived(lambda self: self.block.attention.num_heads)
    num_layers = derived(lambda self: len(self.layer_to_block))
    num_blocks = derived(lambda self: len(self.block_configs))
    has_attention = True
    has_source = derived(lambda self: all(block.cross_attention for block in self.block_configs))
    has_query_stream = derived(lambda self: self.has_relative_positions and self.position_bias.two_stream)
    has_memory = derived(lambda self: self.causal or self.is_hybrid or self.has_relative_positions)
    has_bounded_memory = derived(lambda self: self.memory_len > 0)
    depends_on_lengths = derived(lambda self: not isinstance(self.position_bias, NoPositionBiasConfig))
    supports_static_shape = derived(lambda self: not (self.has_relative_positions and self.memory_len))

    @property
    def has_relative_positions(self) -> bool:
        """Whether attention scores depend on relative positions and the query (Transformer-XL, XLNet)."""
        return isinstance(self.position_bias, RelativePositionConfig)

    @derived
    def supports_static_cache(self) -> bool:
        attentions = [block.attention for block in (self.block, *self.block_variants)]
        is_plain = not self.memory_len and all(isinstance(a, AttentionConfig) for a in attentions)
        return (self.causal or self.is_hybrid) and is_plain

    @derived
    def num_segments(self) -> int:
        has_relative_segments = getattr(self.block.attention, "has_segment_bias", False)
        return self.embeddings.num_segments or 2 * has_relative_segments

    @property
    def sublayers_per_layer(self) -> tuple[tuple[int, int], ...]:
        """Index of the attention and of the feed-forward sublayer of each layer."""
        if self.layer_to_ffn and len(self.layer_to_ffn) != len(self.layer_to_block):
            sizes = len(self.layer_to_ffn), len(self.layer_to_block)
            raise ConfigError(f"layer_to_ffn has {sizes[0]} layers, but layer_to_block has {sizes[1]}")
        return tuple(zip(self.layer_to_block, self.layer_to_ffn or self.layer_to_block))

    @property
    def block_index_per_layer(self) -> tuple[int, ...]:
        """Index of the block that runs at each layer."""
        distinct_pairs = sorted(set(self.sublayers_per_layer))
        return tuple(distinct_pairs.index(pair) for pair in self.sublayers_per_layer)

    @property
    def block_configs(self) -> tuple[TransformerBlockConfig, ...]:
        """The config of each block, in the order of its sublayer indices."""
        num_blocks, configs = len(set(self.sublayers_per_layer)), (self.block, *self.block_variants)
        variants = self.variant_per_block or (0,) * num_blocks
        if len(variants) != num_blocks or not set(variants) <= set(range(len(configs))):
            expected = f"{num_blocks} numbers from 0 to {len(configs) - 1}"
            raise ConfigError(f"variant_per_block is {list(variants)}, expected {expected}")
        return tuple(configs[variant] for variant in variants)

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        """Count 6 operations per matrix weight and token, and the products of attention.

        A matrix of n weights costs 2n per row in the forward pass and 4n in the backward pass. Attention scores and
        their weighted sum cost 4 · width · length per token and layer forward and three times that in all, half of it
        if causal; a window w limits the length to 2w + 1.
        """
        dim, num_tokens, max_length = self.dim, sum(lengths), max(lengths, default=0)
        total = 6 * self.embeddings.embedding_dim * dim * num_tokens
        for block, times in Counter(self.block_configs[i] for i in self.block_index_per_layer).items():
            attention, ffn = block.attention, block.ffn
            width = attention.inner_dim(dim)
            total += 6 * times * (4 * dim * width + (2 + ffn.gated) * dim * ffn.ffn_dim) * num_tokens
            span = 2 * attention.window + 1 if attention.window else max_length
            total += 12 * times * width * sum(n * min(n, span) for n in lengths) // (2 if attention.causal else 1)
            if block.cross_attention is not None:
                width = block.cross_attention.inner_dim(dim)
                total += 12 * times * dim * width * (num_tokens + sum(source_lengths))
                total += 12 * times * width * sum(n * m for n, m in zip(lengths, source_lengths))
        return total

    def build(self) -> Trunk:
        if not self.layer_to_block:
            raise ConfigError("layer_to_block is empty: a trunk needs at least one layer")
        if self.is_hybrid and (self.causal or self.depends_on_lengths):
            reason = "is causal already" if self.causal else "has relative positions"
            raise ConfigError(f"is_hybrid is true, but the trunk {reason}: set it to false")
        for attention in (block.attention for block in (self.block, *self.block_variants)):
            if isinstance(attention, RelativeAttentionConfig) != self.has_relative_positions:
                names = [type(each).__name__ for each in (self.position_bias, attention)]
                problem = "position_bias is {} and attention {}: both have to be relative, or neither".format(*names)
                raise ConfigError(problem)
        return Transformer(self)


class Transformer(Trunk):
    """A stack of Transformer blocks."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.supports_rows = not config.has_source
        self.embeddings = config.embeddings.build()
        self.position_bias = config.position_bias.build(config.dim)
        self.blocks = nn.ModuleList(block.build(config.dim) for block in config.block_configs)
        pairs = sorted(set(config.sublayers_per_layer))
        for prefix, indices in zip(("attention", "ffn"), zip(*pairs)):  # of the names of a block's modules
            for block, index in zip(self.blocks, indices):
                for name, part in list(self.blocks[indices.index(index)].named_children()):
                    if name.startswith(prefix):
                        setattr(block, name, part)
        self.final_norm = config.final_norm.build(config.dim)
        self.final_dropout = nn.Dropout(config.final_dropout)
        self.pooler = config.pooler.build(config.dim)

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        config, layout, source = self.config, inputs.layout, inputs.source
        caches, positions, max_seqlen = None, layout.positions, layout.max_seqlen
        if memory is not None and not config.has_relative_positions:
            positions, total_len = memory.next_positions(layout)
            max_seqlen = max_seqlen if config.memory_len else total_len  # bounded memory: no limit on the total
        if memory is not None or return_memory:
            layout = layout.as_causal() if config.is_hybrid else layout
            memory = memory or Memory.empty(layout)
            caches = memory.create_caches(layout, config.num_layers)
        x = self.embeddings(inputs, positions, max_seqlen)  # [T, dim]
        x, position_info = self.position_bias(x, inputs, caches[0] if caches else None)  # [T + targets, dim]
        outputs = {0: x} if 0 in layers else {}
        for depth, block in enumerate(self.layers(), start=1):
            rows = inputs.rows if depth == config.num_layers else None
            if self.gradient_checkpointing and self.training and caches is None:
                x = checkpoint(block, x, layout, positions, None, position_info, source, rows, use_reentrant=False)
            else:
                x = block(x, layout, positions, caches[depth - 1] if caches else None, position_info, source, rows)
            if depth == config.num_layers:
                x = self.final_dropout(self.final_norm(x))
            if depth in layers:
                outputs[depth] = x
        if caches is None:
            return TrunkOutput(x, outputs)
        memory = memory.update(caches, layout)
        return TrunkOutput(x, outputs, memory.truncate(config.memory_len) if config.memory_len else memory)

    def prepare_source(self, states: Tensor) -> Tensor:
        """Return encoder states in the form that `source` takes: as they are."""
        return states

    def attention_terms(self, inputs: Inputs, memory: Any = None) -> Iterator[tuple[str, AttentionTerms]]:
        config, layout, positions, caches = self.config, inputs.layout, inputs.layout.positions, None
        states = self(inputs, memory=memory, layers=range(config.num_layers)).layers
        if memory is not None:
            layout = layout.as_causal() if config.is_hybrid else layout
            positions = memory.next_positions(layout)[0]
            caches = memory.create_caches(layout, config.num_layers)
        _, position_info = self.position_bias(states[0], inputs, caches[0] if caches else None)
        for i, block in enumerate(self.layers()):
            cache = caches[i] if caches else None
            yield from block.attention_terms(states[i], layout, positions, cache, position_info, inputs.source)

    def source_kv(self, memory: Memory) -> list[tuple[Tensor, ...]]:
        """Return the keys and values of the source in the cross attention of each layer."""
        if memory.source is None:
            return []
        values = memory.source.values
        return [block.cross_attention.project_kv(values) for block in self.layers() if block.cross_attention]

    def layers(self) -> list[TransformerBlock]:
        """Return the block of each layer, from input to output."""
        return [self.blocks[i] for i in self.config.block_index_per_layer]

    def layer_modules(self) -> list[nn.Module]:
        bottom, top = [self.embeddings, self.position_bias], [self.final_norm, self.pooler]
        return [nn.ModuleList(bottom), *self.blocks, nn.ModuleList(top)]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        parts = [(part, *named) for part in self.blocks.modules() for named in part.named_children()]
        linears = [(part, name, child.weight) for part, name, child in parts if isinstance(child, nn.Linear)]
        return [(weight, getattr(part, "fused_count", {}).get(name, 1)) for part, name, weight in linears]
