"""Graphs that generate text: a chunk of tokens and the memory of those before it to logits and the next memory.

The memory is the keys and values of each attention layer, [batch, heads, past, head_dim], where `past` is 0 for the
first chunk, or the states of each recurrent layer, [batch, dim], zeros at first. The graph of an encoder returns the
memory that its decoder starts with. Names are those of other exporters (`past_key_values.0.key`, `present.0.key`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyseme.compress.exporting.graph import HIDDEN_OUTPUT, GraphModule
from polyseme.generation.session import generation_head
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.layers.rnn import NUM_STATES
from polyseme.nn.memory import Memory
from polyseme.nn.packing import EncoderInput, Inputs
from polyseme.nn.padding import PaddedKVCache, PaddedLayout
from polyseme.nn.trunks.recurrent import RecurrentDecoderConfig, RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig

BATCH = torch.export.Dim("batch", min=1)
STATE_NAMES = "hidden", "cell"


@dataclass(frozen=True)
class CacheTensor:
    """A part of the memory: the input that it is, the output that replaces it, and its shape.

    A size is a number, "batch", "past" or "source"; `output` is empty if it stays the same in all steps.
    """

    input: str
    output: str
    shape: tuple[int | str, ...]


def cache_tensors(config: Any, prefix: str = "") -> list[CacheTensor]:
    """Return the memory of a causal Transformer or of a recurrent model; names of a decoder have a prefix.

    With relative positions (Transformer-XL) it is the hidden states.
    """
    if isinstance(config, TransformerConfig):
        if config.has_relative_positions:
            shape = "batch", "past", config.dim
            names = [f"hidden_states.{i}" for i in range(config.num_layers)]
            return [CacheTensor(f"past_{name}", f"present_{name}", shape) for name in names]
        attentions = [config.block_configs[i].attention for i in config.block_index_per_layer]
        return _key_value_tensors([(a.num_heads, a.inner_dim(config.dim) // a.num_heads) for a in attentions], prefix)
    stack: RecurrentTrunkConfig = config.stack if isinstance(config, RecurrentDecoderConfig) else config
    dims = [pair[: NUM_STATES[stack.cell]] for pair in zip(stack.output_dims, stack.hidden_dims)]
    return [
        CacheTensor(f"past_states.{i}.{name}", f"present_states.{i}.{name}", ("batch", dim))
        for i, layer_dims in enumerate(dims)
        for name, dim in zip(STATE_NAMES, layer_dims)
    ]


def _key_value_tensors(sizes: Sequence[tuple[int, int]], prefix: str, length: str = "past") -> list[CacheTensor]:
    return [
        CacheTensor(f"past_key_values.{name}", f"present.{name}", ("batch", num_heads, length, head_dim))
        for i, (num_heads, head_dim) in enumerate(sizes)
        for name in (f"{i}.{prefix}key", f"{i}.{prefix}value")
    ]


def source_tensors(config: Any) -> list[CacheTensor]:
    """Return what a decoder reads of its source: keys and values of cross attention, or states of the encoder."""
    if isinstance(config, TransformerConfig):
        attentions = [config.block_configs[i].cross_attention for i in config.block_index_per_layer]
        sizes = [(a.num_heads, a.inner_dim(config.dim) // a.num_heads) for a in attentions if a is not None]
        return _key_value_tensors(sizes, "encoder.", "source")
    key_dim = 0
    if config.attention is not None and config.attention.score != "dot":
        is_additive = config.attention.score == "additive"
        query_dim = config.stack.output_dims[0] if config.stack.context_dim else config.dim
        key_dim = (config.attention.hidden_dim or query_dim) if is_additive else query_dim
    return [CacheTensor("encoder_hidden_states", HIDDEN_OUTPUT, ("batch", "source", config.source_dim + key_dim))]


def _split_heads(layout: PaddedLayout, rows: Tensor) -> Tensor:
    """Convert rows [B · L, heads, head_dim] to [B, heads, L, head_dim]."""
    return layout.unflatten(rows).transpose(1, 2)


def _pairs(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the rows of keys and values, which invert `_split_heads`."""
    rows = [tensor.transpose(1, 2).flatten(0, 1) for tensor in tensors]
    return list(zip(rows[::2], rows[1::2]))


class StepModel(GraphModule):
    """A language model, or the decoder of an encoder-decoder, that continues texts.

    Inputs are `input_ids` [B, L], a mask, and the memory. The mask of a language model with attention is [B, past + L];
    a recurrent one has no past tokens, so it is [B, L]. A decoder has the mask of the source, and its targets have no
    padding.
    """

    def __init__(self, network: NeuralLM):
        super().__init__()
        self.model, self.head = network.model, generation_head(network.model)
        trunk: Any = network.model.config.trunk
        self.has_source = network.is_seq2seq
        config = trunk.decoder if self.has_source else trunk
        self.is_recurrent = not isinstance(config, TransformerConfig)
        self.memory_len = 0 if self.is_recurrent else config.memory_len
        self.cache = cache_tensors(config, "decoder." * self.has_source)
        self.source_cache = source_tensors(config) if self.has_source else []
        self.num_states = NUM_STATES[getattr(config, "stack", config).cell] if self.is_recurrent else 2
        mask_name = "encoder_attention_mask" if self.has_source else "attention_mask"
        self.input_names = ["input_ids", mask_name, *(each.input for each in (*self.cache, *self.source_cache))]
        self.output_names = ["logits", *(each.output for each in self.cache)]

    def forward(self, input_ids: Tensor, mask: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
        """Return the logits [B, L, vocabulary] and the memory after the chunk."""
        past, sources = memory[: len(self.cache)], memory[len(self.cache) :]
        read = self._read_recurrent if self.is_recurrent else self._read_attention
        hidden, layout, present = read(input_ids, mask.bool(), past, sources)
        return layout.unflatten(self.model.predict(self.head, hidden, layout)), *present

    def _read_attention(
        self, input_ids: Tensor, mask: Tensor, past: Sequence[Tensor], sources: Sequence[Tensor]
    ) -> tuple[Tensor, PaddedLayout, list[Tensor]]:
        past_len, is_relative = past[0].shape[-2], past[0].ndim == 3
        source_layout = PaddedLayout.from_mask(mask) if self.has_source else None
        if self.has_source:
            past_mask, chunk_mask = (
                past[0].new_ones(*past[0].shape[::2], dtype=torch.bool),
                torch.ones_like(input_ids).bool(),
            )
            mask = torch.cat([past_mask, chunk_mask], dim=1)
        else:
            torch._check(mask.shape[1] == past_len + input_ids.shape[1])
            past_mask, chunk_mask = mask[:, :past_len], mask[:, past_len:]
        states: Any = [(each.flatten(0, 1),) for each in past] if is_relative else _pairs(past)
        cache = PaddedKVCache(states, mask, past_mask, _pairs(sources), source_layout, self.memory_len)
        layout = cache.chunk_layout(chunk_mask)
        output = self.model.trunk(Inputs(input_ids.reshape(-1), layout), memory=cache, return_memory=True)
        key_layout = PaddedLayout.from_mask(mask)
        convert = PaddedLayout.unflatten if is_relative else _split_heads
        present = [convert(key_layout, rows) for parts in output.memory.states for rows in parts]
        return output.hidden, layout, present

    def _read_recurrent(
        self, input_ids: Tensor, mask: Tensor, past: Sequence[Tensor], sources: Sequence[Tensor]
    ) -> tuple[Tensor, PaddedLayout, list[Tensor]]:
        layout = PaddedLayout.from_mask(torch.ones_like(input_ids).bool() if self.has_source else mask)
        states = tuple(tuple(past[i : i + self.num_states]) for i in range(0, len(past), self.num_states))
        source = EncoderInput(sources[0].flatten(0, 1), PaddedLayout.from_mask(mask)) if sources else None
        memory = Memory(layout, states, (), source)
        output = self.model.trunk(Inputs(input_ids.reshape(-1), layout), memory=memory, return_memory=True)
        return output.hidden, layout, [each for layer_states in output.memory.states for each in layer_states]

    def example_inputs(self, max_len: int) -> tuple[Any, ...]:
        length, sizes = min(max_len, 5), {"batch": 2, "past": 4, "source": 6}
        ids = torch.zeros(2, length, dtype=torch.long)
        mask_len = sizes["source"] if self.has_source else length + (0 if self.is_recurrent else sizes["past"])
        tensors = [
            torch.zeros([sizes[size] if isinstance(size, str) else size for size in each.shape])
            for each in (*self.cache, *self.source_cache)
        ]
        return ids, torch.ones(2, mask_len, dtype=torch.long), *tensors

    def dynamic_shapes(self, min_len: int, max_len: int) -> tuple[Any, ...]:
        dims = {
            "batch": BATCH,
            "past": torch.export.Dim("past", min=0, max=max(max_len, 8)),
            "source": torch.export.Dim("source", min=1),
            "length": torch.export.Dim("length", min=min_len, max=max_len),
        }
        is_total = not self.has_source and not self.is_recurrent
        mask_dim = dims["source"] if self.has_source else torch.export.Dim.AUTO if is_total else dims["length"]
        memory = tuple(
            {i: dims[size] for i, size in enumerate(each.shape) if isinstance(size, str)}
            for each in (*self.cache, *self.source_cache)
        )
        return {0: dims["batch"], 1: dims["length"]}, {0: dims["batch"], 1: mask_dim}, memory


class EncoderModel(GraphModule):
    """The encoder of an encoder-decoder: the states of a source, and what its decoder starts with."""

    def __init__(self, network: NeuralLM):
        super().__init__()
        self.model = network.model
        decoder: Any = network.model.config.trunk.decoder  # type: ignore[attr-defined]
        self.is_recurrent = not isinstance(decoder, TransformerConfig)
        starts = cache_tensors(decoder) if self.is_recurrent else source_tensors(decoder)
        self.input_names = ["input_ids", "attention_mask"]
        self.output_names = [HIDDEN_OUTPUT, *(each.output for each in starts)]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the states of sources [B, S], and keys and values of them or the first states of the decoder."""
        layout, trunk = PaddedLayout.from_mask(attention_mask.bool()), self._trunk
        source = trunk.encode(EncoderInput(input_ids.reshape(-1), layout))
        if self.is_recurrent:
            memory = trunk.decoder.initial_memory(source, layout)
            starts = [each for layer_states in memory.states for each in layer_states]
        else:
            pairs = trunk.source_kv(Memory(layout, (), (), source))
            starts = [_split_heads(layout, rows) for pair in pairs for rows in pair]
        return layout.unflatten(source.values), *starts

    @property
    def _trunk(self) -> Any:
        return self.model.trunk

    def example_inputs(self, max_len: int) -> tuple[Any, ...]:
        ids = torch.zeros(2, min(max_len, 5), dtype=torch.long)
        return ids, torch.ones_like(ids)

    def dynamic_shapes(self, min_len: int, max_len: int) -> tuple[Any, ...]:
        dims = {0: BATCH, 1: torch.export.Dim("source", min=min_len, max=max_len)}
        return dims, dims
