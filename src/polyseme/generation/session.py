"""Decoding sessions: the scores of the next token of each sequence, and a step that appends tokens.

A search uses only `scores` and `advance`, whatever a model remembers of a sequence.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.generation.cuda_graph import GraphedDecoder, get_graphed_decoder, uses_cuda_graphs
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.memory import Memory, StaticKVCache
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig

TokenIds = Sequence[int]  # a source may also be an array of image regions, [regions, values]


class DecodingSession(Protocol):
    """Sequences that are being generated, one per row."""

    scores: Tensor  # [rows, vocabulary], unnormalized scores of the next token, float32 or wider

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        """Append a token to each of the selected rows, which may repeat; None selects all rows in order.

        Rows of one source stay adjacent, the same number for each source.
        """

    def should_compact(self, num_rows: int, num_active: int) -> bool:
        """Whether it pays to drop finished rows."""


class AutoregressiveModel(Protocol):
    """A model that is no network, such as an n-gram model; it has neither sources nor a maximum length."""

    def start_session(self, prompts: Sequence[TokenIds]) -> DecodingSession:
        """Start a session after the prompts."""


def start_session(
    model: Model | AutoregressiveModel,
    prompts: Sequence[TokenIds],
    sources: Sequence[TokenIds] | None,
    num_rows: int,
    max_len: int,
    use_cache: bool = True,
) -> DecodingSession:
    """Start a session after the prompts, with room for `num_rows` sequences of `max_len` tokens.

    A sequence-to-sequence model takes `sources`; its prompts start with its start token. Without `use_cache`, every
    step computes all states again: the reference for tests.
    """
    if not isinstance(model, Model):
        if sources is not None:
            raise UnsupportedError("the model continues a prompt, and has no source")
        return model.start_session(prompts)
    trunk = model.config.trunk
    check_request(model, prompts, sources, max_len)
    if not use_cache:
        return _UncachedSession(model, prompts, sources)
    if trunk.has_query_stream:
        return _QueryStreamSession(model, prompts, sources)
    if getattr(trunk, "supports_static_cache", False):
        return _StaticCacheSession(model, prompts, sources, num_rows, max_len)
    return _MemorySession(model, prompts, sources)


def generation_head(model: Model) -> str:
    """Return the name of the head that generates text, empty if there is none."""
    trunk = model.config.trunk
    if trunk.has_query_stream:
        return "masked" if "masked" in model.heads else ""
    is_generative = trunk.causal or trunk.is_hybrid or isinstance(trunk, EncoderDecoderConfig)
    return "next" if is_generative and "next" in model.heads else ""


def is_seq2seq(model: Model) -> bool:
    """Whether a model generates a target for a source."""
    return isinstance(model.config.trunk, EncoderDecoderConfig)


def max_positions(model: Model) -> int:
    """Return the maximum length of a prompt with the generated tokens."""
    trunk = model.config.trunk
    decoder = trunk.decoder if isinstance(trunk, EncoderDecoderConfig) else trunk
    return decoder.embeddings.max_len if decoder else 0


def is_unbounded(model: Model) -> bool:
    """Whether positions are relative or unused, so that texts may be longer than what is read at once."""
    trunk = model.config.trunk
    return not isinstance(trunk, EncoderDecoderConfig) and (trunk.has_bounded_memory or trunk.depends_on_lengths)


def check_request(model: Model, prompts: Sequence[TokenIds], sources: Sequence[TokenIds] | None, max_len: int) -> None:
    """Raise an error for prompts that the model cannot continue."""
    trunk = model.config.trunk
    if not generation_head(model):
        head_names = ", ".join(model.heads) or "no head"
        raise UnsupportedError(f"a {model.config.family} model with {head_names} cannot generate text")
    if is_seq2seq(model) != (sources is not None) or (sources is not None and len(sources) != len(prompts)):
        requirement = "generates a target for a source: each prompt needs one" if is_seq2seq(model) else "has no source"
        raise UnsupportedError(f"{model.config.family} {requirement}")
    if any(not len(ids) for ids in (*prompts, *(sources or ()))):
        raise DataError("a prompt or source has no tokens")
    source_limit = getattr(trunk, "encoder", trunk).embeddings.max_len
    if (source_len := max(map(len, sources or ()), default=0)) > source_limit:
        raise DataError(f"a source of {source_len} tokens is longer than the model reads ({source_limit})")
    position_limit = max_positions(model)
    if max_len > position_limit and not is_unbounded(model):
        prompt_len = max(map(len, prompts))
        total = f"a prompt of {prompt_len} tokens and {max_len - prompt_len} new ones make {max_len}"
        raise ConfigError(f"{total}, and the model has {position_limit} positions")


def pack_inputs(
    sequences: Sequence[TokenIds | np.ndarray], model: Model, sources: Sequence[Any] | None = None
) -> Inputs:
    """Pack sequences of token ids, and their sources, on the model's device."""
    device = next(model.parameters()).device

    def pack(rows: Sequence[TokenIds | np.ndarray]) -> tuple[Tensor, PackedLayout]:
        arrays = [ids if isinstance(ids, np.ndarray) else np.asarray(ids, dtype=np.int64) for ids in rows]
        tokens = torch.from_numpy(np.concatenate(arrays)).to(device)
        return tokens, PackedLayout.from_lengths([len(ids) for ids in rows], device=device)

    return Inputs(*pack(sequences), source=None if sources is None else EncoderInput(*pack(sources)))


class NeuralSession:
    """A session of a network. Abstract."""

    scores: Tensor

    def __init__(self, model: Model):
        self.model, self.head = model, generation_head(model)

    def should_compact(self, num_rows: int, num_active: int) -> bool:
        """Whether it pays to drop finished rows: always, unless a class says otherwise."""
        return num_active < num_rows

    def _single_token_layout(self, num_rows: int) -> PackedLayout:
        return PackedLayout.from_lengths([1] * num_rows, device=next(self.model.parameters()).device)

    def _predict(self, hidden: Tensor, layout: PackedLayout, rows: Tensor | None) -> Tensor:
        scores = self.model.predict(self.head, hidden, layout, rows)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


class _StaticCacheSession(NeuralSession):
    """Keys and values in buffers that are allocated once; on a GPU a step is a CUDA graph."""

    def __init__(
        self, model: Model, prompts: Sequence[TokenIds], sources: Sequence[TokenIds] | None, num_rows: int, max_len: int
    ):
        super().__init__(model)
        inputs, trunk = pack_inputs(prompts, model, sources), cast(Any, model.trunk)
        trunk_output = trunk(inputs, return_memory=True)
        memory, cross_kv = trunk_output.memory, trunk.source_kv(trunk_output.memory)
        max_source_len = max(map(len, sources or ()), default=0)
        self.graphed_decoder: GraphedDecoder | None = None
        if uses_cuda_graphs(inputs.tokens.device):
            sizes = num_rows, max_len, max_source_len, max_positions(model)
            self.graphed_decoder = get_graphed_decoder(self, model, memory, cross_kv, *sizes)
            self.memory = self.graphed_decoder.memory
        else:
            self.memory = StaticKVCache.allocate(memory, cross_kv, num_rows, max_len, max_source_len)
        self.memory.fill(memory, cross_kv)
        self.scores = self._predict(trunk_output.hidden, inputs.layout, inputs.layout.last_indices)
        self.num_rows, self.num_sources = len(prompts), len(sources or ())
        self.layout = self._single_token_layout(self.num_rows)

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        if row_indices is not None:
            self._select_rows(row_indices)
        if self.graphed_decoder is None:
            self.scores = self._step(tokens)
            return
        if self.memory.max_seqlen >= self.memory.capacity:
            raise ValueError(f"all {self.memory.capacity} positions of the cache are filled")
        self.scores = self.graphed_decoder.step((self.num_rows, self.num_sources), self._step, tokens)
        self.memory.max_seqlen += 1

    def _step(self, tokens: Tensor) -> Tensor:
        trunk_output = self.model.trunk(Inputs(tokens, self.layout), memory=self.memory, return_memory=True)
        return self._predict(trunk_output.hidden, self.layout, None)

    def should_compact(self, num_rows: int, num_active: int) -> bool:
        """On a GPU, drop at least half of the rows: each number of rows needs a graph."""
        return num_active < num_rows if self.graphed_decoder is None else 2 * num_active <= num_rows

    def _single_token_layout(self, num_rows: int) -> PackedLayout:
        if self.graphed_decoder is None:
            return super()._single_token_layout(num_rows)
        return self.graphed_decoder.layout(num_rows)

    def _select_rows(self, row_indices: Sequence[int]) -> None:
        self.memory.select(row_indices)
        if self.num_sources:
            rows_per_source = self.num_rows // self.num_sources
            source_indices = list(dict.fromkeys(row // rows_per_source for row in row_indices))
            if source_indices != list(range(self.num_sources)):
                self.memory.select_sources(source_indices)
                self.num_sources = len(source_indices)
        if len(row_indices) != self.num_rows:
            self.num_rows, self.layout = len(row_indices), self._single_token_layout(len(row_indices))


class _MemorySession(NeuralSession):
    """The trunk's own memory: states of segments, or of a recurrent network."""

    def __init__(self, model: Model, prompts: Sequence[TokenIds], sources: Sequence[TokenIds] | None):
        super().__init__(model)
        self._forward(pack_inputs(prompts, model, sources), None)

    def _forward(self, inputs: Inputs, memory: Memory | None) -> None:
        trunk_output = self.model.trunk(inputs, memory=memory, return_memory=True)
        self.memory = trunk_output.memory
        trunk = self.model.config.trunk
        if is_unbounded(self.model) and not trunk.has_bounded_memory:
            self.memory = self.memory.truncate(trunk.embeddings.max_len - 1)
        self.scores = self._predict(trunk_output.hidden, inputs.layout, inputs.layout.last_indices)

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        memory = self.memory if row_indices is None else self.memory.select(row_indices)
        self._forward(Inputs(tokens, self._single_token_layout(len(tokens))), memory)


class _QueryStreamSession(_MemorySession):
    """A query stream predicts the token after the last one; each token has seen those before it.

    The factorization order is that of the text, so states of earlier tokens do not change.
    """

    def _forward(self, inputs: Inputs, memory: Memory | None) -> None:
        lengths, unseen = inputs.layout.lengths, inputs.tokens.new_zeros(1)  # the token to predict
        tokens = torch.cat([part for chunk in inputs.tokens.split(list(lengths)) for part in (chunk, unseen)])
        layout = PackedLayout.from_lengths([n + 1 for n in lengths], device=tokens.device)
        queries = QueryStream(layout.positions, layout.last_indices, self._single_token_layout(len(lengths)))
        trunk_output = self.model.trunk(Inputs(tokens, layout, query_stream=queries), memory=memory, return_memory=True)
        self.memory = trunk_output.memory.drop_last()
        rows = layout.num_tokens + torch.arange(len(lengths), device=tokens.device)
        self.scores = self._predict(trunk_output.hidden, layout, rows)


class _UncachedSession(NeuralSession):
    """Every step computes all states again."""

    def __init__(self, model: Model, prompts: Sequence[TokenIds], sources: Sequence[TokenIds] | None):
        super().__init__(model)
        self.token_ids, self.sources = [list(ids) for ids in prompts], None if sources is None else list(sources)
        self._forward()

    def _forward(self) -> None:
        if self.head == "masked":
            self.scores = _QueryStreamSession(self.model, self.token_ids, None).scores
            return
        inputs = pack_inputs(self.token_ids, self.model, self.sources)
        if self.model.config.trunk.is_hybrid:
            inputs = replace(inputs, layout=inputs.layout.as_causal())
        self.scores = self._predict(self.model.trunk(inputs).hidden, inputs.layout, inputs.layout.last_indices)

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        row_indices = range(len(self.token_ids)) if row_indices is None else row_indices
        self.token_ids = [[*self.token_ids[row], token] for row, token in zip(row_indices, tokens.tolist())]
        self.sources = None if self.sources is None else [self.sources[row] for row in row_indices]
        self._forward()
