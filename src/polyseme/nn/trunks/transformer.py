"""The trunk: reads a packed batch, returns hidden states and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyseme.config import Config
from polyseme.errors import ConfigError
from polyseme.nn.attention.multihead import AttentionConfig
from polyseme.nn.attention.relative import (
    NoPositionBiasConfig,
    QueryStream,
    RelativeAttentionConfig,
    RelativePositionConfig,
)
from polyseme.nn.attention.score_bias import BucketedRelativeBiasConfig
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig
from polyseme.nn.layers.block import TransformerBlock, TransformerBlockConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.layers.feedforward import ACTIVATIONS
from polyseme.nn.layers.norms import AnyNormConfig, NoNormConfig
from polyseme.nn.memory import Memory, create_layer_caches, memory_from_caches
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.static_memory import StaticKVCache

SUBLAYER_PREFIXES = "attention", "ffn"  # how the names of a block's parts begin


@dataclass(frozen=True)
class PoolerConfig(Config):
    """One vector a sequence: its first or last token or their mean, through a dense layer and tanh if there is one.

    `ends` is for two directions side by side: where each of them has read everything.
    """

    pooling: Literal["first", "last", "mean", "final_states"] = "first"
    dense: bool = False

    def build(self, dim: int) -> Pooler:
        return Pooler(self, dim)


class Pooler(nn.Module):
    def __init__(self, config: PoolerConfig, dim: int):
        super().__init__()
        self.config = config
        self.dense = nn.Linear(dim, dim) if config.dense else None

    def forward(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        if self.config.pooling == "mean":
            x = layout.mean_pool(hidden)
        elif self.config.pooling == "final_states":
            half = hidden.shape[-1] // 2
            ends = (
                hidden.index_select(0, layout.last_indices)[:, :half],
                hidden.index_select(0, layout.first_indices)[:, half:],
            )
            x = torch.cat(ends, dim=-1)
        else:
            x = hidden.index_select(0, layout.first_indices if self.config.pooling == "first" else layout.last_indices)
        return x if self.dense is None else ACTIVATIONS["tanh"](self.dense(x))


@dataclass(frozen=True, eq=False)
class TrunkOutput:
    """What a trunk makes of a batch. `layers` holds those asked for: 0 the embeddings, i the output of depth i."""

    hidden: Tensor  # [T, dim]
    layers: dict[int, Tensor]
    memory: Any = None  # a Memory, if it was asked for


@dataclass(frozen=True)
class TrunkConfig(Config):
    """What others ask of every trunk's spec, as it is of one without attention; abstract. A spec says where it differs.

    It also has `embeddings`, `pooler` and `init`, `dim`, `num_layers`, `num_segments` and `depends_on_lengths`, and
    `matmul_params`,
    how many weights of matrices a token meets. What the names mean is said in `TransformerConfig`.
    """

    causal: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 0
    num_heads: ClassVar[int] = 0
    supports_static_shape: ClassVar[bool] = False
    has_query_stream: ClassVar[bool] = False
    has_bounded_memory: ClassVar[bool] = False


class Trunk(nn.Module):
    """What others ask of every trunk besides `forward`, `layer_groups` and `initialize`."""

    embeddings: Any
    pooler: Pooler
    gradient_checkpointing = False

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        """One vector a sequence, [slots, dim]."""
        return self.pooler(hidden, layout)

    @property
    def token_embeddings(self) -> Any:
        """The token vectors, which tied heads share, where there are such."""
        return self.embeddings.token_embeddings

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        """The matrices inside, and how many are stacked in each: what Muon makes orthogonal."""
        return []


@dataclass(frozen=True)
class TransformerConfig(Config):
    """`layer_to_block` names the block that runs at each depth, so that sharing blocks is data.

    With `layer_to_ffn`, the two name attention and feed-forward apart: each pair of them is a block, and blocks that
    name the same attention, or the same feed-forward, share its weights. Where blocks are not alike,
    `variant_per_block` says of each block which kind it is: 0 is `block`, i is `block_variants[i − 1]`.
    """

    embeddings: EmbeddingsConfig | AdaptiveEmbeddingsConfig
    block: TransformerBlockConfig
    layer_to_block: tuple[int, ...]
    block_variants: tuple[TransformerBlockConfig, ...] = ()
    variant_per_block: tuple[int, ...] = ()
    final_norm: AnyNormConfig = field(default_factory=NoNormConfig)
    pooler: PoolerConfig = field(default_factory=PoolerConfig)
    init: InitConfig = field(default_factory=InitConfig)
    position_bias: RelativePositionConfig | NoPositionBiasConfig | BucketedRelativeBiasConfig = field(
        default_factory=NoPositionBiasConfig
    )
    memory_len: int = 0  # how many tokens of each sequence are remembered; 0 is all
    layer_to_ffn: tuple[int, ...] = ()
    final_dropout: float = 0.0  # behind the final norm

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    @property
    def num_layers(self) -> int:
        return len(self.layer_to_block)

    @property
    def depends_on_lengths(self) -> bool:
        """Whether its attention works by lengths that the host knows: its kernels cannot be recorded for others."""
        return not isinstance(self.position_bias, NoPositionBiasConfig)

    @property
    def supports_static_shape(self) -> bool:
        """Whether a batch filled up to one shape is all it needs, as `torch.compile` does."""
        return not isinstance(self.position_bias, RelativePositionConfig)

    @property
    def has_query_stream(self) -> bool:
        """Whether it can be read by queries that do not see their own token."""
        return isinstance(self.position_bias, RelativePositionConfig) and self.position_bias.two_stream

    @property
    def has_bounded_memory(self) -> bool:
        """Whether it hands on a memory that does not grow."""
        return self.memory_len > 0

    @property
    def causal(self) -> bool:
        return self.block.attention.causal

    @property
    def supports_static_cache(self) -> bool:
        """Whether what it remembers is all keys and values it met, for which buffers can be made once."""
        is_plain = all(isinstance(block.attention, AttentionConfig) for block in (self.block, *self.block_variants))
        return is_plain and self.causal and not self.memory_len

    @property
    def has_cross_attention(self) -> bool:
        """Whether every block looks at a source."""
        return all(block.cross_attention is not None for block in self.block_configs)

    @property
    def num_heads(self) -> int:
        return self.block.attention.num_heads

    @property
    def num_blocks(self) -> int:
        return len(self.block_configs)

    @property
    def num_segments(self) -> int:
        """How many segments the trunk tells apart, by vectors of their own or by scores; 0 is none."""
        attention = self.block.attention
        has_relative_segments = isinstance(attention, RelativeAttentionConfig) and attention.has_segment_bias
        return self.embeddings.num_segments or 2 * has_relative_segments

    @property
    def sublayers_per_layer(self) -> tuple[tuple[int, int], ...]:
        """Which attention and which feed-forward run at each depth."""
        if self.layer_to_ffn and len(self.layer_to_ffn) != len(self.layer_to_block):
            raise ConfigError(
                f"layer_to_ffn names {len(self.layer_to_ffn)} layers, "
                f"but layer_to_block names {len(self.layer_to_block)}"
            )
        return tuple(zip(self.layer_to_block, self.layer_to_ffn or self.layer_to_block))

    @property
    def block_index_per_layer(self) -> tuple[int, ...]:
        """Which block runs at each depth."""
        distinct_pairs = sorted(set(self.sublayers_per_layer))
        return tuple(distinct_pairs.index(pair) for pair in self.sublayers_per_layer)

    @property
    def block_configs(self) -> tuple[TransformerBlockConfig, ...]:
        """The spec of each block, in the order of their pairs."""
        num_blocks = len(set(self.sublayers_per_layer))
        kinds = (self.block, *self.block_variants)
        if self.variant_per_block and (
            len(self.variant_per_block) != num_blocks
            or not 0 <= min(self.variant_per_block) <= max(self.variant_per_block) < len(kinds)
        ):
            raise ConfigError(
                f"variant_per_block {list(self.variant_per_block)} does not name a variant, 0 to {len(kinds) - 1}, "
                f"for each of {num_blocks} blocks"
            )
        return tuple(kinds[kind] for kind in self.variant_per_block or (0,) * num_blocks)

    def build(self) -> Transformer:
        if not self.layer_to_block:
            raise ConfigError("a trunk needs one layer or more")
        return Transformer(self)


class Transformer(Trunk):
    """With `gradient_checkpointing`, training keeps the input of each block alone and runs the block again
    backwards."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = config.embeddings.build()
        self.position_bias = config.position_bias.build(config.dim)
        self.blocks = nn.ModuleList(block.build(config.dim) for block in config.block_configs)
        pairs = sorted(set(config.sublayers_per_layer))
        for prefix, indices in zip(SUBLAYER_PREFIXES, zip(*pairs)):
            for block, index in zip(self.blocks, indices):
                first_block = self.blocks[indices.index(index)]
                for name, part in list(first_block.named_children()):
                    if name.startswith(prefix):
                        setattr(block, name, part)
        self.final_norm = config.final_norm.build(config.dim)
        self.final_dropout = nn.Dropout(config.final_dropout)
        self.pooler = config.pooler.build(config.dim)

    def forward(
        self,
        tokens: Tensor,
        layout: PackedLayout,
        segments: Tensor | None = None,
        *,
        layers: Iterable[int] = (),
        memory: Memory | StaticKVCache | None = None,
        return_memory: bool = False,
        query_stream: QueryStream | None = None,
        source: EncoderInput | None = None,
        token_embeddings: Tensor | None = None,
    ) -> TrunkOutput:
        """Read a chunk. With `return_memory`, the reading carries the memory with which the next chunk is read.

        With `query_stream`, the states of the query stream stand behind those of the tokens. `source` is for blocks
        with cross attention; `token_embeddings` are the token vectors where they are another trunk's.
        """
        caches, positions, max_seqlen = None, layout.positions, layout.max_seqlen
        if memory is not None:
            caches = memory.create_caches(layout, self.config.num_layers)
            if not isinstance(
                self.config.position_bias, RelativePositionConfig
            ):  # which knows how far apart tokens are, and no more
                positions, total_len = memory.next_positions(layout)
                max_seqlen = (
                    max_seqlen if self.config.memory_len else total_len
                )  # a set length is read without end, in chunks
        elif return_memory:
            caches = create_layer_caches(None, layout, self.config.num_layers)
        x = self.embeddings(tokens, positions, segments, max_seqlen, token_embeddings)
        x, position_info = self.position_bias(x, layout, segments, query_stream, caches[0] if caches else None)
        layer_indices = set(layers)
        layer_outputs = {0: x} if 0 in layer_indices else {}
        for depth, block in enumerate(self.layers(), start=1):
            if self.gradient_checkpointing and self.training and caches is None:
                x = checkpoint(block, x, layout, positions, None, position_info, source, use_reentrant=False)
            else:
                x = block(x, layout, positions, caches[depth - 1] if caches else None, position_info, source)
            if depth == self.config.num_layers:
                x = self.final_dropout(self.final_norm(x))
            if depth in layer_indices:
                layer_outputs[depth] = x
        if caches is None:
            return TrunkOutput(x, layer_outputs)
        new_memory: Any = memory_from_caches(caches, layout, None) if memory is None else memory.update(caches, layout)
        return TrunkOutput(
            x, layer_outputs, new_memory.truncate(self.config.memory_len) if self.config.memory_len else new_memory
        )

    def prepare_source(self, states: Tensor) -> Tensor:
        """What is kept of a source's states to look at: all of them, of which each block makes its keys."""
        return states

    def cross_weights(
        self, tokens: Tensor, layout: PackedLayout, source: EncoderInput, token_embeddings: Tensor | None
    ) -> list[list[Tensor]]:
        """Of each depth and sequence, which states of the source a target looks at, [heads, queries, keys]."""
        output = self(
            tokens, layout, layers=range(self.config.num_layers), source=source, token_embeddings=token_embeddings
        )
        _, position_info = self.position_bias(output.layers[0], layout, None, None, None)
        return [
            block.cross_weights(output.layers[i], layout, position_info, source)
            for i, block in enumerate(self.layers())
        ]

    def source_kv(self, memory: Memory) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that cross attention of each depth makes of the source."""
        if memory.source is None:
            return []
        values = memory.source.values
        return [
            block.cross_attention.project_kv(values) for block in self.layers() if block.cross_attention is not None
        ]

    def layers(self) -> list[TransformerBlock]:
        """The block that runs at each depth, from input to output."""
        return [self.blocks[i] for i in self.config.block_index_per_layer]  # type: ignore[misc]

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Parameters from input to output, one group a layer: for freezing and for rates by depth.

        What several layers share stands with the first of them.
        """
        bottom, top = ([self.embeddings, self.position_bias], [self.final_norm, self.pooler])
        assigned_ids: set[int] = set()
        groups = []
        for part in (nn.ModuleList(bottom), *self.blocks, nn.ModuleList(top)):
            groups.append([p for p in part.parameters() if id(p) not in assigned_ids])
            assigned_ids.update(map(id, groups[-1]))
        return [group for group in groups if group]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        return [
            (child.weight, getattr(part, "fused_count", {}).get(name, 1))
            for part in self.blocks.modules()
            for name, child in part.named_children()
            if isinstance(child, nn.Linear)
        ]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        self.config.init.apply(self, 2 * self.config.num_layers, generator)
