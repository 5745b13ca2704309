"""Encoder-decoder trunks: the decoder attends to the encoder's states of a source."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.init import InitConfig
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.base import Trunk, TrunkConfig, TrunkOutput, derived
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
        if decoder is not None and decoder.dim != self.encoder.dim:
            raise ConfigError(f"decoder.dim is {decoder.dim} and encoder.dim {self.encoder.dim}: they must be equal")
        if decoder is not None and not (decoder.causal and decoder.has_source):
            raise ConfigError("the decoder must be causal and have cross attention in every block")

    embeddings = derived(lambda self: self.encoder.embeddings, doc="The embeddings of the encoder.")
    block = derived(lambda self: self.encoder.block, doc="The first block of a Transformer encoder.")
    pooler = derived(lambda self: self.encoder.pooler, doc="The pooler of the encoder.")
    dim = derived(lambda self: self.encoder.dim)
    num_layers = derived(lambda self: self.encoder.num_layers)
    num_blocks = derived(lambda self: max(stack.num_blocks for stack in self.stacks))
    num_heads = derived(lambda self: self.encoder.num_heads)
    num_segments = derived(lambda self: self.encoder.num_segments)
    causal = derived(lambda self: self.encoder.causal)
    has_query_stream = derived(lambda self: self.encoder.has_query_stream)
    has_attention = derived(lambda self: any(stack.has_attention for stack in self.stacks))
    has_source = derived(lambda self: self.decoder is not None)
    has_memory = derived(lambda self: self.has_source and self.decoder.has_memory)
    has_bounded_memory = derived(lambda self: self.encoder.has_bounded_memory)
    supports_static_shape = derived(lambda self: self.encoder.supports_static_shape)
    supports_static_cache = derived(lambda self: self.has_source and self.decoder.supports_static_cache)
    depends_on_lengths = derived(lambda self: any(stack.depends_on_lengths for stack in self.stacks))
    stacks = derived(lambda self: [s for s in (self.encoder, self.decoder) if s], doc="Encoder and decoder, if any.")

    def count_flops(self, lengths: Sequence[int], source_lengths: Sequence[int] = ()) -> int:
        if self.decoder is None or not len(source_lengths):
            return self.encoder.count_flops(lengths)
        return self.encoder.count_flops(source_lengths) + self.decoder.count_flops(lengths, source_lengths)

    def build(self) -> Trunk:
        return EncoderDecoder(self)


class EncoderDecoder(Trunk):
    """The decoder's states of a target whose source is in the inputs or in memory; otherwise the encoder's states."""

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__(config)
        self.encoder: Any = config.encoder.build()
        self.decoder: Any = config.decoder.build() if config.decoder else None

    def check(self, inputs: Inputs, memory: Any = None, layers: Any = (), return_memory: bool = False) -> None:
        is_decoding = inputs.source is not None or memory is not None
        if is_decoding and self.decoder is None:
            raise UnsupportedError("the model has no decoder: it takes no source and has no memory")
        super().check(inputs, memory, (), return_memory)  # layers are checked by the stack that runs
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
        return replace(output, memory=replace(output.memory, source=source))

    def _target(self, inputs: Inputs, source: EncoderInput | None) -> Inputs:
        """Return the inputs of the decoder."""
        shared = self.encoder.token_embeddings if self.has_shared_embeddings else None
        return Inputs(inputs.tokens, inputs.layout, source=source, token_embeddings=shared)

    def encode(self, source: EncoderInput) -> EncoderInput:
        """Return the encoder's states of a source, in the form that the decoder attends to."""
        states = self.encoder(Inputs(source.values, source.layout)).hidden
        return EncoderInput(self.decoder.prepare_source(states), source.layout)

    def attention_terms(self, inputs: Inputs, memory: Any = None) -> Iterator[tuple[str, AttentionTerms]]:
        source = inputs.source
        encoder_inputs = inputs if source is None else Inputs(source.values, source.layout)
        encoder_name = "self" if self.decoder is None else "encoder"
        for _, terms in self.encoder.attention_terms(encoder_inputs):
            yield encoder_name, terms
        if source is not None:
            for name, terms in self.decoder.attention_terms(self._target(inputs, self.encode(source)), memory):
                yield "decoder" if name == "self" else name, terms

    def source_kv(self, memory: Memory) -> list[tuple[Tensor, ...]]:
        """Return the keys and values of the source in the cross attention of each layer."""
        return self.decoder.source_kv(memory)

    def pool(self, hidden: Tensor, layout: PackedLayout) -> Tensor:
        return self.encoder.pool(hidden, layout)

    @property
    def has_shared_embeddings(self) -> bool:
        """Whether encoder and decoder share their token embeddings."""
        return self.decoder is None or self.decoder.config.shares_token_embeddings

    @property
    def token_embeddings(self) -> Any:
        """The token embeddings of the target, which a tied head shares."""
        return self.encoder.token_embeddings if self.has_shared_embeddings else self.decoder.token_embeddings

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [group for stack in self.children() for group in stack.layer_groups()]  # type: ignore[operator]

    def hidden_matrices(self) -> list[tuple[Tensor, int]]:
        return [matrix for stack in self.children() for matrix in stack.hidden_matrices()]  # type: ignore[operator]

    def initialize(self, generator: torch.Generator | None = None) -> None:
        for stack in self.children():
            stack.initialize(generator)  # type: ignore[operator]
