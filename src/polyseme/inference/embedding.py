"""Vectors of texts, words, and tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from polyseme.errors import ConfigError, DataError, suggest
from polyseme.inference.base import Granularity
from polyseme.inference.packed_model import PackedBatch, PackedModel, mean_pool, to_host_async
from polyseme.nn.layer_selection import LayerSelection
from polyseme.nn.packing import PackedLayout
from polyseme.weights.pooling import TextPooling

GRANULARITIES: tuple[Granularity, ...] = ("token", "word", "text")


def check_granularity(granularity: str) -> None:
    """Raise if there are no vectors of such units."""
    if granularity not in GRANULARITIES:
        raise ConfigError(f"granularity is {granularity!r}; {suggest(str(granularity), GRANULARITIES)}")


class EncodedSequence(NamedTuple):
    """Token ids and segment ids of a text with special tokens, and the tokens, without them, that start a word."""

    ids: np.ndarray
    segments: np.ndarray
    word_starts: np.ndarray


def embed_texts(
    packed: PackedModel, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
) -> np.ndarray | list[np.ndarray]:
    """Compute one vector per text, [texts, dim], or a list with the vectors of each text's words or tokens."""
    return embed_sequences(packed, encode_texts(packed, texts, granularity, truncate), layers, granularity)


def encode_texts(
    packed: PackedModel, texts: Sequence[str], granularity: Granularity, truncate: bool
) -> list[EncodedSequence]:
    """Encode texts as `embed_sequences` takes them."""
    check_granularity(granularity)
    if granularity != "text":
        return _encode(packed, texts, truncate, packed.max_len)
    packed.pooling.check()
    texts = [text.lower() for text in texts] if packed.pooling.lowercase else texts
    return _encode(packed, texts, truncate, packed.max_pooled_len)


def embed_sequences(
    packed: PackedModel, sequences: Sequence[EncodedSequence], layers: str | int, granularity: Granularity
) -> np.ndarray | list[np.ndarray]:
    """Compute what `embed_texts` does of encoded texts."""
    if granularity == "text":
        vectors = np.empty((0, packed.model.trunk.config.dim), dtype=np.float32)
        for index, means in to_host_async(_iter_pooled(packed, sequences, layers)):
            vectors = vectors if len(vectors) else np.empty((len(sequences), *means.shape[1:]), dtype=np.float32)
            vectors[index] = means
        return vectors
    selection = LayerSelection.parse(layers)
    indices = selection.indices(packed.model.trunk.config.num_layers)
    rows: list[Any] = [None] * len(sequences)
    num_prefix = packed.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    num_suffix = packed.tokenizer.num_special_tokens_to_add() - num_prefix
    for batch, hidden in _batch_states(packed, sequences, selection, indices):
        for i, part in zip(batch.indices, hidden.split(list(batch.inputs.layout.lengths))):
            rows[i] = part.float().cpu().numpy()
            if granularity == "word":
                rows[i] = _mean_per_word(rows[i][num_prefix : len(rows[i]) - num_suffix], sequences[i].word_starts)
    return rows


def iter_text_vectors(
    packed: PackedModel, texts: Sequence[str], layers: str | int, truncate: bool
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield the indices and the vectors of batches of texts, with gradients unless these are disabled."""
    return _iter_pooled(packed, encode_texts(packed, texts, "text", truncate), layers)


def _iter_pooled(
    packed: PackedModel, sequences: Sequence[EncodedSequence], layers: str | int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    selection = LayerSelection.parse(layers)
    indices = selection.indices(packed.model.trunk.config.num_layers)
    for batch, hidden in _batch_states(packed, sequences, selection, indices):
        yield batch.indices, _pool(hidden, batch.inputs.layout, packed.pooling)


def _batch_states(
    packed: PackedModel, sequences: Sequence[EncodedSequence], selection: LayerSelection, layers: Sequence[int]
) -> Iterator[tuple[PackedBatch, Tensor]]:
    for batch in packed.batches([each.ids for each in sequences], [each.segments for each in sequences]):
        layer_states = packed.model.trunk(batch.inputs, layers=layers).layers
        yield batch, selection.combine([layer_states[layer] for layer in layers])


def _pool(hidden: Tensor, layout: PackedLayout, pooling: TextPooling) -> Tensor:
    """Return the vector of each sequence in float32."""
    if pooling.mode == "mean":
        vectors = mean_pool(hidden, layout)
    elif pooling.mode == "cls":
        vectors = hidden.index_select(0, layout.first_indices).float()
    else:
        vectors = layout.max_pool(hidden.float())
    return F.normalize(vectors, dim=-1) if pooling.normalize else vectors


def _encode(packed: PackedModel, texts: Sequence[str], truncate: bool, max_len: int) -> list[EncodedSequence]:
    tokenizer = packed.tokenizer
    encoded = tokenizer.encode_corpus(list(texts))
    ends = np.cumsum(encoded.lengths)
    num_special = tokenizer.num_special_tokens_to_add()
    sequences = []
    for text, start, end in zip(texts, ends - encoded.lengths, ends):
        if start == end:
            raise DataError(f"the text has no tokens: {text!r}")
        if truncate:
            end = min(end, start + max_len - num_special)
        packed.check_length(end - start + num_special, text, max_len)
        input_ids, segment_ids = tokenizer.build_inputs_with_special_tokens(encoded.ids[start:end].tolist())
        starts = np.flatnonzero(encoded.word_starts[start:end])
        sequences.append(EncodedSequence(np.array(input_ids), np.array(segment_ids), starts))
    return sequences


def _mean_per_word(vectors: np.ndarray, word_starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(np.append(word_starts, len(vectors)))
    return np.add.reduceat(vectors, word_starts, axis=0) / sizes.reshape(-1, *[1] * (vectors.ndim - 1))
