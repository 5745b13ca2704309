"""A model with its tokenizer that reads lists of token sequences as packed batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import DataError
from polyseme.inference.batching import PackedBatch, packed_batches
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.text.tokenizer import Tokenizer

MAX_BATCH_TOKENS = {"cuda": 65536, "cpu": 2048}


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A model, its tokenizer, and the number of tokens that it reads at once."""

    model: Model
    tokenizer: Tokenizer
    device: torch.device
    max_batch_tokens: int

    @property
    def max_len(self) -> int:
        """The longest sequence that the model reads, in tokens."""
        return self.model.config.trunk.embeddings.max_len

    @property
    def bos_ids(self) -> list[int]:
        """The token before a text for a causal model; GPT (2018) has none, so its first token is not predicted."""
        special_ids = self.tokenizer.special_token_ids
        return [token_id for token_id in (special_ids.bos, special_ids.eos) if token_id is not None][:1]

    @property
    def eos_ids(self) -> list[int]:
        """The token after a text for a model that reads backward."""
        special_ids = self.tokenizer.special_token_ids
        return [token_id for token_id in (special_ids.eos, special_ids.bos) if token_id is not None][:1]

    def check_length(self, length: int, text: str) -> None:
        """Raise `DataError` if a text has more tokens than the model reads."""
        if length > self.max_len:
            excerpt = re.sub(r"\s+", " ", text[:40])
            raise DataError(f"a text of {length} tokens is longer than the model reads ({self.max_len}): {excerpt!r}…")

    def encode_sequence(self, text: str, pair: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text or a pair with its special tokens; returns token ids and segment ids."""
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        if not first or second == []:
            raise DataError(f"the text has no tokens: {(text if not first else pair)!r}")
        ids, segments = self.tokenizer.build_inputs_with_special_tokens(first, second)
        self.check_length(len(ids), text)
        return np.array(ids), np.array(segments)

    def batches(self, ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> Iterator[PackedBatch]:
        """Pack sequences into batches of about `max_batch_tokens` tokens on the model's device."""
        used_segments = segments if self.model.config.trunk.num_segments else None
        return packed_batches(ids, used_segments, self.max_batch_tokens, self.device)

    def _inputs(self, batch: PackedBatch, query_stream: QueryStream | None = None) -> Inputs:
        inputs = Inputs(batch.tokens, batch.layout, batch.segments, query_stream=query_stream)
        return self.model.config.trunk.omit_unsupported(inputs)

    def hidden(self, batch: PackedBatch) -> Tensor:
        """Run the trunk: the last layer's states, [tokens, dim]."""
        return self.model.trunk(self._inputs(batch)).hidden

    def layers(self, batch: PackedBatch, indices: Sequence[int]) -> list[Tensor]:
        """Run the trunk: the states of the given layers, [tokens, dim] each."""
        output = self.model.trunk(self._inputs(batch), layers=indices)
        return [output.layers[index] for index in indices]

    def log_probs(self, head: str, batch: PackedBatch, hidden: Tensor, rows: Tensor) -> Tensor:
        """The log-probabilities of a language-model head at the given rows, [rows, vocabulary]."""
        return self.model.predict(head, hidden, batch.layout, rows.to(self.device)).float().log_softmax(-1)

    def masked_log_probs(self, batch: PackedBatch, rows: Tensor) -> Tensor:
        """The log-probabilities of masked tokens, [rows, vocabulary]; a query stream (XLNet) does not see them."""
        rows = rows.to(self.device)
        queries, predicted_rows = None, rows
        if self.model.config.trunk.has_query_stream:
            order = torch.full_like(batch.tokens, -1).index_fill(0, rows, 0)
            counts = np.histogram(rows.cpu().numpy(), batch.layout.cu_seqlens.cpu().numpy())[0]
            queries = QueryStream(order, rows, PackedLayout.from_lengths(counts, device=self.device))
            predicted_rows = batch.layout.num_tokens + torch.arange(len(rows), device=self.device)
        hidden = self.model.trunk(self._inputs(batch, queries)).hidden
        return self.log_probs("masked", batch, hidden, predicted_rows)
