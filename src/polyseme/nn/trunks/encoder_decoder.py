"""Two stacks: one reads a source, the other a target and, at every layer, what the first made of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.config import Spec
from polyseme.errors import UserError
from polyseme.nn.attention.relative import Queries
from polyseme.nn.init import InitSpec
from polyseme.nn.layers.adaptive import AdaptiveEmbeddingsSpec
from polyseme.nn.layers.block import Block, BlockSpec
from polyseme.nn.layers.char_cnn import CharactersSpec
from polyseme.nn.layers.embeddings import EmbeddingsSpec
from polyseme.nn.memory import Memory
from polyseme.nn.packing import Layout, Source
from polyseme.nn.static_memory import StaticMemory
from polyseme.nn.trunks.recurrent import RecurrentSpec
from polyseme.nn.trunks.recurrent_decoder import RecurrentDecoderSpec
from polyseme.nn.trunks.transformer import PoolerSpec, Reading, TransformerSpec


@dataclass(frozen=True)
class EncoderDecoderSpec(Spec):
    """The token vectors are the encoder's; the decoder shares them unless it has its own.

    There may be no decoder: a part of such a model, for what an encoder is good for. `tied` says that the language
    head has the token vectors for its matrix, `output_scale` what it multiplies states by before.
    """

    encoder: TransformerSpec | RecurrentSpec
    decoder: TransformerSpec | RecurrentDecoderSpec | None
    tied: bool = True
    output_scale: float = 1.0
    init: InitSpec = field(default_factory=InitSpec)

    def __post_init__(self) -> None:
        decoder = self.decoder
        if decoder is None:
            return
        if decoder.dim != self.encoder.dim:
            raise UserError(f"the decoder has dim {decoder.dim}, the encoder {self.encoder.dim}: both need the same")
        if not decoder.causal or not decoder.looks:
            raise UserError("the blocks of a decoder are causal and have cross attention")

    # what others ask of a trunk: without a source it is its encoder

    @property
    def embeddings(self) -> EmbeddingsSpec | AdaptiveEmbeddingsSpec | CharactersSpec:
        return self.encoder.embeddings

    @property
    def block(self) -> BlockSpec:
        assert isinstance(self.encoder, TransformerSpec), "cells are no blocks"
        return self.encoder.block

    @property
    def pooler(self) -> PoolerSpec:
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
    def one_shape(self) -> bool:
        return self.encoder.one_shape

    @property
    def stream(self) -> bool:
        return self.encoder.stream

    @property
    def remembers(self) -> bool:
        return self.encoder.remembers

    @property
    def by_lengths(self) -> bool:
        return self.encoder.by_lengths or bool(self.decoder and self.decoder.by_lengths)

    @property
    def causal(self) -> bool:
        return self.encoder.causal

    @property
    def static(self) -> bool:
        return self.decoder is not None and self.decoder.static

    def build(self) -> EncoderDecoder:
        return EncoderDecoder(self)


class EncoderDecoder(nn.Module):
    def __init__(self, spec: EncoderDecoderSpec):
        super().__init__()
        self.spec = spec
        self.encoder: Any = spec.encoder.build()
        self.decoder: Any = spec.decoder.build() if spec.decoder else None

    def forward(
        self,
        tokens: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        *,
        keep: Iterable[int] = (),
        memory: Memory | StaticMemory | None = None,
        remember: bool = False,
        queries: Queries | None = None,
        source: Source | None = None,
    ) -> Reading:
        """The decoder's reading of a target, whose source is given or remembered; without one, the encoder's.

        A reading with `remember` carries the encoder's states too, so that the next chunk needs no source.
        """
        if source is None and memory is None:
            return self.encoder(tokens, layout, segments, keep=keep, queries=queries)
        if self.decoder is None:
            raise UserError("this model has an encoder alone: it cannot read a target")
        encoded = None if source is None else self.encode(source)
        if encoded is None and isinstance(memory, Memory):
            encoded = memory.source
        table = self.encoder.table if self.shared else None
        reading = self.decoder(tokens, layout, keep=keep, memory=memory, remember=remember, source=encoded, table=table)
        if reading.memory is None or encoded is None:
            return reading
        return dataclasses.replace(reading, memory=dataclasses.replace(reading.memory, source=encoded))

    def encode(self, source: Source) -> Source:
        """What the decoder looks at: the states of a source, as it wants them kept."""
        return Source(self.decoder.prepared(self.encoder(source.values, source.layout).last), source.layout)

    def cross_weights(self, tokens: Tensor, layout: Layout, source: Source) -> list[list[Tensor]]:
        """Of each layer that looks at the source, and each sequence, where it looks: [heads, queries, keys]."""
        table = self.encoder.table if self.shared else None
        return self.decoder.cross_weights(tokens, layout, self.encode(source), table)

    def source_keys(self, memory: Memory) -> list[tuple[Tensor, Tensor]]:
        assert self.decoder is not None
        return self.decoder.source_keys(memory)

    def depths(self) -> list[Block]:
        return self.encoder.depths()

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        return self.encoder.pool(hidden, layout)

    @property
    def relations(self) -> nn.Module:
        return self.encoder.relations

    @property
    def recompute(self) -> bool:
        return self.encoder.recompute

    @recompute.setter
    def recompute(self, value: bool) -> None:
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.recompute = value

    @property
    def shared(self) -> bool:
        """Whether both sides have one table of token vectors."""
        return self.decoder is None or getattr(self.decoder.spec.embeddings, "shared", False)

    @property
    def table(self) -> Any:
        """The token vectors that a tied head reads: those of the target."""
        return self.encoder.table if self.shared or self.decoder is None else self.decoder.table

    def groups(self) -> list[list[nn.Parameter]]:
        found = [*self.encoder.groups(), *(self.decoder.groups() if self.decoder else [])]
        return [group for group in found if group]

    def matrices(self) -> list[tuple[Tensor, int]]:
        return [*self.encoder.matrices(), *(self.decoder.matrices() if self.decoder else [])]

    def initialise(self, generator: torch.Generator | None = None) -> None:
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.initialise(generator)
