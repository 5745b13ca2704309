"""Vectors of texts, words, and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.base import Granularity
from polyseme.inference.batching import PackedBatch, mean_pool, to_host_async
from polyseme.inference.packed_model import PackedModel
from polyseme.nn.layer_selection import LayerSelection

GRANULARITIES: tuple[Granularity, ...] = ("token", "word", "text")


def embed_texts(
    packed: PackedModel, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
) -> np.ndarray | list[np.ndarray]:
    """Compute one vector per text, [texts, dim], or a list with the vectors of each text's words or tokens."""
    if granularity not in GRANULARITIES:
        raise ConfigError(f"granularity is {granularity!r}; {suggest(str(granularity), GRANULARITIES)}")
    trunk_config = packed.model.config.trunk
    selection = LayerSelection.parse(layers)
    indices = selection.indices(trunk_config.num_layers)
    ids, segments, word_starts = _encode(packed, texts, truncate)

    def states() -> Iterator[tuple[PackedBatch, Tensor]]:
        for batch in packed.batches(ids, segments):
            yield batch, selection.combine(packed.layers(batch, indices))

    if granularity == "text":
        vectors: np.ndarray | None = None
        for index, means in to_host_async((batch.index, mean_pool(hidden, batch.layout)) for batch, hidden in states()):
            if vectors is None:
                vectors = np.empty((len(ids), *means.shape[1:]), dtype=np.float32)
            vectors[index] = means
        return np.empty((0, trunk_config.dim), dtype=np.float32) if vectors is None else vectors
    num_prefix = packed.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    num_suffix = packed.tokenizer.num_special_tokens_to_add() - num_prefix
    rows: list[Any] = [None] * len(ids)
    for batch, hidden in states():
        for i, part in zip(batch.index, hidden.split(list(batch.layout.lengths))):
            tokens = part.float().cpu().numpy()
            if granularity == "word":
                tokens = _mean_per_word(tokens[num_prefix : len(tokens) - num_suffix], word_starts[i])
            rows[i] = tokens
    return rows


def _encode(
    packed: PackedModel, texts: Sequence[str], truncate: bool
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Token ids and segment ids with special tokens, and the tokens of each text that start a word."""
    tokenizer = packed.tokenizer
    encoded = tokenizer.encode_corpus(list(texts))
    ends = np.cumsum(encoded.lengths)
    num_special = tokenizer.num_special_tokens_to_add()
    ids, segments, word_starts = [], [], []
    for text, start, end in zip(texts, ends - encoded.lengths, ends):
        if start == end:
            raise DataError(f"the text has no tokens: {text!r}")
        if truncate:
            end = min(end, start + packed.max_len - num_special)
        packed.check_length(end - start + num_special, text)
        input_ids, segment_ids = tokenizer.build_inputs_with_special_tokens(encoded.ids[start:end].tolist())
        ids.append(np.array(input_ids))
        segments.append(np.array(segment_ids))
        word_starts.append(np.flatnonzero(encoded.word_starts[start:end]))
    return ids, segments, word_starts


def _mean_per_word(vectors: np.ndarray, word_starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(np.append(word_starts, len(vectors)))
    return np.add.reduceat(vectors, word_starts, axis=0) / sizes.reshape(-1, *[1] * (vectors.ndim - 1))
