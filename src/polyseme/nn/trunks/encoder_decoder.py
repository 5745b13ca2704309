"""Encoder-decoder trunks: the decoder attends to the encoder's states of a source."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn.init import InitConfig
from polyseme.nn.layers.block import TransformerBlock, TransformerBlockConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.base import Trunk, TrunkConfig, TrunkOutput, delegate
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig, RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig


@dataclass(frozen=True)
class EncoderDecoderConfig(TrunkConfig):
    """An encoder and a decoder, which shares the encoder's token embeddings unless it has its own.

    Without a decoder it is the encoder of such a model. `tie_word_embeddings` is for the language-model head;
    `output_scale` multiplies the states before it. Properties of the trunk are those of the encoder, which runs alone
    where there is no source.
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
            raise ConfigError(f"decoder.dim is {decoder.dim} and encoder.dim {self.encoder.dim}: they must be equal")
        if not decoder.causal or not decoder.has_source:
            raise ConfigError("the decoder must be causal and have cross attention in every block")

    embeddings = delegate("encoder.embeddings")
    pooler = delegate("encoder.pooler")
    dim = delegate("encoder.dim")
    num_layers = delegate("encoder.num_layers")
    num_heads = delegate("encoder.num_heads")
    num_segments = delegate("encoder.num_segments")
    causal = delegate("encoder.causal")
    has_query_stream = delegate("encoder.has_query_stream")
    has_bounded_memory = delegate("encoder.has_bounded_memory")
    supports_static_shape = delegate("encoder.supports_static_shape")

    @property
    def block(self) -> TransformerBlockConfig:
        """The first block of a Transformer encoder."""
        assert isinstance(self.encoder, TransformerConfig), "a recurrent encoder has no blocks"
        return self.encoder.block

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the stack that has more."""
        return max(self.encoder.num_blocks, self.decoder.num_blocks if self.decoder else 0)

    @property
    def has_source(self) -> bool:
        return self.decoder is not None

    @property
    def has_memory(self) -> bool:
        return self.decoder is not None and self.decoder.has_memory

    @property
    def supports_static_cache(self) -> bool:
        return self.decoder is not None and self.decoder.supports_static_cache

    @property
    def depends_on_lengths(self) -> bool:
        return self.encoder.depends_on_lengths or bool(self.decoder and self.decoder.depends_on_lengths)

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        if self.decoder is None or not len(source_lengths):
            return self.encoder.count_flops(lengths)
        return self.encoder.count_flops(source_lengths) + self.decoder.count_flops(lengths, source_lengths)

    def build(self) -> Trunk:
        return EncoderDecoder(self)


class EncoderDecoder(Trunk):
    """The decoder's states of a target whose source is in the inputs or in memory; otherwise the encoder's states."""

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.encoder: Any = config.encoder.build()
        self.decoder: Any = config.decoder.build() if config.decoder else None

    @property
    def stacks(self) -> list[Any]:
        """The encoder and, if there is one, the decoder."""
        return [self.encoder] if self.decoder is None else [self.encoder, self.decoder]

    def check(
        self, inputs: Inputs, *, memory: Any = None, layers: Iterable[int] = (), return_memory: bool = False
    ) -> None:
        is_decoding = inputs.source is not None or memory is not None
        if is_decoding and self.decoder is None:
            raise UnsupportedError("the model has no decoder: it takes no source and has no memory")
        super().check(inputs, memory=memory, return_memory=return_memory)  # layers are checked by the stack that runs
        if is_decoding and (inputs.segments is not None or inputs.query_stream is not None):
            raise UnsupportedError("a decoder takes neither segments nor a query stream")
        if return_memory and not is_decoding:
            raise UnsupportedError("an encoder has no memory: memory needs a source")

    def _forward(self, inputs: Inputs, memory: Any, layers: frozenset[int], return_memory: bool) -> TrunkOutput:
        if inputs.source is None and memory is None:
            return self.encoder(inputs, layers=layers)
        source = None if inputs.source is None else self.encode(inputs.source)
        if source is None and isinstance(memory, Memory):
            source = memory.source
        output = self.decoder(self._target(inputs, source), memory=memory, layers=layers, return_memory=return_memory)
        if output.memory is None or source is None:
            return output
        # with the encoder's states in memory, the next chunk needs no source
        return dataclasses.replace(output, memory=dataclasses.replace(output.memory, source=source))

    def _target(self, inputs: Inputs, source: EncoderInput | None) -> Inputs:
        """Return the inputs of the decoder."""
        shared = self.encoder.token_embeddings if self.has_shared_embeddings else None
        return Inputs(inputs.tokens, inputs.layout, source=source, token_embeddings=shared)

    def encode(self, source: EncoderInput) -> EncoderInput:
        """Return the encoder's states of a source, in the form that the decoder attends to."""
        states = self.encoder(Inputs(source.values, source.layout)).hidden
        return EncoderInput(self.decoder.prepare_source(states), source.layout)

    def cross_weights(self, inputs: Inputs) -> list[list[Tensor]]:
        """Return the cross-attention weights of each layer and sequence, [heads, queries, keys]."""
        assert inputs.source is not None, "cross attention needs a source"
        return self.decoder.cross_weights(self._target(inputs, self.encode(inputs.source)))

    def source_kv(self, memory: Memory) -> list[tuple[Tensor, ...]]:
        """Return the keys and values of the source in the cross attention of each layer."""
        return self.decoder.source_kv(memory)

    def layers(self) -> list[TransformerBlock]:
        """Return the blocks of the encoder."""
        return self.encoder.layers()

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        return self.encoder.pool(hidden, layout)

    @property
    def position_bias(self) -> nn.Module:
        """The position bias of the encoder."""
        return self.encoder.position_bias

    @property
    def has_shared_embeddings(self) -> bool:
        """Whether encoder and decoder share their token embeddings."""
        return self.decoder is None or self.decoder.config.shares_token_embeddings

    @property
    def token_embeddings(self) -> Any:
        """The token embeddings of the target, which a tied head shares."""
        return self.encoder.token_embeddings if self.has_shared_embeddings else self.decoder.token_embeddings

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [group for stack in self.stacks for group in stack.layer_groups()]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        return [matrix for stack in self.stacks for matrix in stack.hidden_matrices()]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        for stack in self.stacks:
            stack.initialize(generator)
