"""Two stacks: one reads a source, the other a target and, at every layer, what the first made of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.config import Config
from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsConfig
from polyseme.nn.layers.block import TransformerBlock, TransformerBlockConfig
from polyseme.nn.layers.char_cnn import CharCNNConfig
from polyseme.nn.layers.embeddings import EmbeddingsConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.nn.static_memory import StaticKVCache
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderConfig
from polyseme.nn.trunks.transformer import PoolerConfig, TransformerConfig, TrunkOutput


@dataclass(frozen=True)
class EncoderDecoderConfig(Config):
    """The token vectors are the encoder's; the decoder shares them unless it has its own.

    There may be no decoder: a part of such a model, for what an encoder is good for. `tie_word_embeddings` says that
    the language head has the token vectors for its matrix, `output_scale` what it multiplies states by before.
    """

    encoder: TransformerConfig | RecurrentTrunkConfig
    decoder: TransformerConfig | RecurrentDecoderConfig | None
    tie_word_embeddings: bool = True
    output_scale: float = 1.0
    init: InitConfig = field(default_factory=InitConfig)

    def __post_init__(self) -> None:
        decoder = self.decoder
        if decoder is None:
            return
        if decoder.dim != self.encoder.dim:
            raise ConfigError(f"the decoder has dim {decoder.dim}, the encoder {self.encoder.dim}: both need the same")
        if not decoder.causal or not decoder.has_cross_attention:
            raise ConfigError("the blocks of a decoder are causal and have cross attention")

    # what others ask of a trunk: without a source it is its encoder

    @property
    def embeddings(self) -> EmbeddingsConfig | AdaptiveEmbeddingsConfig | CharCNNConfig:
        return self.encoder.embeddings

    @property
    def block(self) -> TransformerBlockConfig:
        assert isinstance(self.encoder, TransformerConfig), "cells are no blocks"
        return self.encoder.block

    @property
    def pooler(self) -> PoolerConfig:
        return self.encoder.pooler

    @property
    def dim(self) -> int:
        return self.encoder.dim

    @property
    def num_layers(self) -> int:
        return self.encoder.num_layers

    @property
    def num_blocks(self) -> int:
        """Of the stack with more of them."""
        return max(self.encoder.num_blocks, self.decoder.num_blocks if self.decoder else 0)

    @property
    def num_heads(self) -> int:
        return self.encoder.num_heads

    @property
    def num_segments(self) -> int:
        return self.encoder.num_segments

    @property
    def supports_static_shape(self) -> bool:
        return self.encoder.supports_static_shape

    @property
    def has_query_stream(self) -> bool:
        return self.encoder.has_query_stream

    @property
    def has_bounded_memory(self) -> bool:
        return self.encoder.has_bounded_memory

    @property
    def depends_on_lengths(self) -> bool:
        return self.encoder.depends_on_lengths or bool(self.decoder and self.decoder.depends_on_lengths)

    @property
    def causal(self) -> bool:
        return self.encoder.causal

    @property
    def supports_static_cache(self) -> bool:
        return self.decoder is not None and self.decoder.supports_static_cache

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self)


class EncoderDecoder(nn.Module):
    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.encoder: Any = config.encoder.build()
        self.decoder: Any = config.decoder.build() if config.decoder else None

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
    ) -> TrunkOutput:
        """The decoder's reading of a target, whose source is given or remembered; without one, the encoder's.

        A reading with `return_memory` carries the encoder's states too, so that the next chunk needs no source.
        """
        if source is None and memory is None:
            return self.encoder(tokens, layout, segments, layers=layers, query_stream=query_stream)
        if self.decoder is None:
            raise UnsupportedError("this model has an encoder alone: it cannot read a target")
        encoder_states = None if source is None else self.encode(source)
        if encoder_states is None and isinstance(memory, Memory):
            encoder_states = memory.source
        token_embeddings = self.encoder.token_embeddings if self.has_shared_embeddings else None
        output = self.decoder(
            tokens,
            layout,
            layers=layers,
            memory=memory,
            return_memory=return_memory,
            source=encoder_states,
            token_embeddings=token_embeddings,
        )
        if output.memory is None or encoder_states is None:
            return output
        return dataclasses.replace(output, memory=dataclasses.replace(output.memory, source=encoder_states))

    def encode(self, source: EncoderInput) -> EncoderInput:
        """What the decoder looks at: the states of a source, as it wants them kept."""
        return EncoderInput(
            self.decoder.prepare_source(self.encoder(source.values, source.layout).hidden), source.layout
        )

    def cross_weights(self, tokens: Tensor, layout: PackedLayout, source: EncoderInput) -> list[list[Tensor]]:
        """Of each layer that looks at the source, and each sequence, where it looks: [heads, queries, keys]."""
        token_embeddings = self.encoder.token_embeddings if self.has_shared_embeddings else None
        return self.decoder.cross_weights(tokens, layout, self.encode(source), token_embeddings)

    def source_kv(self, memory: Memory) -> list[tuple[Tensor, Tensor]]:
        assert self.decoder is not None
        return self.decoder.source_kv(memory)

    def layers(self) -> list[TransformerBlock]:
        return self.encoder.layers()

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        return self.encoder.pool(hidden, layout)

    @property
    def position_bias(self) -> nn.Module:
        return self.encoder.position_bias

    @property
    def gradient_checkpointing(self) -> bool:
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.gradient_checkpointing = value

    @property
    def has_shared_embeddings(self) -> bool:
        """Whether both sides have one table of token vectors."""
        return self.decoder is None or getattr(self.decoder.config.embeddings, "tied_to_encoder", False)

    @property
    def token_embeddings(self) -> Any:
        """The token vectors that a tied head reads: those of the target."""
        return (
            self.encoder.token_embeddings
            if self.has_shared_embeddings or self.decoder is None
            else self.decoder.token_embeddings
        )

    def layer_groups(self) -> list[list[nn.Parameter]]:
        parameter_groups = [*self.encoder.layer_groups(), *(self.decoder.layer_groups() if self.decoder else [])]
        return [group for group in parameter_groups if group]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        return [*self.encoder.hidden_matrices(), *(self.decoder.hidden_matrices() if self.decoder else [])]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.initialize(generator)
