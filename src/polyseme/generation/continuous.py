"""Continuous batching: texts join and leave a running batch between two steps (Orca; Yu et al. 2022, §3).

A text that joins is read at once, and its row follows those in use. When a text ends, the last row moves to its place:
every row has a text, and the next one can join. Rows have their own lengths, limits and sampling configs. Every network
that continues a prompt can be used: with a KV cache in preallocated buffers, or with other memory (recurrent states,
segments of Transformer-XL), which is concatenated. Encoder-decoders, whose rows share the buffers of their sources, and
n-gram models, whose steps are cheap, run in fixed batches (`stream_tokens`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import UnsupportedError
from polyseme.generation.config import GREEDY, SamplingConfig
from polyseme.generation.cuda_graph import CAPACITY_STEP, GraphedDecoder, get_graphed_decoder, uses_cuda_graphs
from polyseme.generation.row_sampling import RowSampler
from polyseme.generation.sample import GeneratedToken, compaction_order, derive_text_key
from polyseme.generation.session import (
    AutoregressiveModel,
    NeuralSession,
    TokenIds,
    check_request,
    is_seq2seq,
    max_positions,
    pack_inputs,
    start_session,
)
from polyseme.nn.memory import Memory, StaticKVCache
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs

MIN_ROWS = 8  # of new buffers; their number grows by doubling


@dataclass(frozen=True, eq=False)
class SequenceRequest:
    """One text to generate after a prompt; `sample_index` tells several samples of a prompt apart."""

    prompt: TokenIds
    max_new_tokens: int
    sampling: SamplingConfig = GREEDY
    sample_index: int = 0

    @property
    def max_len(self) -> int:
        """The number of tokens that the text may have with its prompt."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(eq=False)
class _Row:
    """A text that is being generated."""

    sequence: int
    request: SequenceRequest
    key: np.uint64
    seen_tokens: Tensor | None  # bool [vocabulary], for a repetition penalty
    num_tokens: int = 0


def supports_joining(model: Model | AutoregressiveModel) -> bool:
    """Whether texts can join a running batch of a model."""
    return isinstance(model, Model) and not is_seq2seq(model)


class ContinuousBatch:
    """Texts that are generated together; `sample` and `advance` in turn make a step, and `join` adds texts before one.

    What a text gets does not depend on the others: with a seed the same tokens as `generate_tokens`, and probabilities
    that differ by rounding only.
    """

    def __init__(
        self,
        model: Model,
        eos_token_ids: Collection[int] = (),
        suppress_tokens: Collection[int] = (),
        max_cells: int = 1 << 14,
    ):
        """`max_cells` limits rows × columns of the buffers, unless there is only one row."""
        if not supports_joining(model):
            raise UnsupportedError(f"texts cannot join a running batch of {model.config.family}")
        self.model, self.eos_token_ids, self.max_cells = model, eos_token_ids, max_cells
        has_static_cache = getattr(model.config.trunk, "supports_static_cache", False)
        self.session = _CacheRows(model, max_cells) if has_static_cache else _MemoryRows(model)
        self.rows: list[_Row] = []
        self.log_probs: Tensor | None = None  # [rows, vocabulary] of the last step
        device = next(model.parameters()).device
        self._suppressed = torch.tensor(list(suppress_tokens), dtype=torch.int64, device=device)
        self._numbers, self._sampler, self._tokens = count(), cast(RowSampler | None, None), cast(Tensor | None, None)
        self._ended_rows: list[bool] = []

    @property
    def sequences(self) -> list[int]:
        """The number of the text in each row."""
        return [row.sequence for row in self.rows]

    @property
    def num_cells(self) -> int:
        """Rows × columns that the texts need."""
        return len(self.rows) * _round_up(max((row.request.max_len for row in self.rows), default=0))

    def count_fitting(self, max_lens: Iterable[int]) -> int:
        """Return how many texts of these lengths, in this order, have room beside those of the batch."""
        num_rows, columns = len(self.rows), max((row.request.max_len for row in self.rows), default=0)
        num_fitting = 0
        for max_len in max_lens:
            num_rows, columns = num_rows + 1, max(columns, max_len)
            if num_rows > 1 and num_rows * _round_up(columns) > self.max_cells:
                break
            num_fitting += 1
        return num_fitting

    @torch.inference_mode()
    def join(self, requests: Sequence[SequenceRequest]) -> list[int]:
        """Read prompts, the same only once, and add a row for each; return the numbers of the texts.

        If it fails, the texts of the batch are as they were.
        """
        max_len = max(request.max_len for request in (*requests, *(row.request for row in self.rows)))
        prompts: dict[tuple[int, ...], int] = {}
        prompt_rows = [prompts.setdefault(tuple(request.prompt), len(prompts)) for request in requests]
        check_request(self.model, list(prompts), None, max(request.max_len for request in requests))
        self.session.join(list(prompts), prompt_rows, max_len)
        rows = [self._new_row(request) for request in requests]
        self.rows, self._sampler = [*self.rows, *rows], None
        return [row.sequence for row in rows]

    def _new_row(self, request: SequenceRequest) -> _Row:
        sampling, scores, seen_tokens = request.sampling, self.session.scores, None
        if sampling.repetition_penalty != 1:
            seen_tokens = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
            seen_tokens[torch.tensor(list(request.prompt), device=scores.device)] = True
        key = derive_text_key(sampling.seed, (-1, *request.prompt), request.sample_index)
        return _Row(next(self._numbers), request, key, seen_tokens)

    @torch.inference_mode()
    def sample(self) -> list[GeneratedToken]:
        """Choose the next token of each text; `log_probs` has the distributions."""
        scores, rows = self.session.scores, self.rows
        self.log_probs = scores.log_softmax(-1)
        if self._sampler is None:
            self._sampler = RowSampler([row.request.sampling for row in rows], [row.key for row in rows], scores)
        steps = np.array([row.num_tokens for row in rows])
        scores = scores.index_fill_(1, self._suppressed, -inf)
        tokens = self._tokens = self._sampler(scores, steps, [row.seen_tokens for row in rows])
        token_log_probs = self.log_probs.gather(1, tokens[:, None])[:, 0]
        token_values, score_values = torch.stack([tokens.double(), token_log_probs.double()]).tolist()  # one sync
        self._ended_rows = []
        for row, token in zip(rows, token_values):
            row.num_tokens += 1
            self._ended_rows.append(token in self.eos_token_ids or row.num_tokens == row.request.max_new_tokens)
        return [GeneratedToken(row.sequence, int(t), s) for row, t, s in zip(rows, token_values, score_values)]

    @torch.inference_mode()
    def advance(self, has_ended: Callable[[int], bool] = lambda sequence: False) -> None:
        """Free the rows of texts that have ended, by themselves or as the function says; append tokens to others."""
        assert self._tokens is not None
        is_active = [not (end or has_ended(row.sequence)) for row, end in zip(self.rows, self._ended_rows)]
        if all(is_active):
            self.session.advance(self._tokens)
            return
        order = compaction_order(is_active)
        self.rows, self._sampler = [self.rows[row] for row in order], None
        if order:
            self.session.advance(self._tokens[order], order)
        else:
            self.session.clear()


class _CacheRows(NeuralSession):
    """Rows of a KV cache in buffers that grow on demand; on a GPU a step is a CUDA graph.

    Graphs have a fixed number of rows, a power of two; rows without a text are computed too, from an empty cache.
    """

    def __init__(self, model: Model, max_cells: int):
        super().__init__(model)
        self.max_cells, self.lengths = max_cells, cast(list[int], [])
        self.cache: StaticKVCache | None = None
        self.graphed_decoder: GraphedDecoder | None = None
        self.layout = self._single_token_layout(1)

    def join(self, prompts: Sequence[TokenIds], prompt_rows: Sequence[int], max_len: int) -> None:
        """Read prompts, and add a row for each element of `prompt_rows`, the index of its prompt."""
        inputs = pack_inputs(prompts, self.model)
        trunk_output = self.model.trunk(inputs, return_memory=True)
        scores = self._predict(trunk_output.hidden, inputs.layout, inputs.layout.last_indices)
        memory: Memory = trunk_output.memory
        if len(prompts) < len(prompt_rows):
            memory, scores = memory.select(prompt_rows), scores[list(prompt_rows)]
        cache = self._reserve(memory, len(self.lengths) + len(prompt_rows), max_len)
        cache.append(memory, len(self.lengths))
        self.scores = torch.cat([self.scores, scores]) if self.lengths else scores
        self._set_lengths([*self.lengths, *memory.layout.lengths])

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        """Append a token to each of the selected rows, which do not repeat; None selects all rows in order."""
        assert self.cache is not None
        if row_indices is not None:
            self.cache.select(row_indices)
            self._set_lengths([self.lengths[row] for row in row_indices])
        num_rows = len(self.lengths)
        if self.graphed_decoder is None:
            self.scores = self._step(tokens)
        else:
            num_padded = min(_power_of_two(num_rows), len(self.cache.lengths))
            self.cache.lengths[num_rows:num_padded] = 0
            padded = F.pad(tokens, (0, num_padded - num_rows))
            self.scores = self.graphed_decoder.step((num_padded, 0), self._step, padded)[:num_rows]
        self._set_lengths([length + 1 for length in self.lengths])

    def clear(self) -> None:
        """Free all rows."""
        self._set_lengths([])

    def _step(self, tokens: Tensor) -> Tensor:
        if self.graphed_decoder is not None:
            self.layout = self.graphed_decoder.layout(len(tokens))
        elif len(self.layout.lengths) != len(tokens):
            self.layout = self._single_token_layout(len(tokens))
        trunk_output = self.model.trunk(Inputs(tokens, self.layout), memory=self.cache, return_memory=True)
        return self._predict(trunk_output.hidden, self.layout, None)

    def _set_lengths(self, lengths: list[int]) -> None:
        assert self.cache is not None
        self.lengths = lengths
        self.cache.set_row_lengths(lengths)

    def _reserve(self, memory: Memory, num_rows: int, max_len: int) -> StaticKVCache:
        """Return buffers with room for the rows; larger ones if needed, with what was in the old ones."""
        old_rows, columns = (len(self.cache.lengths), self.cache.capacity) if self.cache is not None else (0, 0)
        if self.cache is not None and num_rows <= old_rows and max_len <= columns:
            return self.cache
        rows = old_rows if num_rows <= old_rows else max(_power_of_two(num_rows), MIN_ROWS)
        if max_len > columns:
            columns = max(_round_up(max_len), min(2 * columns, self.max_cells // rows))
        if rows * columns > self.max_cells:
            columns = _round_up(max_len)
            rows = max(min(rows, self.max_cells // columns), num_rows)
        sizes = rows, min(columns, max_positions(self.model))
        if uses_cuda_graphs(memory.layout.cu_seqlens.device):
            decoder = get_graphed_decoder(self, self.model, memory, (), *sizes, 0, max_positions(self.model))
            cache = decoder.memory
        else:
            decoder, cache = None, StaticKVCache.allocate(memory, (), *sizes, supports_append=True)
        if self.cache is not None:
            cache.copy_rows(self.cache, len(self.lengths))
        self.cache, self.graphed_decoder = cache, decoder
        return cache


class _MemoryRows:
    """Rows of a trunk's own memory: states of a recurrent network, or of segments."""

    def __init__(self, model: Model):
        self.model, self.session = model, cast(Any, None)

    @property
    def scores(self) -> Tensor:
        """Scores of the next token of each row."""
        return cast(Tensor, self.session.scores)

    def join(self, prompts: Sequence[TokenIds], prompt_rows: Sequence[int], max_len: int) -> None:
        """Read prompts, and add a row for each element of `prompt_rows`, the index of its prompt."""
        session: Any = start_session(self.model, prompts, None, len(prompts), max_len)
        if len(prompts) < len(prompt_rows):
            session.memory, session.scores = session.memory.select(prompt_rows), session.scores[list(prompt_rows)]
        if self.session is not None:
            session.memory = Memory.concat([self.session.memory, session.memory])
            session.scores = torch.cat([self.session.scores, session.scores])
        self.session = session

    def advance(self, tokens: Tensor, row_indices: Sequence[int] | None = None) -> None:
        """Append a token to each of the selected rows; None selects all rows in order."""
        self.session.advance(tokens, row_indices)

    def clear(self) -> None:
        """Free all rows."""
        self.session = None


def _round_up(num_columns: int) -> int:
    return -(-num_columns // CAPACITY_STEP) * CAPACITY_STEP


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
